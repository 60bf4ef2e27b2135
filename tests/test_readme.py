"""What README shows runs as it stands there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hf_graphattn.variants import variant_configs

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys):
    example = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    assert len(example.strip().splitlines()) <= 20
    (tmp_path / "finetune").symlink_to(ROOT / "finetune")
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    assert "16 scalars added" in capsys.readouterr().out  # 4 layers of 4 heads


def test_its_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^make (\w+)", README, re.MULTILINE)
    assert {"demo", "test"} <= set(targets)
    assert all(f"\n{target}:" in makefile for target in targets)


def test_each_variant_is_in_the_table():
    for name, config in variant_configs().items():
        assert re.search(rf"^\| `{name}` \| `{config.__name__}\(", README, re.MULTILINE)


# Of each row of the table of results, by how it begins: the study, and the digits after the point.
STUDIES = {
    "Penn Treebank": ("ptb", 2),
    "characters": ("char", 2),
    "SST-2": ("sst2", 4),
    "MRPC": ("mrpc", 4),
    "real sentences": ("sentences", 3),
}


@pytest.mark.parametrize("begins", STUDIES)
def test_the_table_of_results_says_what_the_studies_found(begins: str) -> None:
    study, places = STUDIES[begins]
    (line,) = [line for line in README.splitlines() if line.startswith(f"| {begins}")]
    _, seeds, plain, *others = (cell.strip() for cell in line.strip("|").split("|"))
    found = json.loads((ROOT / "docs" / "evidence" / f"{study}.json").read_text("utf-8"))
    arms = {arm["arm"]: arm for arm in found["tasks"][0]["arms"]}
    assert (int(seeds), plain) == (len(found["seeds"]), f"{arms['none']['mean']:.{places}f}")
    for name, shown in zip(("gfsa", "plat", "laplacian"), others, strict=True):
        if name not in arms:
            assert shown == "not run"
            continue
        paired = arms[name]["paired"]
        mean = f"{paired['mean']:+.{places}f}"
        ends = (f"{paired['interval'][end]:+.{places}f}" for end in ("low", "high"))
        is_shown = paired["corrected_p"] <= 0.05
        assert shown == f"{f'**{mean}**' if is_shown else mean} ({' to '.join(ends)})"
