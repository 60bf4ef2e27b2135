"""The wheel holds the library and nothing else, and works where the repository is not."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import warm
import yaml

import hf_graphattn as ga

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
