"""The text and the demo task made from it: schema, balance, determinism, nothing on both sides."""

import random
import re
from collections import Counter

import pytest
from datasets import ClassLabel

from tasks import corpus, demo

SIDES_BY_NAME = {
    "argparse": "train",
    "os": "train",
    "pydoc_data.topics": "train",
    "dataclasses": "validation",
    "socket": "validation",
    "threading": "validation",
}


def words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", text.lower()))


def test_no_module_and_no_sentence_is_on_both_sides() -> None:
    modules = {
        side: {document.module for document in corpus.documents() if document.side == side}
        for side in corpus.SIDES
    }
    assert min(map(len, modules.values())) >= 20
    assert modules["train"].isdisjoint(modules["validation"])
    train, validation = (set(map(words, corpus.sentences(side))) for side in corpus.SIDES)
    assert train.isdisjoint(validation)


def test_no_sentence_is_kept_twice() -> None:
    counts = Counter(words(text) for side in corpus.SIDES for text in corpus.sentences(side))
    assert len(counts) > 10_000
    assert max(counts.values()) == 1


def test_side_depends_on_the_module_name_alone() -> None:
    named = {name: corpus.side_of(name) for name in SIDES_BY_NAME}
    assert named == SIDES_BY_NAME


def test_sentences_are_split_and_code_is_left_out() -> None:
    text = """Return the *first* item of it.  Raise an error when there is none.

    >>> first([1, 2])

    x = y[0] + z{1} <= 3 | ~w
    """
    assert corpus.split_sentences(text) == (
        "Return the first item of it.",
        "Raise an error when there is none.",
    )


def test_demo_has_the_schema_of_cola_and_is_balanced() -> None:
    splits = demo.build()
    assert {name: split.num_rows for name, split in splits.items()} == {
        "train": demo.TRAIN_ROWS,
        "validation": demo.VALIDATION_ROWS,
        "test": demo.TEST_ROWS,
    }
    for name, split in splits.items():
        assert split.column_names == ["sentence", "label", "idx"]
        assert split.features["label"] == ClassLabel(names=["unacceptable", "acceptable"])
        assert split["idx"][:] == list(range(split.num_rows))
        if name == "test":
            assert set(split["label"]) == {-1}
        else:
            assert sum(split["label"]) == split.num_rows // 2


def test_demo_acceptable_sentences_are_real_and_the_others_are_not() -> None:
    """And they are the same for the same seed only."""
    splits, again, other = (demo.build(seed=seed) for seed in (0, 0, 1))
    assert splits["train"][:] == again["train"][:] != other["train"][:]
    for name, side in (("train", "train"), ("validation", "validation")):
        real = set(corpus.sentences(side))
        for row in splits[name]:
            assert (row["sentence"] in real) == bool(row["label"])


def test_demo_shares_no_sentence_or_corruption_of_one_between_splits() -> None:
    # As bags of words: moving and swapping leave those alone.
    splits = demo.build()
    held_out = {
        tuple(sorted(words(text))): name
        for name in ("validation", "test")
        for text in splits[name]["sentence"]
    }
    assert not held_out.keys() & {
        tuple(sorted(words(text))) for text in splits["train"]["sentence"]
    }
    assert len(held_out) == demo.VALIDATION_ROWS + demo.TEST_ROWS


def test_corruption_differs_and_keeps_first_word_and_stop() -> None:
    sentence = "If the the the file is empty, return the the default."
    for seed in range(50):
        corrupted = demo.corrupt(sentence, random.Random(seed))
        assert corrupted.lower() != sentence.lower()
        assert corrupted.startswith("If ")
        assert corrupted.endswith(".")
        assert not Counter(corrupted[:-1].split()) - Counter(sentence[:-1].split())


def test_too_little_text_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(corpus, "sentences", lambda side: [])
    with pytest.raises(ValueError, match=r"on the train side .* is 0; allowed: at least 4000"):
        demo.build()
