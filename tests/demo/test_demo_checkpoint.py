"""The shipped BERT: small, loaded in float32 by plain transformers, and better than chance."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

DEMO = Path(__file__).parents[2] / "finetune" / "demo"
CHECKPOINT = DEMO / "bert"
sys.path.insert(0, str(DEMO))  # as when its scripts are run

import measure_bert  # noqa: E402
import pretrain_bert  # noqa: E402
import pretraining  # noqa: E402


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(CHECKPOINT)


@pytest.fixture(scope="module")
def model():
    return AutoModelForMaskedLM.from_pretrained(CHECKPOINT).eval()


def test_folder_is_at_most_four_megabytes() -> None:
    assert sum(path.stat().st_size for path in CHECKPOINT.rglob("*")) <= 4_000_000


def test_stored_in_float16_loaded_in_float32(model) -> None:
    with safe_open(CHECKPOINT / "model.safetensors", framework="pt") as tensors:
        stored = {tensors.get_tensor(name).dtype for name in tensors.keys()}  # noqa: SIM118
    assert stored == {torch.float16}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.config.dtype == torch.float32


def test_loads_with_a_classification_head(tokenizer) -> None:
    classifier = AutoModelForSequenceClassification.from_pretrained(CHECKPOINT, num_labels=2)
    batch = tokenizer(
        ["Return the value.", "Value the return of."], padding=True, return_tensors="pt"
    )
    assert classifier(**batch).logits.shape == (2, 2)
    assert classifier.dtype == torch.float32
    assert classifier.config.hidden_dropout_prob == 0.1


def test_tokenizer_frames_and_restores_a_sentence(tokenizer) -> None:
    ids = tokenizer("Return the default value.")["input_ids"]
    assert ids[0] == tokenizer.cls_token_id
    assert ids[-1] == tokenizer.sep_token_id
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "return the default value."
    assert tokenizer.model_max_length == pretrain_bert.MAX_TOKENS


@pytest.fixture(scope="module")
def measured(model, tokenizer):
    return measure_bert.masked_accuracy(model, tokenizer)


def test_fills_masks_in_unseen_modules_well_above_the_most_frequent_token(measured) -> None:
    assert measured["masked_tokens"] > 1000
    assert measured["masked_lm_accuracy"] > 2 * measured["most_frequent_token_share"]


def test_measured_numbers_are_those_of_this_checkpoint(model, measured) -> None:
    stated = json.loads((CHECKPOINT / "measured.json").read_text())
    assert stated["parameters"] == model.num_parameters()
    # Another Python has a little other text.
    assert measured["masked_lm_accuracy"] == pytest.approx(stated["masked_lm_accuracy"], abs=0.03)
    correlations = stated["matthews_correlation"]
    assert min(correlations["pretrained"]) > max(correlations["untrained"])


@pytest.mark.parametrize("replaced_by_mask", [1.0, 0.0, 0.7])
def test_masking_takes_whole_words_and_spares_special_tokens(tokenizer, replaced_by_mask) -> None:
    texts = ["The interpreter canonicalizes the given pathnames."] * 200
    ids = torch.tensor(tokenizer(texts)["input_ids"])
    continuation, special = pretrain_bert.token_tables(tokenizer)
    assert continuation[ids].any()
    corrupted, labels = pretrain_bert.mask_words(
        ids,
        continuation,
        special,
        0.3,
        torch.Generator().manual_seed(0),
        replaced_by_mask=replaced_by_mask,
    )
    chosen = labels != pretrain_bert.IGNORED
    assert torch.equal(labels[chosen], ids[chosen])
    assert torch.equal(corrupted[~chosen], ids[~chosen])
    assert not chosen[special[ids]].any()
    same_word = continuation[ids][:, 1:]
    assert torch.equal(chosen[:, 1:][same_word], chosen[:, :-1][same_word])
    masked = (corrupted == tokenizer.mask_token_id)[chosen].float().mean().item()
    assert masked == pytest.approx(replaced_by_mask, abs=0.06)


def test_batches_hold_every_row_once_within_the_length(tokenizer) -> None:
    generator = random.Random(0)
    sentences = [[10 + i % 90] * (3 + 7 * i % 60) for i in range(200)]
    rows = pretrain_bert.chunk([sentences[:120], sentences[120:]], generator)
    assert sum(map(len, rows)) == sum(map(len, sentences))
    batches = list(
        pretrain_bert.padded_batches(rows, tokenizer, tokens_per_batch=512, generator=generator)
    )
    assert max(batch.shape[1] for batch in batches) <= pretrain_bert.MAX_TOKENS
    assert max(batch.numel() for batch in batches) <= 512
    real = sum((batch != tokenizer.pad_token_id).sum().item() for batch in batches)
    assert real == sum(map(len, rows)) + 2 * len(rows)


def test_orthogonalised_updates_have_singular_values_near_one() -> None:
    matrix = torch.randn(24, 64, generator=torch.Generator().manual_seed(0))
    for given in (matrix, matrix.T):
        values = torch.linalg.svdvals(pretraining.orthogonalise(given))
        assert values.min() > 0.5
        assert values.max() < 1.5


def test_schedule_warms_up_and_ends_at_zero() -> None:
    arguments = pretraining.Arguments(learning_rate=1.0, warmup=0.1)
    rates = [pretraining.learning_rate(progress, arguments) for progress in (0, 0.05, 0.1, 1)]
    assert rates == pytest.approx([0, 0.5, 1, 0])


def test_script_makes_a_checkpoint_that_loads(tmp_path) -> None:
    small = "--vocab_size 600 --hidden_size 32 --layers 1 --heads 2 --minutes 0.03"
    script = [sys.executable, str(DEMO / "pretrain_bert.py"), "--output_dir", str(tmp_path)]
    subprocess.run([*script, *small.split()], check=True, cwd=DEMO.parents[1])
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert loaded.dtype == torch.float32
    assert loaded.config.hidden_size == 32
    assert loaded.config.vocab_size == len(AutoTokenizer.from_pretrained(tmp_path)) == 600
