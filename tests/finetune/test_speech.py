"""`finetune/speech_recognition.py` as users run it: what it measures, saves and continues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import pytest
import soundfile
import tiny_speech
import torch
from torch.nn import functional
from transformers import AutoModelForCTC, AutoProcessor

import hf_graphattn as ga
from finetune import speech_recognition

GFSA = ("--variant", "gfsa", "--order", "3", "--w_K", "0.3")


def run(folder: Path, *flags: str, texts: tuple[str, ...] = tiny_speech.TEXTS) -> dict[str, Any]:
    """The results of one epoch on a folder of recordings, of which the last third is measured."""
    if not (folder / "sounds").exists():
        tiny_speech.save_folder(folder / "sounds", texts)
    given = {
        "dataset_name": folder / "sounds",
        "validation_split_percentage": 34,
        "output_dir": folder / "out",
        "per_device_train_batch_size": 3,
        "per_device_eval_batch_size": 2,
        "num_train_epochs": 1,
        "learning_rate": 0.01,
    }
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    return speech_recognition.main([*words, *flags])


def untrained(folder: Path, **settings: Any) -> tuple[str, str]:
    """The flags of a model from nothing."""
    return ("--config_name", str(tiny_speech.save_config(folder / "config", **settings)))


def heard(model: Any, folder: Path, texts: tuple[str, ...]) -> tuple[list[str], list[float]]:
    """What a model writes of each of the last files alone, and its nats a character."""
    processor, blank = AutoProcessor.from_pretrained(folder / "out"), model.config.pad_token_id
    files = sorted((folder / "sounds").glob("*.wav"))[-len(texts) :]
    written, nats = [], []
    for path, text in zip(files, texts, strict=True):
        samples, rate = soundfile.read(path, dtype="float32")
        inputs = processor(samples, sampling_rate=rate, return_tensors="pt")
        with torch.no_grad():
            (logits,) = model.eval()(inputs["input_values"]).logits
        kept = [i for i in torch.unique_consecutive(logits.argmax(-1)).tolist() if i != blank]
        tokens = processor.tokenizer.convert_ids_to_tokens(kept)
        written.append(" ".join("".join(tokens).replace("|", " ").split()))
        target = torch.tensor(processor.tokenizer(text)["input_ids"])
        loss = functional.ctc_loss(
            logits.log_softmax(-1), target, [len(logits)], [len(target)], blank, reduction="sum"
        )
        nats.append(float(loss) / len(text))
    return written, nats


@pytest.mark.parametrize("flags", [(), GFSA], ids=["plain", "gfsa"])
def test_measured_is_what_the_saved_model_hears_in_each_file_alone(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """Though rows are padded to batches, and read in another order."""
    results = run(tmp_path, *untrained(tmp_path), *flags)
    assert tiny_speech.written(tmp_path / "out")["eval_wer"] == results["eval_wer"]
    model = ga.from_pretrained(tmp_path / "out", auto_class=AutoModelForCTC) if flags else None
    model = model or AutoModelForCTC.from_pretrained(tmp_path / "out")
    texts = tiny_speech.TEXTS[-2:]
    written, nats = heard(model, tmp_path, texts)
    assert results["eval_wer"] == jiwer.wer(list(texts), written)
    assert results["eval_cer"] == jiwer.cer(list(texts), written)
    assert results["eval_loss"] == pytest.approx(np.mean(nats), rel=1e-4)
    lines = (tmp_path / "out" / "eval_predictions.tsv").read_text().splitlines()[1:]
    assert lines == [f"{i}\t{a}\t{b}" for i, (a, b) in enumerate(zip(written, texts, strict=True))]
    better = results["greater_is_better"]
    assert [better[f"eval_{name}"] for name in ("loss", "wer", "cer")] == [False] * 3
