"""The notebook of examples/ runs from top to bottom, and was committed as it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
import warm
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_steps.ipynb"
STABLE = ("rows to train on", "the same logits", "False")  # what these say is so everywhere


@pytest.mark.full
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "kernels" / "warm"
    folder.mkdir(parents=True)
    argv = [warm.python(), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "of this test", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(spec))
    for name in ("JUPYTER_PATH", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    committed = nbformat.read(NOTEBOOK, as_version=4)
    ran = nbformat.from_dict(committed)
    where = {"metadata": {"path": NOTEBOOK.parent}}
    client = NotebookClient(ran, kernel_name="warm", resources=where)
    client.execute()  # an error in a cell is raised; the kernel ends with it
    assert client.km is None
    shown, found = _outputs(committed), _outputs(ran)
    assert [kinds for kinds, _ in shown] == [kinds for kinds, _ in found]
    for (_, expected), (_, text) in zip(shown, found, strict=True):
        if any(words in expected for words in STABLE):
            assert text == expected
    assert "the same logits, bit for bit: True" in "".join(text for _, text in found)


def _outputs(notebook: Any) -> list[tuple[list[str], str]]:
    """Of each cell of code: the kinds of what it puts out, warnings aside, and its text."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            kinds = [kind for out in outputs for kind in sorted(out.get("data", {"stream": 0}))]
            texts = [out.get("text") or out["data"].get("text/plain", "") for out in outputs]
            found.append((kinds, "".join(texts)))
    return found
