"""`graphattn diagnose`, as it is typed and as it refuses."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_code
import warm
from PIL import Image
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
)

import hf_graphattn as ga

pytest.importorskip("matplotlib")
from cards import KINDS
from diagnosing import Reader, assert_pictures

from hf_graphattn.diagnostics.plots import FIGURES
from hf_graphattn.shell.diagnose import (
    _named,
    image_batches,
    image_files,
    load_tokenizer,
    token_ids,
)
from hf_graphattn.shell.main import main

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "finetune" / "demo"


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("Return the mean of the data.\n\nRaise an error if it is empty.\n" * 2)
    return path


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo BERT with a filter that does something, saved with its tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "filtered"
    model = AutoModelForMaskedLM.from_pretrained(DEMO / "bert")
    ga.patch_model(model, ga.GFSAConfig(order=4, w_0=-0.1, w_K=0.2))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(DEMO / "bert").save_pretrained(folder)
    return folder


def test_the_command_compares_models(patched: Path, text_file: Path, tmp_path: Path) -> None:
    """As it is typed: plain and patched side by side, page and numbers written."""
    out, numbers = tmp_path / "page.html", tmp_path / "numbers.json"
    arguments = ["--model", DEMO / "bert", "--model", patched, "--text", text_file]
    arguments += ["--output", out, "--json", numbers, "--max_sequences", 3]
    run = [warm.python("transformers"), "-m", "hf_graphattn.diagnose", *map(str, arguments)]
    done = subprocess.run(run, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert "note:" not in done.stderr  # one tokenizer
    assert done.stdout.splitlines() == [f"wrote {out}", f"wrote {numbers}"]
    assert_pictures(out.read_text(encoding="utf-8"), len(FIGURES))
    read = json.loads(numbers.read_text(encoding="utf-8"))
    parts = [read[name]["parts"][0] for name in ("bert", "filtered")]
    assert [set(part["variants"]) for part in parts] == [{"plain"}, {"gfsa"}]
    assert [part["sequences"] for part in parts] == [3, 3]
    first = [part["by_depth"]["cosine"]["mean"] for part in parts]
    assert first[0][0] == first[1][0]  # the embeddings are the same
    assert first[0][1] != first[1][1]


def test_the_command_reads_images(tmp_path: Path) -> None:
    """Patches and the class token are the tokens; the images are of the whole folder."""
    plain, processor, _ = KINDS["image"][1]()
    plain.save_pretrained(tmp_path / "plain")
    filtered = ga.patch_model(plain, ga.GFSAConfig(order=3, w_K=0.4))
    filtered.save_pretrained(tmp_path / "gfsa")
    numbers = np.random.default_rng(0)
    for i in range(7):
        folder = tmp_path / "images" / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = numbers.integers(0, 256, (8 + i, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    arguments = ["--images", tmp_path / "images", "--max_sequences", 4, "--batch_size", 3]
    arguments += ["--output_dir", tmp_path / "a" / "new", "--json", tmp_path / "numbers.json"]
    for name in ("plain", "gfsa"):
        processor.save_pretrained(tmp_path / name)
        arguments += ["--model", tmp_path / name]
    main(["diagnose", *map(str, arguments)])
    page = tmp_path / "a" / "new" / "diagnosis.html"
    assert_pictures(page.read_text(encoding="utf-8"), len(FIGURES))
    read = json.loads((tmp_path / "numbers.json").read_text(encoding="utf-8"))
    for name in ("plain", "gfsa"):
        (part,) = read[name]["parts"]
        assert (part["sequences"], part["tokens"], part["variants"][0]) == (4, 4 * 5, name)
    files = image_files(str(tmp_path / "images"), 4)
    assert [file.name for file in files] == ["0.png", "4.png", "1.png", "5.png"]
    (tmp_path / "images" / "a" / "0.png").write_text("no image")
    with pytest.raises(SystemExit):
        main(["diagnose", *map(str, arguments)])


def test_images_are_read_upright(tmp_path: Path) -> None:
    pixels, exif = np.arange(6 * 9 * 3, dtype=np.uint8).reshape(6, 9, 3), Image.Exif()
    exif[0x0112] = 6  # held with its right side down
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    model = SimpleNamespace(config=SimpleNamespace(num_channels=3))

    def processor(images: list[Image.Image], return_tensors: str) -> dict[str, object]:
        return {"pixel_values": [np.asarray(image) for image in images]}

    (read,) = next(image_batches(model, processor, [tmp_path / "a.png"], 1))["pixel_values"]
    np.testing.assert_array_equal(read, np.rot90(pixels, -1))


def test_the_command_takes_decoders_and_says_that_tokenizers_differ(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    arguments = ["--text", text_file, "--output", out, "--max_sequences", 2, "--max_length", 9999]
    for folder in (DEMO / "gpt2", tiny_code.save_t5(tmp_path / "t5")):
        arguments += ["--model", folder]
    main(["diagnose", *map(str, arguments), "--whole_text"])
    said = capsys.readouterr().err
    assert "note: The models have different tokenizers" in said
    text = out.read_text(encoding="utf-8")
    assert_pictures(text, len(FIGURES) - 1)  # plain models have no scalars
    words = " ".join(Reader(text).words)
    assert "different tokenizers" in words
    for name in ("gpt2", "t5, encoder", "t5, decoder"):
        assert name in words


def test_a_long_text_is_cut_into_sequences(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(DEMO / "bert"))
    text = "Return the mean of the data. " * 40
    ids = token_ids(tokenizer, [text], 20, 5)
    assert [len(each) for each in ids] == [20] * 5
    every = tokenizer(text, add_special_tokens=False)["input_ids"]
    inner = [token for each in ids for token in each if token not in tokenizer.all_special_ids]
    assert inner == every[: len(inner)]


def test_models_are_called_by_their_folders_or_paths(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    several = ["c/cola/none", "c/cola/gfsa"]
    assert _named(several) == dict(zip(["none", "gfsa"], several, strict=True))
    same = ["bert", "runs/bert"]
    assert _named(same) == dict(zip(same, same, strict=True))
    monkeypatch.chdir(tmp_path)
    assert _named(["."]) == {tmp_path.name: "."}
    with pytest.raises(ga.GraphAttentionError, match="each model once"):
        _named(["bert", "bert"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "{none}"], "a folder that exists"),
        (["--model", "{folder}"], "config.json"),
        (["--model", "{adapter}"], r"a PEFT adapter: .*load_peft.*merge_and_unload"),
        (["--model", "{bert}", "--model", "{bert}"], "allowed: each model once"),
        (["--model", "{bert}", "--text", "{none}"], "No such file"),
        (["--model", "{bert}", "--text", "{empty}"], "this one is empty"),
        (["--model", "{bert}", "--images", "{folder}"], "--text, --images is .*one of them"),
        (["--model", "{bert}", "--max_length", "0"], "0 is not at least 1"),
    ],
)
def test_the_command_says_what_it_cannot_use(
    arguments: list[str],
    words: str,
    text_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "empty.txt").write_text(" \n\n")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    places = {"none": tmp_path / "none", "folder": tmp_path}
    places |= {"empty": tmp_path / "empty.txt", "adapter": tmp_path / "adapter"}
    own = [argument.format(bert=DEMO / "bert", **places) for argument in arguments]
    with pytest.raises(SystemExit) as end:
        main(["diagnose", "--text", str(text_file), *own])
    assert end.value.code == 2
    assert re.search(words, capsys.readouterr().err)
