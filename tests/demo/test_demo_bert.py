"""The shipped BERT: small, loaded in float32 by plain transformers, and better than chance."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertForMaskedLM,
    PreTrainedTokenizerBase,
)

from tools.demo import measure_bert, pretrain_bert
from tools.demo.pretraining import IGNORED

CHECKPOINT = Path(__file__).parents[2] / "finetune" / "demo" / "bert"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(CHECKPOINT)


@pytest.fixture(scope="module")
def model() -> BertForMaskedLM:
    return BertForMaskedLM.from_pretrained(CHECKPOINT).eval()


def test_stored_in_float16_loaded_in_float32(model: BertForMaskedLM) -> None:
    with safe_open(CHECKPOINT / "model.safetensors", framework="pt") as tensors:
        stored = {tensors.get_tensor(name).dtype for name in tensors.keys()}  # noqa: SIM118
    assert stored == {torch.float16}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert sum(path.stat().st_size for path in CHECKPOINT.rglob("*")) <= 4_000_000


def test_loads_with_a_classification_head(tokenizer: PreTrainedTokenizerBase) -> None:
    classifier = AutoModelForSequenceClassification.from_pretrained(CHECKPOINT, num_labels=2)
    batch = tokenizer(
        ["Return the value.", "Value the return of."], padding=True, return_tensors="pt"
    )
    assert classifier(**batch).logits.shape == (2, 2)
    assert classifier.dtype == torch.float32
    assert classifier.config.hidden_dropout_prob == 0.1


@pytest.mark.full
def test_measured_numbers_are_those_of_this_checkpoint(
    model: BertForMaskedLM, tokenizer: PreTrainedTokenizerBase
) -> None:
    stated = json.loads((CHECKPOINT / "measured.json").read_text("utf-8"))
    measured = measure_bert.masked_accuracy(model, tokenizer)
    assert measured["masked_tokens"] > 1000
    assert measured["masked_lm_accuracy"] > 2 * measured["most_frequent_token_share"]
    # Another Python has a little other text.
    assert measured["masked_lm_accuracy"] == pytest.approx(stated["masked_lm_accuracy"], abs=0.03)
    assert stated["parameters"] == model.num_parameters()
    correlations = stated["matthews_correlation"]
    assert min(correlations["pretrained"]) > max(correlations["untrained"])


@pytest.mark.parametrize("replaced_by_mask", [1.0, 0.0, 0.7])
def test_masking_takes_whole_words_and_spares_special_tokens(
    tokenizer: PreTrainedTokenizerBase, replaced_by_mask: float
) -> None:
    texts = ["The interpreter canonicalizes the given pathnames."] * 200
    ids = torch.tensor(tokenizer(texts)["input_ids"])
    mask = pretrain_bert.WordMasking(tokenizer, 0.3, replaced_by_mask=replaced_by_mask)
    assert mask.continues[ids].any()
    corrupted, labels = mask(ids)
    chosen = labels != IGNORED
    assert torch.equal(labels[chosen], ids[chosen])
    assert torch.equal(corrupted[~chosen], ids[~chosen])
    assert not chosen[mask.is_special[ids]].any()
    same_word = mask.continues[ids][:, 1:]
    assert torch.equal(chosen[:, 1:][same_word], chosen[:, :-1][same_word])
    masked = (corrupted == tokenizer.mask_token_id)[chosen].float().mean().item()
    assert masked == pytest.approx(replaced_by_mask, abs=0.06)
