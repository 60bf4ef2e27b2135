"""Bad recordings, transcripts and flags of speech recognition: one line each, before training."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_speech
from datasets import Dataset
from tiny_speech import wav, wave

from finetune import speech_recognition
from finetune.data import speech
from finetune.engine.trainer import Trainer
from finetune.errors import Refused
from finetune.settings.speech import SpeechDataArguments


@pytest.fixture(autouse=True)
def _never_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Trainer) -> None:
        raise AssertionError("it trains")

    monkeypatch.setattr(Trainer, "train", fail)


def run(folder: Path, *flags: str, start: bool = True) -> None:
    own = ("--config_name", str(tiny_speech.save_config(folder / "config"))) if start else ()
    output = ("--output_dir", str(folder / "out"))
    speech_recognition.main([*own, *output, *flags])


def on_folder(folder: Path, *flags: str, start: bool = True) -> None:
    where = ("--dataset_name", str(folder / "sounds"), "--validation_split_percentage", "34")
    run(folder, *where, *flags, start=start)


def refused(expected: tuple[str, ...], call: Callable[[], Any]) -> None:
    with pytest.raises(Refused) as error:
        call()
    message = str(error.value)
    assert "\n" not in message
    for text in expected:
        assert text in message, message


def written(path: str, content: bytes | str) -> Callable[[Path], None]:
    """What replaces a file of the folder."""

    def write(folder: Path) -> None:
        data = content.encode() if isinstance(content, str) else content
        (folder / path).write_bytes(data)

    return write


@pytest.mark.parametrize("length", [0, 2**32 - 1])
def test_a_wav_file_of_unknown_length_is_read_to_its_end(length: int) -> None:
    found = wav(wave(1, 200))
    streamed = found[:4] + length.to_bytes(4, "little") + found[8:]
    assert np.array_equal(speech.samples(streamed, 1000), speech.samples(found, 1000))


def row(number: int, line: str) -> Callable[[Path], None]:
    """What replaces a row of the table, counted from 1."""

    def write(folder: Path) -> None:
        lines = (folder / "metadata.csv").read_text().splitlines()
        lines[number] = line
        (folder / "metadata.csv").write_text("\n".join(lines) + "\n")

    return write


NOT_FINITE = np.where(np.arange(300) == 7, np.nan, 0.1)
BAD_ROWS = {
    "no such file": (row(2, "none.wav,a dog"), ("none.wav", "row 2 of", "unreadable", "No such")),
    "text as wav": (
        written("1.wav", "what is this"),
        ("1.wav of row 2 of", "libsndfile", "LibsndfileError: Error opening", "Format not"),
    ),
    "cut off": (
        lambda folder: os.truncate(folder / "1.wav", (folder / "1.wav").stat().st_size - 40),
        ("1.wav of row 2 of", "unreadable", "ValueError: it is cut off: "),
    ),
    "two tables": (
        written("metadata.jsonl", "{}"),
        ("one table; it has metadata.csv, metadata.jsonl",),
    ),
    "no samples": (written("5.wav", wav(np.zeros(0))), ("5.wav of row 6 of", "no samples")),
    "nan": (written("1.wav", wav(NOT_FINITE)), ("1.wav of row 2 of", "NaN or infinite")),
    "too loud": (
        written("1.wav", wav(np.full(300, 1e30))),
        ("1.wav of row 2 of", "unreadable", "a sample of 1e+30, where full scale is 1"),
    ),
    "too short": (
        written("1.wav", wav(wave(1, 12))),
        ("row 2 of", "0.012 seconds long: 0 frames", "5 frames or more", "transcript"),
    ),
    "too short for its text": (
        row(2, f"1.wav,{'a dog ' * 9}"),
        ("0.18 seconds long: 21 frames", "53 frames or more, for its transcript", "min_duration"),
    ),
    "repeated": (row(2, f"1.wav,{'o' * 12}"), ("21 frames", "23 frames or more")),
    "empty transcript": (row(2, "1.wav,"), ("row 2 of", "column text", "None", "drop the row")),
    "blank transcript": (row(2, "1.wav, "), ("row 2 of", "' '", "not ignored")),
    "empty cell": (row(2, ",a dog"), ("the recording of row 2 of", "The cell is empty")),
    "the word delimiter": (
        row(2, "1.wav,a|dog"),
        ("row 2 of", "is |; allowed: a, c", "t, and spaces", "chars_to_ignore"),
    ),
    "the blank": (row(2, "1.wav,a [PAD]"), ("row 2 of", "is [PAD]; allowed:")),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_rows(tmp_path: Path, name: str) -> None:
    change, words = BAD_ROWS[name]
    change(tiny_speech.save_folder(tmp_path / "sounds"))
    refused(words, lambda: on_folder(tmp_path))


FLAGS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "no column": (("--audio_column_name", "sound"), ("'sound'", "file_name, text")),
    "no such text": (("--text_column_name", "said"), ("text_column_name", "file_name, text")),
    "text as audio": (("--audio_column_name", "text"), ("a cat of row 1", "No such file")),
    "all ignored": (("--chars_to_ignore", *"acdeghost"), ("row 1 of", "'a cat'", "not ignored")),
    "no share": (("--validation_split_percentage", "1"), ("leaves rows on both sides of 6",)),
}


@pytest.mark.parametrize("name", FLAGS)
def test_bad_flags(tmp_path: Path, name: str) -> None:
    flags, words = FLAGS[name]
    tiny_speech.save_folder(tmp_path / "sounds")
    refused(words, lambda: on_folder(tmp_path, *flags))


def test_characters_that_a_checkpoint_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_speech.save_folder(tmp_path / "sounds")
    known = [text.upper() for text in tiny_speech.TEXTS]
    model = ("--model_name_or_path", str(tiny_speech.save_model(tmp_path / "model", known)))
    words = ("row 1 of", "is a, c, d, e, g, h, o, t; allowed:", "A, C, D", "--text_case")
    refused(words, lambda: on_folder(tmp_path, *model, start=False))
    with pytest.raises(AssertionError, match="it trains"):
        on_folder(tmp_path, *model, "--text_case", "upper", start=False)
    row(6, "5.wav,dogs?")(tmp_path / "sounds")
    caplog.set_level(logging.WARNING)
    with pytest.raises(AssertionError, match="it trains"):
        on_folder(tmp_path, *model, "--text_case", "upper", start=False)
    assert "The vocabulary lacks ? (the transcript of row 6 of" in caplog.text


def test_an_empty_folder_and_a_source_without_recordings(tmp_path: Path) -> None:
    (tmp_path / "sounds").mkdir()
    refused(("dataset_name", "sounds", "allowed:"), lambda: on_folder(tmp_path))
    (tmp_path / "sounds" / "metadata.csv").write_text("file_name,text\n")
    refused(("metadata.csv", "a row or more"), lambda: on_folder(tmp_path))
    (tmp_path / "sounds" / "metadata.csv").write_text("audio,text\n3,a cat\n4,a dog\n5,cat\n")
    refused(("column audio of split", "Unsupported cast from int64"), lambda: on_folder(tmp_path))
    refused(("task_name", "morse"), lambda: run(tmp_path))


def test_other_rates_and_channels_are_heard_alike() -> None:
    times = np.arange(4000) / 2000
    tone = 0.5 * np.sin(2 * np.pi * 100 * times)
    both = np.stack([tone + 0.1, tone - 0.1], axis=1)
    heard = speech.samples(wav(both, 2000), 1000)
    assert heard.dtype == np.float32
    assert heard.shape == (2000,)
    np.testing.assert_allclose(heard[100:-100], tone[::2][100:-100], atol=2e-3)
    assert speech.samples(wav(tone, 2000), 3000).shape == (6000,)
    too_high = 0.5 * np.sin(2 * np.pi * 800 * times)
    assert np.abs(speech.samples(wav(too_high, 2000), 1000)[100:-100]).max() < 0.01


def test_a_recording_that_changes_changes_the_digest(tmp_path: Path) -> None:
    folder = tiny_speech.save_folder(tmp_path / "sounds")
    arguments = SpeechDataArguments(dataset_name=str(folder), validation_split_percentage=34)
    digests = []
    for _ in range(2):
        _, rows = speech.load(arguments, predict=False)
        digests.append({name: speech.digest(split) for name, split in rows.items()})
        (folder / "1.wav").write_bytes(wav(wave(9, 180)))
    assert digests[0]["train"] != digests[1]["train"]
    assert digests[0]["validation"] == digests[1]["validation"]


@pytest.mark.parametrize("kind", ["bytes", "struct"])
def test_recordings_in_a_table_are_those_in_files(tmp_path: Path, kind: str) -> None:
    folder = tiny_speech.save_folder(tmp_path / "sounds")
    content = [(folder / f"{i}.wav").read_bytes() for i in range(len(tiny_speech.TEXTS))]
    cells = content if kind == "bytes" else [{"bytes": x, "path": None} for x in content]
    rows = Dataset.from_dict({"audio": cells, "sentence": list(tiny_speech.TEXTS)})
    path = tmp_path / "train.parquet"
    rows.to_parquet(path)
    share = {"validation_split_percentage": 34}
    _, ours = speech.load(SpeechDataArguments(train_file=str(path), **share), False)
    _, theirs = speech.load(SpeechDataArguments(dataset_name=str(folder), **share), False)
    for name, split in ours.items():
        assert split["content"][:] == theirs[name]["content"][:]
        assert split["text"][:] == theirs[name]["text"][:]
