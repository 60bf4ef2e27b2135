"""This reads English text that every machine with Python has: the standard library's documentation.

The sentences come from three places, all read as text, none imported: the language reference that
`help()` shows (`pydoc_data.topics`), the docstrings of modules, classes and functions, and
comments. Each sentence belongs to one module, and the module's name alone decides
whether it is on the train or on the validation side, whatever the Python version. A sentence that
occurs in several modules is kept once; if any of them is on the train side it counts as train, so
that no sentence is on both sides.

Source: the Python standard library, under the PSF licence. None of its text is stored here.
"""

import ast
import functools
import gc
import hashlib
import re
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from tasks.refusals import refusal

Side = Literal["train", "validation"]
SIDES: tuple[Side, ...] = get_args(Side)

# These are tests, tools and vendored code; installations differ in which of them they have.
EXCLUDED_FOLDERS = frozenset(
    (
        *("__pycache__", "_vendor", "encodings", "ensurepip", "idle_test", "idlelib", "lib2to3"),
        *("pydoc_data", "site-packages", "test", "tests", "turtledemo"),
    )
)
MIN_WORDS, MAX_WORDS = 4, 60
MIN_PLAIN_SHARE = 0.6
VALIDATION_PERCENT = 12

_SENTENCE_END = re.compile(r"(?<=[a-z)][.!?])\s+(?=[A-Z(])")
_PLAIN_WORD = re.compile(r"\(?[A-Za-z]+(?:['-][A-Za-z]+)*[,;:)]*")
_COMMENT = re.compile(r"[ \t]*#+[ \t]?([^\n]*)")
_MARKUP = re.compile(r"[*`\"]+")
_DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Document:
    """A document is the consecutive sentences of one docstring, topic or comment block."""

    module: str
    sentences: tuple[str, ...]

    @property
    def side(self) -> Side:
        """Return the side of the document's module."""
        return side_of(self.module)


def side_of(module: str) -> Side:
    """Choose train or validation by a hash of the module's dotted name alone."""
    digest = hashlib.sha256(module.encode()).digest()
    bucket = int.from_bytes(digest[:4], "big") % 100
    return "validation" if bucket < VALIDATION_PERCENT else "train"


@functools.cache
def documents() -> tuple[Document, ...]:
    """Return all documents of this Python's standard library; no sentence occurs twice.

    Their order is fixed.

    Raises:
        ValueError: if the standard library is installed without its source.
    """
    with paused_garbage_collection():
        found = [Document(module, split_sentences(text)) for module, text in _texts()]
    seen: set[str] = set()
    unique = []
    # The train side comes first, so that a sentence of both sides stays there.
    for document in sorted(found, key=lambda document: SIDES.index(document.side)):
        new = []
        for sentence in document.sentences:
            key = " ".join(re.findall(r"\w+", sentence.lower()))
            if key not in seen:
                seen.add(key)
                new.append(sentence)
        if new:
            unique.append(Document(document.module, tuple(new)))
    if not unique:
        raise refusal(
            "Python's standard library",
            str(_library_root()),
            "a folder with readable .py files, and this has none",
            "The demo text needs a Python installed with its source; use one that has it "
            "(python.org, a distribution's full package, pyenv, uv, conda).",
        )
    return tuple(unique)


def sentences(side: Side) -> list[str]:
    """Return the sentences of one side, in a fixed order."""
    return [
        sentence
        for document in documents()
        if document.side == side
        for sentence in document.sentences
    ]


def split_sentences(text: str) -> tuple[str, ...]:
    """Return the mostly plain-worded sentences and phrases of a text, without code and tables."""
    kept = []
    for paragraph in re.split(r"\n\s*\n|\n\s*(?=[-*+] |\d+\. |:\w+|\.\. )", text):
        if ">>>" in paragraph or "::" in paragraph:
            continue
        flowing = " ".join(_MARKUP.sub("", paragraph).split())
        kept += [part for part in _SENTENCE_END.split(flowing) if _is_sentence(part)]
    return tuple(kept)


def plain_share(text: str) -> float:
    """Return the share, 0 to 1, of a text's words that are plain English and no names of code."""
    words = text.split()
    plain = sum(_PLAIN_WORD.fullmatch(word.rstrip(".:!?")) is not None for word in words)
    return plain / max(len(words), 1)


def _is_sentence(text: str) -> bool:
    return MIN_WORDS <= len(text.split()) <= MAX_WORDS and plain_share(text) >= MIN_PLAIN_SHARE


@contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Pause garbage collection inside, for work on many syntax trees."""
    # Syntax trees are many small objects without cycles: the collector would cost 40 % of the time.
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _library_root() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def modules() -> Iterator[tuple[str, str, ast.Module]]:
    """Yield dotted name, source and syntax tree of each module of the standard library, by path.

    Tests, tools and vendored code are left out, and so are files that are not valid Python.
    """
    root = _library_root()
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if not EXCLUDED_FOLDERS.isdisjoint(parts) or not all(map(str.isidentifier, parts)):
            continue
        try:
            source = path.read_text(encoding="utf-8")
            yield ".".join(parts), source, ast.parse(source)
        except (OSError, UnicodeDecodeError, SyntaxError):
            continue  # it is deliberately broken, or foreign


def _texts() -> Iterator[tuple[str, str]]:
    yield from _topics()
    for module, source, tree in modules():
        yield from _source_texts(module, source, tree)


def _topics() -> Iterator[tuple[str, str]]:
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some distributions package it separately
        return
    for name in sorted(topics):
        yield "pydoc_data.topics", topics[name]


def _source_texts(module: str, source: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in definitions(tree):
        if text := ast.get_docstring(node):
            yield module, text
    block: list[str] = []
    for line in (*source.splitlines(), ""):
        if match := _COMMENT.fullmatch(line):
            block.append(match[1])
        elif block:
            yield module, "\n".join(block)
            block = []


def definitions(
    tree: ast.AST,
) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the tree itself and the classes and functions in it, in the order of the source."""
    # Only statements are searched: docstrings live nowhere else, and most of a tree is expressions.
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, _DEFINITIONS):
            yield node
        nested = [
            child
            for field in ("body", "orelse", "handlers", "finalbody")
            for child in getattr(node, field, [])
        ]
        stack += reversed(nested)
