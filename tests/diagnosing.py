"""What the tests of `diagnose` share: quick settings, batches, and a model before and after."""

from __future__ import annotations

import base64
import importlib
import io
import re
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from tiny import inputs

from hf_graphattn.diagnostics import Diagnosis

QUICK = {"orders": (2, 3), "powers": (2.0,)}


def whole(model: Any, **how: Any) -> dict[str, torch.Tensor]:
    """A batch in which nothing is padded, encoder and decoder alike."""
    return inputs(model, "none", **how)


def assert_same(one: Diagnosis, other: Diagnosis, tolerance: float = 1e-9) -> None:
    for mine, theirs in zip(one.rows(), other.rows(), strict=True):
        where = {k: v for k, v in mine.items() if k not in ("mean", "std")}
        assert where == {k: v for k, v in theirs.items() if k not in ("mean", "std")}
        assert mine["mean"] == pytest.approx(theirs["mean"], rel=tolerance, abs=tolerance), where


def state(model: Any, batch: dict[str, torch.Tensor]) -> dict[str, Any]:
    """All of a model that `diagnose` touches on the way.

    The model runs first: transformers' own recording hooks come with the first call and stay.
    """
    with torch.no_grad():
        model(**batch, output_hidden_states=True)
    return {
        "weights": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "training": [module.training for module in model.modules()],
        "modules": [name for name, _ in model.named_modules()],
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()],
        "attributes": [sorted(module.__dict__) for module in model.modules()],
        "configs": [m.config.to_dict() for m in model.modules() if hasattr(m, "config")],
        "attention": [
            m.config._attn_implementation for m in model.modules() if hasattr(m, "config")
        ],
    }


def assert_unchanged(before: dict[str, Any], model: Any, batch: dict[str, torch.Tensor]) -> None:
    after = state(model, batch)
    weights, other = before.pop("weights"), after.pop("weights")
    assert before == after
    assert weights.keys() == other.keys()
    assert all(tensor.equal(other[name]) for name, tensor in weights.items())


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
