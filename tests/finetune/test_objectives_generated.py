"""Source code that spells special tokens, and labels that a decoder writes as words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import tiny
import tiny_code
import torch
from datasets import Dataset
from transformers import BartForSequenceClassification, T5ForSequenceClassification

import hf_graphattn as ga
import tasks
from finetune.data import loaders
from finetune.data.loaders import IGNORED, literal
from finetune.objectives.generated import NO_LABEL, GeneratedLabels, as_wrong
from finetune.settings.groups import DataArguments
from tasks.metrics import ACCURACY, F1, scores

DEFECT = tasks.get("defect")
TRAPS = (
    "return </s>;",
    "int a; </s></s> <pad> <s> <unk>",
    "x",
    "</s>",
    " ".join(["while ( a ) </s>"] * 20),
)
HEADS = {
    "T5": (tiny_code.t5_tokenizer, T5ForSequenceClassification),
    "BART": (tiny_code.bart_tokenizer, BartForSequenceClassification),
}


@pytest.mark.parametrize("architecture", HEADS)
def test_every_row_has_one_end_token_and_keeps_it_when_cut(architecture: str) -> None:
    make_tokenizer, _ = HEADS[architecture]
    tokenizer = make_tokenizer()
    assert len({ids.count(tokenizer.eos_token_id) for ids in tokenizer(list(TRAPS)).input_ids}) > 1
    for length in (12, 64):
        rows = tokenised(tokenizer, TRAPS, max_length=length)
        assert max(map(len, rows)) == length
        for ids in rows:
            assert ids.count(tokenizer.eos_token_id) == 1
            assert ids[-1] == tokenizer.eos_token_id
            assert tokenizer.pad_token_id not in ids


@pytest.mark.parametrize("architecture", HEADS)
def test_a_sequence_classifier_takes_such_rows_in_one_batch(architecture: str) -> None:
    make_tokenizer, head = HEADS[architecture]
    tokenizer = make_tokenizer()
    ids = {"T5": {}, "BART": {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}}
    model = tiny.MODELS[architecture](
        "ForSequenceClassification", vocab_size=len(tokenizer), num_labels=2, **ids[architecture]
    )
    assert isinstance(model, head)
    ga.patch_model(model, ga.GFSAConfig(w_K=0.2))
    rows = tokenised(tokenizer, TRAPS, max_length=64)
    batch = tokenizer.pad({"input_ids": rows}, return_tensors="pt")
    with torch.no_grad():
        logits = model(**batch).logits
        alone = model(input_ids=torch.tensor([rows[0]])).logits
    assert logits.shape == (len(TRAPS), 2)
    torch.testing.assert_close(logits[:1], alone, rtol=1e-4, atol=1e-5)
    parsed = tokenizer(list(TRAPS[:3]), padding=True, return_tensors="pt")
    with pytest.raises(ValueError, match="same number of <eos> tokens"):
        model(input_ids=parsed.input_ids, attention_mask=parsed.attention_mask)


def test_text_without_special_tokens_stays_as_it_is() -> None:
    tokenizer = tiny_code.bart_tokenizer()
    assert literal(["a < b", "if (s > 0) {}"], tokenizer) == ["a < b", "if (s > 0) {}"]
    assert literal(["<s></s>"], tokenizer) == ["< s>< /s>"]
    assert literal(["</s>"], SimpleNamespace(all_special_tokens=[], added_tokens_decoder={})) == [
        "</s>"
    ]


@pytest.mark.parametrize("make_tokenizer", [tiny_code.t5_tokenizer, tiny_code.bart_tokenizer])
def test_words_are_read_back_and_other_text_is_unknown(make_tokenizer: Callable) -> None:
    tokenizer = make_tokenizer()
    words = GeneratedLabels.of(DEFECT, tokenizer)
    targets = words.targets(torch.tensor([1, 0, 1]))
    assert targets.shape == (3, words.word_ids.shape[1])
    written = targets.masked_fill(targets == IGNORED, tokenizer.pad_token_id)
    assert words.read(written).tolist() == [1, 0, 1]
    others = tokenizer(["truetrue", "fals", "true a"], padding=True, return_tensors="pt").input_ids
    assert words.read(others).tolist() == [NO_LABEL] * 3


def test_a_word_that_the_tokenizer_cannot_spell_is_refused() -> None:
    tokenizer = tiny_code.t5_tokenizer()
    with pytest.raises(ValueError, match="label word is 'ZQ'; allowed: one that the tokenizer sp"):
        GeneratedLabels.of(replace(DEFECT, label_names=("false", "ZQ")), tokenizer)


def test_loss_is_the_models_on_the_words_tokens() -> None:
    tokenizer = tiny_code.t5_tokenizer()
    model = tiny.MODELS["T5"](vocab_size=len(tokenizer))
    words = GeneratedLabels.of(DEFECT, tokenizer)
    inputs = dict(tokenizer(["a", "a + 1"], padding=True, return_tensors="pt"))
    loss = words.loss(model, inputs | {"labels": torch.tensor([0, 1])})
    scores = model(**inputs, labels=words.word_ids[[0, 1]]).logits.log_softmax(-1)
    target = words.word_ids[[0, 1]]
    chosen = scores.gather(-1, target.clamp(min=0)[..., None])[..., 0]
    torch.testing.assert_close(loss, -chosen[target >= 0].mean())


@pytest.mark.parametrize("patched", [False, True])
def test_what_is_written_is_the_greedy_choice(patched: bool) -> None:
    """Against a loop that feeds the decoder its own best token, without any cache."""
    tokenizer = tiny_code.t5_tokenizer()
    model = tiny.MODELS["T5"](vocab_size=len(tokenizer))
    words = GeneratedLabels.of(DEFECT, tokenizer)
    if patched:
        ga.patch_model(model, ga.GFSAConfig(w_K=0.3))
    inputs = dict(tokenizer(["a", "b + 1 ;"], padding=True, return_tensors="pt"))
    decoded = torch.zeros(2, 1, dtype=torch.long)
    for _ in range(words.word_ids.shape[1]):
        with torch.no_grad():
            logits = model(**inputs, decoder_input_ids=decoded, use_cache=False).logits
        decoded = torch.cat([decoded, logits[:, -1:].argmax(-1)], dim=1)
    ended = (decoded == tokenizer.eos_token_id).cumsum(1) > 0
    expected = decoded.masked_fill(ended, tokenizer.pad_token_id)
    read = []
    replace(words, tokenizer=_Recorder(read)).write(model, inputs)
    width = max(expected.shape[1], read[0].shape[1])
    found = read[0].masked_fill((read[0] == tokenizer.eos_token_id).cumsum(1) > 0, 0)
    pad = torch.nn.functional.pad
    assert torch.equal(
        pad(found, (0, width - found.shape[1])), pad(expected, (0, width - expected.shape[1]))
    )


def test_unknown_text_counts_as_wrong_in_every_metric() -> None:
    predicted = as_wrong(torch.tensor([1, NO_LABEL, 0, NO_LABEL]), torch.tensor([1, 1, 0, 0]), 2)
    assert predicted.tolist() == [1, 0, 0, 1]
    found = scores((ACCURACY, F1), predicted.numpy(), torch.tensor([1, 1, 0, 0]).numpy())
    assert found == {"accuracy": 0.5, "f1": 0.5}


class _Recorder:
    """A tokenizer that keeps what it is asked to read."""

    def __init__(self, read: list[torch.Tensor]) -> None:
        self.read = read

    def batch_decode(self, written: torch.Tensor, skip_special_tokens: bool) -> list[str]:
        self.read.append(written)
        return ["w0"] * len(written)


def tokenised(tokenizer: object, texts: tuple[str, ...], max_length: int) -> list[list[int]]:
    """Input ids of the texts, as the scripts have them for the task `defect`."""
    rows = Dataset.from_dict({"func": list(texts), "labels": [0] * len(texts)})
    found = loaders.tokenise(DEFECT, rows, tokenizer, [0, 1], DataArguments(max_length=max_length))
    return found["input_ids"][:]
