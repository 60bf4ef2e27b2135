"""`finetune/speech_recognition.py` as users run it: what it measures, saves and continues."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import pytest
import soundfile
import tiny_speech
import torch
from glue_runs import written
from hub_server import pushed
from torch.nn import functional
from transformers import CONFIG_MAPPING, AutoModelForCTC, AutoProcessor, pipeline

import hf_graphattn as ga
from finetune import speech_recognition
from finetune.objectives.ctc import CTC

GFSA = ("--variant", "gfsa", "--order", "3", "--w_K", "0.3")


def run(folder: Path, *flags: str, texts: tuple[str, ...] = tiny_speech.TEXTS) -> dict[str, Any]:
    """The results of one epoch on a folder of recordings, of which the last third is measured."""
    if not (folder / "sounds").exists():
        tiny_speech.save_folder(folder / "sounds", texts)
    values = {
        "dataset_name": folder / "sounds",
        "validation_split_percentage": 34,
        "output_dir": folder / "out",
        "per_device_train_batch_size": 3,
        "per_device_eval_batch_size": 2,
        "num_train_epochs": 1,
        "learning_rate": 0.01,
    }
    argv = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    return speech_recognition.main([*argv, *flags])


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


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        ("wav2vec2", ()),
        ("wav2vec2", GFSA),
        # One at a time: the convolutions of some hear a little of the padding.
        ("hubert", (*GFSA, "--per_device_eval_batch_size", "1")),
        ("wav2vec2-conformer", (*GFSA, "--per_device_eval_batch_size", "1")),
    ],
)
def test_measured_is_what_the_saved_model_hears_in_each_file_alone(
    tmp_path: Path, kind: str, flags: tuple[str, ...]
) -> None:
    """Though rows are padded to batches, and read in another order."""
    start = untrained(tmp_path)
    own = {**tiny_speech.config().to_diff_dict(), "model_type": kind}
    CONFIG_MAPPING[kind](**own).save_pretrained(tmp_path / "config")
    results = run(tmp_path, *start, *flags)
    assert written(tmp_path)["eval_wer"] == results["eval_wer"]
    assert results["filter_scalars"] == (2 * 2 if flags else 0)
    model = ga.from_pretrained(tmp_path / "out", auto_class=AutoModelForCTC) if flags else None
    model = model or AutoModelForCTC.from_pretrained(tmp_path / "out")
    assert model.config.model_type == kind
    texts = tiny_speech.TEXTS[-2:]
    hears, nats = heard(model, tmp_path, texts)
    assert results["eval_wer"] == jiwer.wer(list(texts), hears)
    assert results["eval_cer"] == jiwer.cer(list(texts), hears)
    assert results["eval_loss"] == pytest.approx(np.mean(nats), rel=1e-4)
    lines = (tmp_path / "out" / "eval_predictions.tsv").read_text().splitlines()[1:]
    assert lines == [f"{i}\t{a}\t{b}" for i, (a, b) in enumerate(zip(hears, texts, strict=True))]
    better = results["greater_is_better"]
    assert [better[f"eval_{name}"] for name in ("loss", "wer", "cer")] == [False] * 3


RANDOM = {
    "hidden_dropout": 0.2,
    "layerdrop": 0.3,
    "mask_time_prob": 0.5,
    "mask_time_length": 2,
    "mask_feature_prob": 0.3,
    "mask_feature_length": 2,
}


def test_a_run_that_was_killed_goes_on_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all that is drawn in training: SpecAugment's masks come from numpy's random state."""
    start = untrained(tmp_path, **RANDOM)
    flags = (*start, *GFSA, "--num_train_epochs", "3", "--checkpointing_steps", "1")
    whole = run(tmp_path, *flags, "--output_dir", str(tmp_path / "whole"))
    loss, calls = CTC.loss, itertools.count()

    def until_killed(self: CTC, model: Any, batch: Any) -> torch.Tensor:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return loss(self, model, batch)

    with monkeypatch.context() as patched:
        patched.setattr(CTC, "loss", until_killed)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, *flags)
    np.random.seed(5)
    resumed = run(tmp_path, *flags, "--resume_from_checkpoint", "last")
    assert resumed["history"] == whole["history"]
    saved = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "out")]
    assert saved[0] == saved[1]


def test_a_saved_model_is_trained_on_with_its_own_vocabulary(tmp_path: Path) -> None:
    run(tmp_path, *untrained(tmp_path), *GFSA)
    (tmp_path / "out").rename(tmp_path / "first")
    flags = ("--model_name_or_path", str(tmp_path / "first"), "--freeze_feature_encoder")
    found = run(tmp_path, *flags, "--hidden_dropout", "0.1")
    assert found["filter_scalars"]
    one, two = (
        ga.from_pretrained(tmp_path / name, auto_class=AutoModelForCTC) for name in ("first", "out")
    )
    assert two.config.hidden_dropout == 0.1
    for name, weight in one.named_parameters():
        is_frozen = name.startswith("wav2vec2.feature_extractor")
        assert torch.equal(weight, two.get_parameter(name)) is is_frozen, name
    vocabularies = [
        (tmp_path / name / "vocab.json").read_text("utf-8") for name in ("first", "out")
    ]
    assert vocabularies[0] == vocabularies[1]


def test_a_new_vocabulary_has_a_new_head_of_any_size(tmp_path: Path) -> None:
    """Also where it has as many characters as the old one."""
    texts = tuple(text.translate(str.maketrans("acd", "xyz")) for text in tiny_speech.TEXTS[:4])
    tiny_speech.save_model(tmp_path / "model", texts, initializer_range=3.0)
    flags = ("--model_name_or_path", str(tmp_path / "model"), "--learning_rate", "0")
    run(tmp_path, *flags, "--tokenizer_name", "char")
    old, new = (AutoModelForCTC.from_pretrained(tmp_path / name) for name in ("model", "out"))
    assert old.lm_head.weight.shape == new.lm_head.weight.shape
    assert new.lm_head.weight.abs().max() < 1 < old.lm_head.weight.abs().max()
    layer = "wav2vec2.feature_projection.projection.weight"
    assert torch.equal(old.get_parameter(layer), new.get_parameter(layer))


def test_a_group_norm_model_gets_no_mask_and_writes_of_every_frame(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    overrides = "hidden_size=16,num_hidden_layers=1,num_attention_heads=2,intermediate_size=16"
    small = (
        f"{overrides},num_conv_pos_embeddings=4,num_conv_pos_embedding_groups=2,mask_time_prob=0"
    )
    found = run(tmp_path, "--model_type", "wav2vec2", "--config_overrides", small)
    processor = AutoProcessor.from_pretrained(tmp_path / "out")
    assert not processor.feature_extractor.return_attention_mask
    assert "the error rates on per_device_eval_batch_size" in caplog.text
    assert np.isfinite(found["eval_loss"])


def test_hidden_transcripts_are_written_for_the_test_split(tmp_path: Path) -> None:
    tiny_speech.save_folder(tmp_path / "sounds")
    table = tmp_path / "sounds" / "test.csv"
    table.write_text("file_name\n5.wav\n0.wav\n")
    flags = ("--train_file", str(tmp_path / "sounds" / "metadata.csv"), "--do_predict")
    data = ("--test_file", str(table), "--validation_split_percentage", "34")
    output = ("--output_dir", str(tmp_path / "out"), "--num_train_epochs", "1")
    found = speech_recognition.main([*untrained(tmp_path), *flags, *data, *output])
    assert not [name for name in found if name.startswith("test_")]
    lines = (tmp_path / "out" / "predictions.tsv").read_text().splitlines()
    model = AutoModelForCTC.from_pretrained(tmp_path / "out")
    written, _ = heard(model, tmp_path, ("dog",))
    assert lines[:2] == ["index\tprediction", f"0\t{written[0]}"]
    assert len(lines) == 3


def test_batches_are_of_like_lengths_and_durations_as_asked(tmp_path: Path) -> None:
    flags = ("--group_by_length", "--min_duration_in_seconds", "0.17", "--max_train_steps", "1")
    found = run(tmp_path, *untrained(tmp_path), *flags, "--per_device_train_batch_size", "2")
    assert found["data"]["train"]["rows"] == 4
    log = (tmp_path / "out" / "train_log.jsonl").read_text().splitlines()
    # Of the four training rows, of 150 to 240 samples, the first is too short; the longest leads.
    assert json.loads(log[0])["tokens"] - 240 in (180, 210)
    long = ("--min_duration_in_seconds", "9", "--overwrite_output_dir")
    with pytest.raises(ValueError, match=r"\(9.0, None\); allowed: those of training"):
        run(tmp_path, *untrained(tmp_path), *long)


@pytest.mark.full
def test_a_patched_model_is_pushed_as_one_that_hears(tmp_path: Path) -> None:
    """transformers' own pipeline writes with what is in the repository what the run wrote."""
    tiny_speech.save_folder(tmp_path / "sounds")
    flags = (*untrained(tmp_path), *GFSA, "--dataset_name", str(tmp_path / "sounds"))
    output = ("--output_dir", str(tmp_path / "out"), "--validation_split_percentage", "34")
    push = ("--max_train_steps", "1", "--push_to_hub", "--hub_model_id", "user/speech")
    argv = (*flags, *output, *push)
    files = pushed("speech_recognition", argv, "user/speech", tmp_path / "home")
    card = files["README.md"].decode()
    assert "pipeline_tag: automatic-speech-recognition" in card
    assert "type: wer" in card
    (tmp_path / "pulled").mkdir()
    for name, content in files.items():
        (tmp_path / "pulled" / name).write_bytes(content)
    processor = AutoProcessor.from_pretrained(tmp_path / "pulled")
    hears = pipeline(
        "automatic-speech-recognition",
        model=ga.from_pretrained(tmp_path / "pulled"),
        tokenizer=processor.tokenizer,
        feature_extractor=processor.feature_extractor,
    )
    sounds = [soundfile.read(tmp_path / "sounds" / f"{i}.wav")[0] for i in (4, 5)]
    lines = (tmp_path / "out" / "eval_predictions.tsv").read_text().splitlines()[1:]
    assert [hears(sound)["text"] for sound in sounds] == [line.split("\t")[1] for line in lines]
