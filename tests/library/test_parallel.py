"""Two processes of a patched model equal one: DDP, FSDP2 and tensor parallelism, on CPUs."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import parallel_worker
import pytest
import torch
import warm
from parallel_worker import CACHED, CASES, START, STEP, Case, batch, patched, plain, train
from tiny import HEADS

import hf_graphattn as ga
from hf_graphattn.model.parallel import share_heads

SHARED = [case for case in CASES if case.way != "ddp"]  # the model itself is


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes wrote."""
    path = tmp_path_factory.mktemp("parallel")
    parallel_worker.prepare(path)
    processes = [
        subprocess.Popen(
            [warm.python("transformers"), parallel_worker.__file__, path, str(rank)],
            env=os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
            stderr=(path / f"{rank}.txt").open("w"),
        )
        for rank in range(2)
    ]
    try:
        codes = [process.wait(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0, 0], "".join((path / f"{rank}.txt").read_text() for rank in range(2))
    return path


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, Any]]:
    """What each of the two found, by name."""
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_two_processes_train_as_one(case: Case, found: list[dict[str, Any]]) -> None:
    expected = train(patched(case), batch(case.architecture))
    assert any("graph_filter" in name for name in expected)
    for process in found:
        for name, tensor in expected.items():
            torch.testing.assert_close(process[case.name][name], tensor, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", SHARED, ids=lambda case: case.name)
def test_a_shared_model_is_saved_and_told_whole(
    case: Case, folder: Path, found: list[dict[str, Any]]
) -> None:
    saved = folder / f"{case.name}-saved"
    assert "digest" in json.loads((saved / "config.json").read_text())["graph_attn"]
    whole = ga.from_pretrained(saved)
    other = ga.load_filters(plain(case.architecture, case.heads), folder / f"{case.name}-filters")
    filters = dict(ga.filter_parameters(other))
    for name, parameter in whole.named_parameters():
        assert torch.equal(parameter, found[0][case.name][f"weight {name}"])
        assert torch.equal(parameter, filters.get(name, parameter))
    for process in found:
        assert process[case.name]["report"].removeprefix("FSDP") == str(ga.report(whole))
        assert process[case.name]["card"] == str(ga.model_card(whole, "user/name"))


def test_a_process_has_its_heads_scalars_in_float32(found: list[dict[str, Any]]) -> None:
    for process in found:
        for own in process["bfloat16"]:
            assert (own.dtype, own.shape) == (torch.float32, (HEADS // 2,))
            torch.testing.assert_close(own, torch.full_like(own, START + STEP), rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", CACHED)
def test_fixed_scalars_and_caches_are_shared_too(name: str, found: list[dict[str, Any]]) -> None:
    expected = ga.patch_model(plain("Llama"), CACHED[name])(**batch()).logits
    for process in found:
        torch.testing.assert_close(process[name], expected, rtol=1e-5, atol=1e-5)


def test_the_scalars_survive_sharding_and_bfloat16(found: list[dict[str, Any]]) -> None:
    for process in found:
        seen = process["mixed precision"]
        for local, whole in zip(seen["local"], seen["whole"], strict=True):
            assert local.dtype == whole.dtype == torch.float32
            assert (local.shape, whole.shape) == ((HEADS // 2,), (HEADS,))
            moved = (whole - START).abs()
            torch.testing.assert_close(moved, torch.full_like(moved, STEP), rtol=1e-2, atol=0)
        # The sharded model computes in bfloat16, and the same.
        assert 0 < seen["gap"] < 0.05


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("three heads", ("layers.0.self_attn is 3", "multiple of the 2 processes", "fewer")),
        ("joined heads", ("tp_plan is", "colwise_gather_output", "colwise, rowwise", "auto")),
        ("FSDP first", ("LlamaForCausalLM, sharded by FSDP", 'tp_plan="auto"', "afterwards")),
        ("pipeline", ("cut into stages", "a whole model")),
        ("by hand", ("spread by hand", "a whole model")),
        ("diagnose", ("spread over processes", "this process has whole")),
    ],
)
def test_what_a_filter_cannot_follow_is_refused(
    name: str, words: tuple[str, ...], found: list[dict[str, Any]]
) -> None:
    for process in found:
        for word in words:
            assert word in process[name]


def test_other_parameters_cannot_be_shared() -> None:
    graph_filter: Any = ga.GFSAConfig().build(HEADS)
    graph_filter.gate = torch.nn.Parameter(torch.ones(1))
    with pytest.raises(ga.GraphAttentionError, match=r"variant 'gfsa' is \['gate'\]; allowed: its"):
        share_heads(graph_filter, mesh=None)  # type: ignore[arg-type]
