"""The tables of `ga.report`, and `graphattn`: what its commands print, and what they refuse."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from tiny import MODELS, ROWS

import hf_graphattn as ga
from hf_graphattn.shell.main import main

QUICK = """
import sys
from hf_graphattn.shell.main import main
for words in (["--version"], ["--help"], ["diagnose", "--help"], ["report"], ["what"]):
    try:
        main(words)
    except SystemExit as end:
        print("ended", end.code)
assert not {"torch", "transformers", "numpy"} & set(sys.modules)
"""


@pytest.fixture(params=["BERT", "T5"])
def architecture(request: pytest.FixtureRequest) -> str:
    return request.param


def written(folder: Path, architecture: str, **settings: object) -> Path:
    """A folder with the config of a tiny model alone."""
    model = MODELS[architecture]()
    model.config.update({"architectures": [type(model).__name__], **settings})
    model.config.save_pretrained(folder)
    return folder


def test_supported_needs_the_config_alone(
    architecture: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["supported", str(written(tmp_path, architecture))])
    assert capsys.readouterr().out == f"{ga.supported(MODELS[architecture]())}\n"


def test_a_config_that_names_no_class_gets_the_base_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["supported", str(written(tmp_path, "GPT-2", architectures=None))])
    assert capsys.readouterr().out == f"{ga.supported(MODELS['GPT-2']('Model'))}\n"


def test_of_a_patched_folder_it_says_so(
    patched_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its config.json names an attention implementation that transformers refuses."""
    main(["supported", str(patched_folder)])
    table, config = ga.supported(MODELS["BERT"]()), ga.GFSAConfig(w_K=0.2)
    more = f"{patched_folder} is patched already, with {config}: graphattn report shows it."
    assert capsys.readouterr().out == f"{table}\n{more}\n"


def test_report_and_card_are_those_of_the_loaded_model(
    patched_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ga.from_pretrained(patched_folder)
    main(["report", str(patched_folder)])
    assert capsys.readouterr().out == f"{ga.report(model)}\n"
    about = {"license": "mit", "base_model": "user/base", "example": "A text."}
    flags = [word for name, value in about.items() for word in (f"--{name}", value)]
    words = ["card", str(patched_folder), "--repo_id", "someone/filtered", *flags]
    main(words)
    card = f"{ga.model_card(model, 'someone/filtered', **about)}"
    assert capsys.readouterr().out == f"{card}\n"
    path = tmp_path / "README.md"
    main([*words, "--output", str(path)])
    assert (capsys.readouterr().out, path.read_text("utf-8")) == (f"wrote {path}\n", card)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["supported", "gpt2"], r"'gpt2' cannot be loaded: (?!.*damaged).*connect"),
        (["report", "someone/model"], r"'someone/model' cannot be loaded: (?!.*damaged).*connect"),
        (
            ["card", "someone/model", "--repo_id", "a/b"],
            r"'someone/model' cannot (?!.*damaged).*connect",
        ),
        (["supported", "{here}/none"], "a folder that exists"),
        (["supported", "{here}"], r"cannot be loaded: .*config.json"),
        (["report", "{plain}"], "a plain checkpoint.*`graphattn supported {plain}`"),
        (["report", "{plain}/config.json"], "cannot be loaded|config.json"),
        (["card", "{patched}", "--repo_id", "a/b/c"], "--repo_id is 'a/b/c'; allowed: the name of"),
    ],
)
def test_what_it_cannot_do_is_one_line(
    words: list[str],
    says: str,
    patched_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = written(tmp_path / "plain", "BERT")
    places = {"here": tmp_path, "plain": plain, "patched": patched_folder}
    with pytest.raises(SystemExit) as end:
        main([word.format(**places) for word in words])
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2
    assert line.startswith("graphattn")
    assert re.search(says.format(**places), line), line


def test_help_and_wrong_arguments_import_neither_torch_nor_transformers() -> None:
    done = subprocess.run([sys.executable, "-c", QUICK], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"graphattn {ga.__version__}\n")
    assert re.findall(r"^ended (\d)$", done.stdout, re.MULTILINE) == list("00022")
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize("architecture", MODELS)
def test_one_row_a_self_attention_module_in_the_order_of_layers(architecture: str) -> None:
    last = ROWS[architecture].modules - 1
    model = ga.patch_model(MODELS[architecture](), ga.GFSAConfig(w_0=-0.25, layers=(last,)))
    report = ga.report(model)
    assert [row.layer for row in report.rows] == list(range(last + 1))
    assert [row.variant for row in report.rows] == ["plain"] * last + ["gfsa"]
    (name,) = ga.graph_filters(model)
    row = report.rows[-1]
    assert (row.module, row.heads, row.learned) == (name, 4, ("w_K",))
    assert row.scalars == {"w_0": -0.25, "w_1": 1.0, "w_K": [0.0] * 4}


def test_values_backends_and_reasons_are_printed() -> None:
    model = ga.patch_model(MODELS["BERT"](), ga.GFSAConfig())
    with torch.no_grad():
        for _, parameter in ga.filter_parameters(model):
            parameter.copy_(torch.tensor([0.5, -0.25, 0.125, 0.0]))
    text = str(ga.report(model))
    assert "2 of 2 self-attention modules filtered, 8 learned scalars" in text
    assert "w_K* 0.5 -0.25 0.125 0" in text
    assert "shared: auto; else sdpa, eager" in text
    assert len({len(line) for line in text.splitlines()[1:3]}) <= 2
    model = ga.patch_model(MODELS["BERT"](), ga.PLaTConfig(), backend="eager")
    text = str(ga.report(model))
    assert "eager: as requested" in text
    assert "p 1.5 1.5 2.5 2.5" in text
    many = ga.patch_model(
        MODELS["BERT"](hidden_size=48, num_attention_heads=12), ga.PLaTConfig(p=(1.0, 3.0))
    )
    assert "p 1 .. 3, mean 2" in str(ga.report(many))


@pytest.mark.parametrize(
    ("config", "passes", "cost"),
    [
        (
            ga.GainConfig(),
            "2 passes of attention (plain: 2)",
            "0.0011 s and 4 MB more for a sequence of 1024",
        ),
        (
            ga.GFSAConfig(),
            "4 passes of attention (plain: 2)",
            "0.019 s and 37 MB more for a sequence of 1024",
        ),
        (ga.PLaTConfig(layers=(0,)), "1 passes of attention (plain: 1)", "0.023 s and 25 MB more"),
        (ga.FeatScaleConfig(), "filtered, 128 learned scalars\nlayer", ""),  # not estimated
    ],
)
def test_the_cost_follows_passes_heads_and_layers(
    config: ga.VariantConfig, passes: str, cost: str
) -> None:
    """A layer has four heads, a third of those that were measured."""
    text = str(ga.report(ga.patch_model(MODELS["BERT"](), config)))
    assert passes in text
    assert cost in text


def test_html_has_the_same_cells() -> None:
    report = ga.report(ga.patch_model(MODELS["T5"](), ga.LaplacianConfig(trainable=("step",))))
    cells: list[str] = []

    class Reader(HTMLParser):
        def handle_data(self, data: str) -> None:
            cells.append(data)

    Reader().feed(report._repr_html_())
    expected = [cell for row in report.cells for cell in row if cell]
    lines = report.title.count("\n") + 1
    assert cells[:lines] == report.title.split("\n")
    assert cells[lines:] == [*report.headings, *expected]
