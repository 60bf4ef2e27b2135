"""What released versions wrote is read as they read it: `tests/fixtures/<version>/`, all of them.

`tests/fixtures/make.py` writes such a folder and says what is in it. The scripts are called by the
flags with which they were called then, in the repository's folder, as the paths among them are.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForSequenceClassification, PreTrainedModel

import hf_graphattn as ga
from finetune import code_classification, compare, glue, lm, sweep
from tests.fixtures.anywhere import ANYWHERE, checkpoint_at, machine

ROOT = Path(__file__).parents[1]
VERSIONS = sorted(path.parent for path in Path(__file__).parent.glob("fixtures/*/commands.json"))
MODELS = sorted(path for version in VERSIONS for path in (version / "models").iterdir())
SCRIPTS = {
    "glue": glue.main,
    "lm": lm.main,
    "code_classification": code_classification.main,
    "compare": compare.main,
    "sweep": sweep.main,
}
# What every run has anew: how long it took, and where it ran.
OF_THE_DAY = {
    *("seconds_per_step", "train_runtime", "train_samples_per_second", "train_steps_per_second"),
    *("eval_runtime", "peak_memory_bytes", "settings", "versions", "git", "machine"),
}

of_each_version = pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
of_each_model = pytest.mark.parametrize(
    "path", MODELS, ids=lambda path: f"{path.parents[1].name}-{path.name}"
)


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def run(version: Path, name: str, folder: Path, *others: str) -> Any:
    """Call a script as it was called then, but for the folder it writes to, and more flags."""
    script, flags = read(version / "commands.json")[name]
    return SCRIPTS[script]([*flags, "--output_dir", str(folder), *others])


def read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def frozen(version: Path, name: str) -> dict[str, Any]:
    """The results of that run then, as if it had been in this repository."""
    text = (version / "outputs" / name / "all_results.json").read_text("utf-8")
    return json.loads(text.replace(f"{ANYWHERE}/", f"{ROOT}/"))


def plain_base(version: Path) -> PreTrainedModel:
    return AutoModelForSequenceClassification.from_pretrained(version / "bases" / "two-layers")


@torch.no_grad()
def check_logits(model: torch.nn.Module, expected: Path, name: str = "logits") -> None:
    """The model computes what it computed then; across machines the last digits differ."""
    saved = load_file(expected)
    inputs = {key: saved[key] for key in ("input_ids", "attention_mask")}
    torch.testing.assert_close(model.eval()(**inputs).logits, saved[name], rtol=1e-5, atol=1e-5)
    assert (saved["logits"] - saved["plain_logits"]).abs().max() > 1e-2


def check_numbers(found: dict[str, Any], then: dict[str, Any]) -> None:
    """All numbers of then, but those that no two runs have in common."""
    assert then.keys() <= found.keys()
    for name in then.keys() - OF_THE_DAY:
        check_equal(found[name], then[name], name, 1e-4)


def check_equal(found: Any, then: Any, name: str, tolerance: float) -> None:
    """The same in containers, which may hold more now: numbers to a tolerance, all else exactly."""
    was, now = leaves(then, name), leaves(found, name)
    assert was.keys() <= now.keys()
    for key, value in was.items():
        if isinstance(value, int | float):
            value = pytest.approx(value, rel=tolerance, abs=1e-9)
        assert now[key] == value, key


def leaves(values: Any, name: str = "") -> dict[str, Any]:
    """Every value in containers, by the way to it."""
    if not isinstance(values, dict | list):
        return {name: values}
    items = values.items() if isinstance(values, dict) else enumerate(values)
    return {k: v for key, value in items for k, v in leaves(value, f"{name}/{key}").items()}


def keys(values: Any, name: str = "") -> Iterator[str]:
    """Every key of dictionaries in dictionaries, and in lists of them, by the way to it."""
    if isinstance(values, list):
        for value in values:
            yield from keys(value, f"{name}[]")
    if isinstance(values, dict):
        for key, value in values.items():
            yield f"{name}/{key}"
            yield from keys(value, f"{name}/{key}")


@of_each_model
def test_a_model_is_read(path: Path) -> None:
    expected = path.parents[1] / "expected" / f"{path.name}.safetensors"
    model = ga.from_pretrained(path)
    check_logits(model, expected)
    check_logits(ga.unpatch_model(model), expected, "plain_logits")


@of_each_model
def test_a_model_is_measured_by_its_script(path: Path, tmp_path: Path) -> None:
    version = path.parents[1]
    check_numbers(run(version, path.name, tmp_path), frozen(version, path.name))


@of_each_version
def test_an_adapter_is_read(version: Path) -> None:
    adapted = ga.load_peft(plain_base(version), version / "adapter")
    check_logits(adapted, version / "expected" / "adapter.safetensors")


@of_each_version
def test_filters_are_read(version: Path) -> None:
    model, expected = plain_base(version), version / "expected" / "filters.safetensors"
    check_logits(model, expected, "plain_logits")
    check_logits(ga.load_filters(model, version / "filters"), expected)


@of_each_version
def test_a_repository_is_read(version: Path) -> None:
    repository, expected = version / "repository", version / "expected" / "repository.safetensors"
    check_logits(ga.from_pretrained(repository), expected)
    trusted = {"trust_remote_code": True}
    check_logits(
        AutoModelForSequenceClassification.from_pretrained(repository, **trusted), expected
    )
    assert ga.is_patched(AutoModel.from_pretrained(repository, **trusted))


@of_each_version
def test_a_run_is_continued(version: Path, tmp_path: Path) -> None:
    """Bit for bit on the machine and torch where it began, elsewhere to 1e-6.

    The keys' biases are left out elsewhere: attention does not depend on them, so their gradient is
    rounding alone, and Adam makes whole steps of it.
    """
    folder = version / "outputs" / "training"
    then = frozen(version, "training")
    if then["versions"]["transformers"] != transformers.__version__:
        pytest.skip("another version of transformers has other configurations: refused")
    if torch.cuda.is_available():
        pytest.skip("a GPU's dropout draws other numbers")
    (checkpoint,) = folder.glob("step_*")
    checkpoint_at(checkpoint, tmp_path / checkpoint.name, ROOT)
    found = run(version, "training", tmp_path, "--resume_from_checkpoint", "last")
    check_numbers(found, then)
    first = (tmp_path / "train_log.jsonl").read_text().splitlines()[0]
    assert f"step_{json.loads(first)['step'] - 1}" == checkpoint.name
    weights, expected = (load_file(path / "model.safetensors") for path in (tmp_path, folder))
    is_there = read(version / "machine.json") == machine()
    if is_there and found["machine"]["name"] == then["machine"]["name"]:
        torch.testing.assert_close(weights, expected, rtol=0, atol=0)
    for each in (weights, expected):
        del each["bert.encoder.layer.0.attention.self.key.bias"]
    torch.testing.assert_close(weights, expected, rtol=1e-6, atol=1e-6)


@of_each_version
def test_a_comparison_is_reported(version: Path, tmp_path: Path) -> None:
    then, found = reported(version, "comparison", tmp_path)
    assert set(keys(then)) <= set(keys(found))
    for old, new in zip(then["tasks"], found["tasks"], strict=True):
        assert (old["task"], old["metric"]) == (new["task"], new["metric"])
        for arm, again in zip(old["arms"], new["arms"], strict=True):
            check_arm(again, arm, "arm", "filter_scalars")


@of_each_version
def test_a_sweep_is_reported(version: Path, tmp_path: Path) -> None:
    then, found = reported(version, "sweep", tmp_path)
    assert set(keys(then)) <= set(keys(found))
    assert found["best"]["setting"] == then["best"]["setting"]
    for old, new in zip(
        [then["plain"], *then["settings"]], [found["plain"], *found["settings"]], strict=True
    ):
        check_arm(new, old, "setting", "least", "greatest")


def reported(version: Path, name: str, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a comparison or sweep wrote of its runs then, and what is written of them now."""
    shutil.copytree(version / "outputs" / name, folder / "out")
    for path in folder.glob(f"out/{name}.*"):
        path.unlink()
    before = sorted(folder.rglob("all_results.json"))
    assert run(version, name, folder / "out", "--report_only") == 0
    assert sorted(folder.rglob("all_results.json")) == before
    then, found = (
        read(path / f"{name}.json") for path in (version / "outputs" / name, folder / "out")
    )
    return then, found


def check_arm(found: dict[str, Any], then: dict[str, Any], *others: str) -> None:
    """Each seed's value, their mean and spread, the paired differences and their p."""
    for name in ("values", "mean", "standard_deviation", "missing", *others):
        check_equal(found[name], then[name], name, 1e-9)
    assert (found["paired"] is None) == (then["paired"] is None)
    for name in {"differences", "mean", "p", "corrected_p", "better"} & set(then["paired"] or {}):
        check_equal(found["paired"][name], then["paired"][name], name, 1e-9)


@of_each_version
@pytest.mark.parametrize("name", ["training", "lm", "code_classification"])
def test_results_still_have_every_key(version: Path, name: str, tmp_path: Path) -> None:
    found = run(version, name, tmp_path)
    written = read(tmp_path / "all_results.json")
    assert written.keys() == found.keys()
    missing = set(keys(frozen(version, name))) - set(keys(written))
    assert missing <= {"/git/commit", "/git/dirty"}  # there is none in an unpacked archive
