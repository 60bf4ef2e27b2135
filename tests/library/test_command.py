"""`graphattn`: what its commands print, and what they refuse, in one line with exit status 2."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import MODELS

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
    words = ["card", str(patched_folder), "--repo_id", "someone/filtered"]
    main(words)
    card = f"{ga.model_card(model, 'someone/filtered')}"
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
        (["report", "{plain}"], "a plain checkpoint"),
        (["report", "{plain}/config.json"], "cannot be loaded|config.json"),
        (["card", "{patched}", "--repo_id", "a/b/c"], "--repo_id is 'a/b/c'; allowed: the name of"),
        (["card", "{patched}"], "card: error: .* required: --repo_id"),
        (["report"], "report: error: .* required: model"),
        (["report", "{plain}", "--loud"], "unrecognized arguments: --loud"),
        (["what"], "invalid choice: 'what'"),
        ([], "required: command"),
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
    assert re.search(says, line), line


def test_help_and_wrong_arguments_import_neither_torch_nor_transformers() -> None:
    done = subprocess.run([sys.executable, "-c", QUICK], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"graphattn {ga.__version__}\n")
    assert re.findall(r"^ended (\d)$", done.stdout, re.MULTILINE) == list("00022")
    assert len(done.stderr.splitlines()) == 2
