"""The code task made from the standard library: schema, balance, no leak, one lost value a row."""

from __future__ import annotations

import ast
import random

import pytest
from datasets import DatasetDict

from tasks import corpus, demo_code


@pytest.fixture(scope="module")
def built() -> DatasetDict:
    return demo_code.build()


def test_schema_sizes_and_balance(built: DatasetDict) -> None:
    assert {name: len(split) for name, split in built.items()} == {
        "train": demo_code.TRAIN_ROWS,
        "validation": demo_code.VALIDATION_ROWS,
        "test": demo_code.TEST_ROWS,
    }
    for split in built.values():
        assert split.features == demo_code.FEATURES
        # Also of the first rows, which max_train_samples takes.
        assert split["target"][:6] == [False, True] * 3


def test_no_module_and_no_function_is_in_two_splits(built: DatasetDict) -> None:
    for name, split in built.items():
        side = "train" if name == "train" else "validation"
        assert {corpus.side_of(module) for module in split["project"]} == {side}
    texts = [text.partition("(")[2] for split in built.values() for text in split["func"]]
    assert len(set(texts)) == len(texts)


def test_whole_rows_are_the_librarys_and_the_others_lack_one_return(built: DatasetDict) -> None:
    known = dict.fromkeys(source for _, source in demo_code.functions())
    for row in built["validation"]:
        assert ast.unparse(ast.parse(row["func"])) == row["func"]
        assert (row["func"] in known) is not row["target"]


def test_a_function_without_one_of_its_returns() -> None:
    source = "def f(a):\n    if a:\n        return 1\n    else:\n        return a.b"
    found = {demo_code.defective(source, random.Random(i)) for i in range(20)}
    assert found == {source.replace("return 1", "1"), source.replace("return a", "a")}
    assert demo_code.defective("def f():\n    return", random.Random(0)) is None


def test_the_same_seed_gives_the_same_rows_and_another_seed_others() -> None:
    first, again, other = (demo_code._rows("validation", 20, seed)[:] for seed in (0, 0, 1))
    assert first == again != other
