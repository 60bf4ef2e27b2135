"""Reading a page of HTML: its tags, its words and its pictures."""

from __future__ import annotations

import base64
import importlib
import io
import re
from html.parser import HTMLParser
from typing import Any

SOURCES = {"src", "href", "srcset", "data", "action", "poster"}


class Reader(HTMLParser):
    """Every tag with its attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


def assert_pictures(text: str, count: int) -> None:
    """Each figure's picture is in the page, and no byte of the page is elsewhere."""
    image = importlib.import_module("PIL.Image")
    reader = Reader(text)
    pictures = reader.all("img")
    assert len(pictures) == count
    for picture in pictures:
        head, _, data = picture["src"].partition(",")
        assert head == "data:image/png;base64"
        with image.open(io.BytesIO(base64.b64decode(data, validate=True))) as drawn:
            assert min(drawn.size) > 300
            assert len(drawn.convert("L").getcolors()) > 10  # not blank
        assert len(picture["alt"]) > 20
    assert not reader.all("script")
    sources = [value for _, tag in reader.tags for name, value in tag.items() if name in SOURCES]
    assert all(source.startswith("data:") for source in sources)
    assert not re.search(r"url\(|@import|https?://", text.replace("data:", ""))
