"""What README shows runs as it stands there."""

from __future__ import annotations

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
