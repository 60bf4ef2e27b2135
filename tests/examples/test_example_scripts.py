"""Every script of examples/ runs (that of timm where it is installed), and what two compute."""

from __future__ import annotations

import runpy
import subprocess
from importlib.util import find_spec
from pathlib import Path

import networkx
import pytest
import torch
import warm

import hf_graphattn as ga

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NEEDS = {"timm_vit.py": "timm"}
FLAGS = {
    "graph_regression.py": ["--graphs", "40", "--steps", "3", "--seeds", "2"],
    "question_answering.py": ["1", "60"],
    "token_classification.py": ["3"],
}
LONG = ("graph_regression.py", "laplacian_eigenmaps.py")  # whose parts are tested below
SHOWN = {  # the others print the report
    "laplacian_eigenmaps.py": "block 8 ",
    "graph_regression.py": "gfsa - plain: 95 % interval ",
    "question_answering.py": "exact match ",
    "token_classification.py": "F1 ",
}


@pytest.mark.parametrize(
    "script",
    [pytest.param(p, marks=pytest.mark.full if p.name in LONG else ()) for p in EXAMPLES],
    ids=lambda path: path.name,
)
def test_an_example_runs(script: Path, tmp_path: Path) -> None:
    package = NEEDS.get(script.name)
    if package and find_spec(package) is None:
        pytest.skip(f"needs {package}")
    call = [warm.python("transformers"), script, *FLAGS.get(script.name, ())]
    done = subprocess.run(call, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert SHOWN.get(script.name, "self-attention modules filtered") in done.stdout


def test_spans_of_entities_and_answers_in_a_context() -> None:
    ner = runpy.run_path(str(ROOT / "examples" / "token_classification.py"))
    tags = ["B-PER", "I-PER", "B-PER", "O", "I-LOC", "B-LOC"]
    expected = {(0, 2, "PER"), (2, 3, "PER"), (4, 5, "LOC"), (5, 6, "LOC")}
    assert ner["spans"](tags) == expected
    assert ner["spans"](["O"]) == set()
    qa = runpy.run_path(str(ROOT / "examples" / "question_answering.py"))
    rows, tokenizer = qa["made"](20).to_list(), qa["tokenizer"]
    batch = qa["collate"](rows)
    for ids, start, end, row in zip(
        batch["input_ids"], batch["start_positions"], batch["end_positions"], rows, strict=True
    ):
        assert tokenizer.decode(ids[start : end + 1]) == row["answer"]


@pytest.mark.parametrize("is_patched", [False, True])
def test_graphs_without_edges_and_of_other_sizes_share_a_batch(is_patched: bool) -> None:
    script = runpy.run_path(str(ROOT / "examples" / "graph_regression.py"))
    shapes = [networkx.empty_graph(1), networkx.empty_graph(4), networkx.path_graph(12)]
    shapes.append(networkx.disjoint_union(networkx.star_graph(17), networkx.empty_graph(2)))
    graphs = [script["Graph"].of(shape, float(i)) for i, shape in enumerate(shapes)]
    furthest, unreached = script["FURTHEST"], script["UNREACHED"]
    assert graphs[2].paths[1].tolist() == [script["READOUT"], *range(furthest), *[furthest] * 4]
    assert graphs[1].paths[1:, 1:].fill_diagonal_(unreached).eq(unreached).all()
    assert graphs[3].degrees.tolist() == [script["DEGREES"] - 1, *[1] * 17, 0, 0]
    model = script["GraphTransformer"]().double()
    if is_patched:
        ga.patch_model(model, ga.GFSAConfig(order=2, w_0=-0.5, w_K=0.5))
    together = model(*script["batch"](graphs))
    alone = torch.cat([model(*script["batch"]([graph])) for graph in graphs])
    torch.testing.assert_close(together, alone)
    together.square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert len(set(together.tolist())) == len(graphs)


def test_the_block_of_laplacian_eigenmaps_has_the_papers_weights() -> None:
    n, q, kappa, eta, beta = 40, 16, 30.0, 0.4, 3.0
    script = runpy.run_path(str(ROOT / "examples" / "laplacian_eigenmaps.py"))
    block = script["Block"](q, kappa, eta, beta).double()
    block.norm.eps = 0.0
    block.norm.weight.data.fill_(q**-0.5)
    identity = torch.eye(n, dtype=torch.float64)

    def norm(x: torch.Tensor) -> torch.Tensor:  # LayerNorm of the weight I / sqrt(n)
        return torch.nn.functional.layer_norm(x, (q,), eps=0.0) * n**-0.5

    x = torch.randn(n, q, dtype=torch.float64)
    found, x = block(block.norm(x)[None, None])[0, 0], norm(x)
    query, key = x * (kappa * n) ** 0.5, x * (kappa * n / q) ** 0.5
    matrix = (query @ key.T * q**-0.5 - beta * identity).softmax(-1)
    x = norm(x + 2 * eta * (matrix - identity) @ x)
    x = norm(x - 2 * eta / (beta + q) * x)
    torch.testing.assert_close(found, x * (n / q) ** 0.5)
