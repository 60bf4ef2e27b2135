"""What importing the library imports, and what the wheel holds; in processes of their own."""

from __future__ import annotations

import ast
import os
import pickle
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import pytest
import torch
import warm
import yaml
from edges import leading
from tiny import MODELS, inputs

import hf_graphattn as ga

FORBIDDEN = {"triton", "flash_attn", "datasets", "accelerate", "peft", "tasks", "finetune"}


def run(script: str, *arguments: object, python: str = sys.executable) -> list[str]:
    """The words that a script prints in a process of its own."""
    command = [python, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_import_adds_two_small_modules_to_that_of_transformers() -> None:
    script = "import sys, transformers\nbefore = set(sys.modules)\nimport hf_graphattn\n"
    added = run(script + "print(*set(sys.modules) - before)")
    assert set(added) == {"hf_graphattn", "lazy_loader"}


def test_a_config_needs_torch_and_the_rest_transformers() -> None:
    """Each name imports what it needs; what is not there is no reason to import anything."""
    script = """
import sys
import hf_graphattn as ga
assert not hasattr(ga, "missing") and not hasattr(ga, "_missing")
assert "torch" not in sys.modules
assert ga.GFSAConfig(order=4).order == 4 and not hasattr(ga, "HeatConfig")
assert "torch" in sys.modules and not {"transformers", "torch._dynamo"} & set(sys.modules)
assert ga.patch_model is ga.patching.patch.patch_model
assert "transformers.modeling_utils" in sys.modules
from hf_graphattn import *
from hf_graphattn import backends
assert load_filters is ga.load_filters and backends is ga.backends
"""
    assert run(script) == []


def test_no_name_imports_an_extra() -> None:
    """What transformers itself imports is not ours to forbid."""
    script = """
import sys
from transformers import AutoConfig, AutoModel, AttentionMaskInterface, PreTrainedModel
import transformers.core_model_loading, transformers.models.auto.modeling_auto
before = set(sys.modules)
from hf_graphattn import *
print(*{name.split(".")[0] for name in set(sys.modules) - before})
"""
    imported = set(run(script, python=warm.python("transformers")))
    assert "hf_graphattn" in imported
    assert imported.isdisjoint(FORBIDDEN)


def test_the_public_names_are_those_of_the_stub() -> None:
    """Which type checkers read; each is where the stub says, and in `dir`."""
    stub = ast.parse(Path(ga.__file__).with_suffix(".pyi").read_text("utf-8"))
    lines = [line for line in stub.body if isinstance(line, ast.ImportFrom)]
    listed = {(line.module, each.name, each.asname) for line in lines for each in line.names}
    assert len(listed) > 20
    for module, name, exported in listed:
        assert exported == name  # else type checkers take it for the stub's own
        assert getattr(ga, name) is getattr(import_module(f"hf_graphattn.{module}"), name)
    assert sorted(name for _, name, _ in listed) == sorted([*ga.__all__, "GraphFilterConfig"])
    assert set(ga.__all__) < set(dir(ga))


PLAIN = """
import sys
{imports}
try:
    AutoModelForSequenceClassification.from_pretrained(sys.argv[1])
except ValueError as error:
    print(error)
"""
TRANSFORMERS = "from transformers import AutoModelForSequenceClassification"


@pytest.mark.parametrize(
    "imports",
    leading(
        3,
        [
            TRANSFORMERS,
            f"{TRANSFORMERS}\nimport hf_graphattn",
            f"import hf_graphattn.interface.graph_attn\n{TRANSFORMERS}",
            f"import hf_graphattn\n{TRANSFORMERS}",
            f"import hf_graphattn as ga\nga.GFSAConfig()\n{TRANSFORMERS}",
        ],
    ),
)
def test_plain_transformers_refuses_a_patched_folder(imports: str, patched_folder: Path) -> None:
    """At loading, and its error names the way to load it."""
    python = warm.python("torch")  # which has not imported transformers
    error = " ".join(run(PLAIN.format(imports=imports), patched_folder, python=python))
    assert "hf_graphattn.from_pretrained" in error


UNPICKLE = {
    "torch": "torch.load(sys.argv[1], weights_only=False)",
    "pickle": "pickle.load(open(sys.argv[1], 'rb'))",
}


@pytest.mark.parametrize("way", UNPICKLE)
@pytest.mark.parametrize("architecture", leading(1, ["BERT", "T5"]))
def test_a_whole_pickled_model_runs_where_nothing_of_ours_was_imported(
    architecture: str, way: str, tmp_path: Path
) -> None:
    """Its filters and hooks are ours, so that unpickling it imports what registers the name."""
    model = ga.patch_model(MODELS[architecture](), ga.GFSAConfig(w_K=0.2, layers=(-1,)))
    batch = inputs(model)
    whole = {"model": model, "batch": batch, "expected": model(**batch)[0].detach()}
    path = tmp_path / "whole"
    torch.save(whole, path) if way == "torch" else path.write_bytes(pickle.dumps(whole))
    script = f"""
import pickle, sys, torch
found = {UNPICKLE[way]}
assert torch.equal(found["model"](**found["batch"])[0], found["expected"])
"""
    assert run(script, path, python=warm.python("transformers")) == []


ROOT = Path(__file__).resolve().parents[2]
USE = """
from importlib.metadata import entry_points

import hf_graphattn as ga
from transformers import BertConfig, BertModel

config = BertConfig(
    vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
)
model = ga.patch_model(BertModel(config), ga.GFSAConfig())
model.save_pretrained("saved")
assert ga.is_patched(ga.from_pretrained("saved"))
(script,) = entry_points(group="console_scripts", name="graphattn")
script.load()(["report", "saved"])
script.load()(["card", "saved", "--repo_id", "user/name"])
print(ga.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "-d", folder]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_only_the_library(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"hf_graphattn"}
    shipped = {name for name in names if name.startswith("hf_graphattn/")}
    source = (ROOT / "hf_graphattn").rglob("*")
    suffixes = (".py", ".pyi", ".json", ".md", ".typed")
    assert shipped == {str(p.relative_to(ROOT)) for p in source if p.suffix in suffixes}


def test_the_wheel_works_away_from_the_repository(wheel: Path, tmp_path: Path):
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)  # which is what installing it does
    run = subprocess.run(
        [warm.python("transformers"), "-c", USE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    title, *_, file = run.stdout.splitlines()
    assert title.startswith("BertModel: 1 of 1 self-attention modules filtered")
    assert Path(file).parent == site / "hf_graphattn"


def test_the_citation_is_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert cited["version"] == ga.__version__
