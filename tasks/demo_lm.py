"""The demo text for language models is the standard library's documentation, one document a row.

Train rows come from the train side of `tasks.corpus`, validation and test rows from the other side.
No module is in both.
"""

from collections.abc import Iterable

from datasets import Dataset, DatasetDict, Features, Value

from tasks import corpus

FEATURES = Features({"text": Value("string"), "module": Value("string")})


def build() -> DatasetDict:
    """Return the splits, with the columns ``text`` and ``module``.

    Every second module of the held-out side, in the order of their names, is for the test.

    Raises:
        ValueError: if this Python's standard library has no documentation to read.
    """
    documents = corpus.documents()
    held_out = sorted({d.module for d in documents if d.side == "validation"})
    validation, test = set(held_out[::2]), set(held_out[1::2])
    return DatasetDict(
        train=_split(d for d in documents if d.side == "train"),
        validation=_split(d for d in documents if d.module in validation),
        test=_split(d for d in documents if d.module in test),
    )


def text(document: corpus.Document) -> str:
    """Return the document's sentences on one line, with a space between them."""
    return " ".join(document.sentences)


def _split(documents: Iterable[corpus.Document]) -> Dataset:
    kept = list(documents)
    columns = {"text": [text(d) for d in kept], "module": [d.module for d in kept]}
    return Dataset.from_dict(columns, features=FEATURES)
