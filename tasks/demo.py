"""The demo task asks: is this sentence whole, or were its words moved, dropped or swapped?

It stands in for CoLA where there is no network. It has CoLA's columns (sentence, label, idx) and
labels (1 is acceptable, 0 is not), and is made on the fly from the documentation in `tasks.corpus`.
Train sentences come from the train side there, validation and test sentences from the other side,
so from other modules.
"""

import random
from collections.abc import Callable

from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

from tasks import corpus
from tasks.refusals import refusal

TRAIN_ROWS, VALIDATION_ROWS, TEST_ROWS = 4000, 800, 200
MIN_WORDS, MAX_WORDS = 8, 24
MIN_PLAIN_SHARE = 0.9
WORDS_PER_EDIT = 4
FEATURES = Features(
    {
        "sentence": Value("string"),
        "label": ClassLabel(names=["unacceptable", "acceptable"]),
        "idx": Value("int32"),
    }
)


def build(*, seed: int = 0) -> DatasetDict:
    """Return the splits; half of each one's sentences are whole, and test labels are -1 as in GLUE.

    A sentence is used once, either whole or corrupted, so no split holds both and none shares one
    with another. The rows are the same for the same seed on the same Python; other Pythons have
    other documentation.

    Raises:
        ValueError: if this Python's documentation has too few sentences.
    """
    generator = random.Random(seed)
    train = _pick("train", TRAIN_ROWS, generator)
    held_out = _pick("validation", VALIDATION_ROWS + TEST_ROWS, generator)
    return DatasetDict(
        train=_split(train, generator),
        validation=_split(held_out[:VALIDATION_ROWS], generator),
        test=_split(held_out[VALIDATION_ROWS:], generator, hide_labels=True),
    )


def corrupt(sentence: str, generator: random.Random) -> str:
    """Return another sentence, with one word in four moved, dropped or swapped.

    The first word and the final stop stay, so that neither capital nor stop gives it away.

    Args:
        sentence: at least five words; those after the first are not all alike.
        generator: chooses the words and what happens to them.
    """
    first, *middle = sentence.removesuffix(".").split()
    edited = list(middle)
    for _ in range(max(1, round(len(middle) / WORDS_PER_EDIT))):
        edited = generator.choice(_EDITS)(edited, generator)
    while _same(edited, middle):
        edited = generator.choice(_EDITS)(edited, generator)
    return " ".join([first, *edited]) + "."


def _move(words: list[str], generator: random.Random) -> list[str]:
    start = generator.randrange(len(words))
    rest = words[:start] + words[start + 1 :]
    end = generator.choice([i for i in range(len(words)) if abs(i - start) > 1])
    return [*rest[:end], words[start], *rest[end:]]


def _drop(words: list[str], generator: random.Random) -> list[str]:
    start = generator.randrange(len(words))
    return words[:start] + words[start + 1 :]


def _swap(words: list[str], generator: random.Random) -> list[str]:
    first, second = sorted(generator.sample(range(len(words)), 2))
    swapped = list(words)
    swapped[first], swapped[second] = words[second], words[first]
    return swapped


_EDITS: tuple[Callable[[list[str], random.Random], list[str]], ...] = (_move, _drop, _swap)


def _same(edited: list[str], words: list[str]) -> bool:
    return [word.lower() for word in edited] == [word.lower() for word in words]


def _pick(side: corpus.Side, count: int, generator: random.Random) -> list[str]:
    suitable = [text for text in corpus.sentences(side) if _suitable(text)]
    if len(suitable) < count:
        raise refusal(
            f"number of suitable sentences on the {side} side of the standard library",
            len(suitable),
            f"at least {count}",
            "Use a Python whose standard library is installed whole, pydoc_data included.",
        )
    return generator.sample(suitable, count)


def _suitable(text: str) -> bool:
    return (
        MIN_WORDS <= len(text.split()) <= MAX_WORDS
        and text[0].isupper()
        and text.endswith(".")
        and corpus.plain_share(text) >= MIN_PLAIN_SHARE
    )


def _split(sentences: list[str], generator: random.Random, *, hide_labels: bool = False) -> Dataset:
    labels = [index % 2 for index in range(len(sentences))]
    generator.shuffle(labels)
    rows = {
        "sentence": [
            sentence if label else corrupt(sentence, generator)
            for sentence, label in zip(sentences, labels, strict=True)
        ],
        "label": [-1] * len(labels) if hide_labels else labels,
        "idx": list(range(len(sentences))),
    }
    return Dataset.from_dict(rows, features=FEATURES)
