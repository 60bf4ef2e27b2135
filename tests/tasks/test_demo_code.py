"""The defect task made from the standard library: schema, balance, no leak, mutants that parse."""

import ast
import random
from collections import defaultdict

import pytest
from datasets import DatasetDict, Value

from tasks import corpus, demo_code


@pytest.fixture(scope="module")
def built() -> DatasetDict:
    return demo_code.build()


def test_schema_sizes_and_balance(built: DatasetDict) -> None:
    sizes = {"train": 4000, "validation": 500, "test": 200}
    assert {name: len(split) for name, split in built.items()} == sizes
    for split in built.values():
        assert split.column_names == ["id", "func", "target", "project", "commit_id"]
        assert split.features["target"] == Value("bool")
        assert sum(split["target"]) * 2 == len(split)
        # The first rows alone are balanced too: max_train_samples takes those.
        assert sum(split["target"][:40]) == 20


def test_the_same_seed_gives_the_same_rows_and_another_seed_others() -> None:
    first, again, other = (
        demo_code.rows("validation", 80, random.Random(seed)) for seed in (0, 0, 1)
    )
    assert first == again
    assert {row["func"] for row in first} != {row["func"] for row in other}


def test_no_module_and_no_function_is_in_two_splits(built: DatasetDict) -> None:
    for row in built["train"]:
        assert corpus.side_of(row["project"]) == "train"
    for name in ("validation", "test"):
        assert {corpus.side_of(module) for module in built[name]["project"]} == {"validation"}
    texts = [demo_code.nameless(text) for split in built.values() for text in split["func"]]
    assert len(set(texts)) == len(texts) == 4700


def test_no_function_meets_its_own_mutant(built: DatasetDict) -> None:
    """Every whole row is a function of the library, no defective row is, nor a mutant of one."""
    known = {demo_code.nameless(function.source) for function in demo_code.functions()}
    whole = defaultdict(list)
    for split in built.values():
        for row in split:
            assert (demo_code.nameless(row["func"]) in known) != row["target"]
            if not row["target"]:
                whole[name(row)].append(row["func"])
    compared = 0
    for split in built.values():
        for row in split:
            if row["target"]:
                for source in whole[name(row)]:
                    assert row["func"] not in mutants(source)
                    compared += 1
    assert compared > 20


def test_every_row_parses_and_is_written_alike(built: DatasetDict) -> None:
    for split in built.values():
        for text in split["func"]:
            tree = ast.parse(text)
            assert len(tree.body) == 1
            assert ast.unparse(tree) == text
            assert 60 <= len(text) <= 400


def test_mutants_parse_and_differ_in_their_trees() -> None:
    generator = random.Random(0)
    functions = [f.source for f in demo_code.functions() if len(f.source) < 300][:1500:5]
    pairs = [(source, demo_code.mutate(source, generator)) for source in functions]
    found = [(source, mutant) for source, mutant in pairs if mutant is not None]
    assert len(found) > 200
    for source, mutant in found:
        assert ast.dump(ast.parse(mutant)) != ast.dump(ast.parse(source))


@pytest.mark.parametrize(
    ("kind", "source", "expected"),
    [
        ("swapped_operator", "f(a + b)", {"f(a - b)"}),
        ("swapped_operator", "f(a is None)", {"f(a is not None)"}),
        ("swapped_operator", "f(a and b)", {"f(a or b)"}),
        ("swapped_operator", "a -= b", {"a += b"}),
        ("off_by_one", "f(a[1])", {"f(a[0])", "f(a[2])"}),
        ("off_by_one", "f(a < b)", {"f(a <= b)"}),
        ("off_by_one", "f(range(0))", {"f(range(1))"}),
        ("off_by_one", "f(True, 3, a[True])", set()),
        ("dropped_not", "f(not a)", {"f(a)"}),
        ("dropped_not", "f(-a)", set()),
        ("misused_variable", "f(a)", {"f(b)"}),
        ("misused_variable", "f(c)", set()),
    ],
)
def test_what_each_kind_of_bug_is(kind: str, source: str, expected: set[str]) -> None:
    text = f"def g(a, b):\n    {source}"
    found = {mutant.splitlines()[1].strip() for mutant in mutants(text, kind)}
    assert found == expected


def test_a_function_without_a_place_for_a_bug_gives_none() -> None:
    assert demo_code.mutate("def f(self):\n    return other", random.Random(0)) is None


def name(row: dict) -> tuple[str, str]:
    """Module and name of a row's function."""
    return row["project"], row["func"].partition("(")[0]


def mutants(source: str, kind: str | None = None) -> set[str]:
    """The function with each bug that it can have, of one kind or of all."""
    tree = ast.parse(source)
    found = {
        demo_code.written_with(tree, place, bug)
        for own_kind, places in demo_code.bugs(tree).items()
        for place, bug in places
        if kind in (None, own_kind)
    }
    assert ast.unparse(tree) == source
    return found
