"""The shipped checkpoints: small, loaded in float32, as good as they say, and made by scripts."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch.utils.data import DataLoader
from transformers import AutoModelForPreTraining, AutoTokenizer, BertForMaskedLM, GPT2LMHeadModel

from finetune.data.text import Text, Windows, pad
from finetune.objectives.language import measure_text
from tasks import corpus, demo_lm
from tools.demo import measure_bert, measure_gpt2, pretrain_bert, pretrain_gpt2, pretraining
from tools.demo.pretraining import IGNORED, Arguments

DEMO = Path(__file__).parents[2] / "finetune" / "demo"
WORDS = [f"{first}{last}" for first in ("wo", "ka", "li", "te") for last in ("rd", "no", "sum")]
DROPOUT = {
    "bert": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
    "gpt2": ("resid_pdrop", "embd_pdrop", "attn_pdrop"),
}
SCRIPTS = {"bert": pretrain_bert, "gpt2": pretrain_gpt2}


def stated(name: str) -> dict:
    return json.loads((DEMO / name / "measured.json").read_text("utf-8"))


@pytest.mark.parametrize("name", DROPOUT)
def test_a_checkpoint_is_small_and_loads_in_float32(name: str) -> None:
    folder = DEMO / name
    assert sum(path.stat().st_size for path in folder.rglob("*")) <= 4_000_000
    stored = load_file(folder / "model.safetensors").values()
    assert {tensor.dtype for tensor in stored} == {torch.float16}
    model = AutoModelForPreTraining.from_pretrained(folder)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    check_dropout(name, model)


def check_dropout(name: str, model: torch.nn.Module) -> None:
    rates = {each: getattr(model.config, each) for each in DROPOUT[name]}
    assert rates == dict.fromkeys(DROPOUT[name], 0.1)


def test_the_tokenizer_of_gpt2_knows_every_text() -> None:
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "gpt2")
    text = "no it was n't <unk> black\tN = Robert @-@ über = \n\n日本 `x[0]`\n"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert tokenizer.eos_token_id not in ids
    assert tokenizer.model_max_length == pretrain_gpt2.MAX_TOKENS


@pytest.mark.full
def test_the_numbers_of_bert_are_those_of_this_checkpoint() -> None:
    model = BertForMaskedLM.from_pretrained(DEMO / "bert").eval()
    said, tokenizer = stated("bert"), AutoTokenizer.from_pretrained(DEMO / "bert")
    measured = measure_bert.masked_accuracy(model, tokenizer)
    assert measured["masked_tokens"] > 1000
    assert measured["masked_lm_accuracy"] > 2 * measured["most_frequent_token_share"]
    # Another Python has a little other text.
    assert measured["masked_lm_accuracy"] == pytest.approx(said["masked_lm_accuracy"], abs=0.03)
    assert said["parameters"] == model.num_parameters()
    correlations = said["matthews_correlation"]
    assert min(correlations["pretrained"]) > max(correlations["untrained"])


@pytest.mark.full
def test_the_numbers_of_gpt2_are_those_of_this_checkpoint() -> None:
    said = stated("gpt2")["measured"]["validation"]
    assert said["block"]["perplexity"] < said["frequencies"]["perplexity"] / 4
    model = GPT2LMHeadModel.from_pretrained(DEMO / "gpt2")
    lines = "".join(f"{text}\n" for text in demo_lm.build()["validation"]["text"])
    tokens = AutoTokenizer.from_pretrained(DEMO / "gpt2")(lines)["input_ids"]
    ids = torch.tensor(tokens)[: 256 * 20]
    loader = DataLoader(Windows(ids, 256, None), 5, collate_fn=pad)
    found = measure_text(model, loader, Text(ids, None), Accelerator(cpu=True))
    assert found.metrics["perplexity"] == pytest.approx(said["block"]["perplexity"], rel=0.5)


def test_frequencies_alone() -> None:
    train, text = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1])
    # Shares (3 + 1) / 6 and (1 + 1) / 6.
    expected = (4 / 6 * 2 / 6) ** -0.5
    assert measure_gpt2.frequency_perplexity(train, text, 2) == pytest.approx(expected)


@pytest.mark.parametrize("replaced_by_mask", [1.0, 0.0, 0.7])
def test_masking_takes_whole_words_and_spares_special_tokens(replaced_by_mask: float) -> None:
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "bert")
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


def test_batches_hold_every_row_once_within_the_length() -> None:
    draw = random.Random(0)
    rows = [[index] * draw.randrange(1, 100) for index in range(200)]
    batches = pretraining.groups(rows, 512, draw)
    assert sorted(row for batch in batches for row in batch) == sorted(rows)
    assert max(len(batch) * (max(map(len, batch)) + 2) for batch in batches) <= 512


def test_schedule_warms_up_and_ends_at_zero() -> None:
    arguments = Arguments(learning_rate=1.0, warmup=0.1)
    rates = [pretraining.learning_rate(progress, arguments) for progress in (0, 0.05, 0.1, 1)]
    assert rates == pytest.approx([0, 0.5, 1, 0])


@pytest.mark.full
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_makes_a_checkpoint_that_loads(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a library of one module, by a clock that shows a second more each time it is read."""
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=9)) + "." for _ in range(120)]
    module = next(name for name in map(str, range(99)) if corpus.side_of(name) == "train")
    documents = tuple(corpus.Document(module, (text, text)) for text in texts)
    monkeypatch.setattr(corpus, "documents", lambda: documents)
    monkeypatch.setattr(pretraining.time, "monotonic", itertools.count(0.0).__next__)
    small = "--vocab_size 320 --hidden_size 32 --layers 1 --heads 2 --minutes 0.05"
    SCRIPTS[name].main([*small.split(), "--output_dir", str(tmp_path)])
    model = AutoModelForPreTraining.from_pretrained(tmp_path)
    assert (model.dtype, model.config.hidden_size) == (torch.float32, 32)
    assert model.config.vocab_size == len(AutoTokenizer.from_pretrained(tmp_path))
    check_dropout(name, model)
