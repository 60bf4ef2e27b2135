"""The shipped GPT-2: small, loaded in float32, and far better than token frequencies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from finetune.data.text import Text, Windows, pad
from finetune.objectives.language import measure_text
from tasks import demo_lm
from tools.demo import measure_gpt2, pretrain_gpt2

CHECKPOINT = Path(__file__).parents[2] / "finetune" / "demo" / "gpt2"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(CHECKPOINT)


def test_folder_is_small_and_loads_in_float32() -> None:
    assert sum(path.stat().st_size for path in CHECKPOINT.rglob("*")) <= 4_000_000
    stored = load_file(CHECKPOINT / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float16}
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.config.resid_pdrop == model.config.attn_pdrop == 0.1


def test_tokenizer_knows_every_text(tokenizer: PreTrainedTokenizerBase) -> None:
    text = "no it was n't <unk> black\tN = Robert @-@ über = \n\n日本 `x[0]`\n"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert tokenizer.eos_token_id not in ids
    assert tokenizer.model_max_length == pretrain_gpt2.MAX_TOKENS


@pytest.mark.full
def test_measured_numbers_are_those_of_this_checkpoint(tokenizer: PreTrainedTokenizerBase) -> None:
    stated = json.loads((CHECKPOINT / "measured.json").read_text("utf-8"))["measured"]["validation"]
    assert stated["block"]["perplexity"] < stated["frequencies"]["perplexity"] / 4
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT)
    lines = "".join(f"{text}\n" for text in demo_lm.build()["validation"]["text"])
    ids = torch.tensor(tokenizer(lines)["input_ids"])[: 256 * 20]
    loader = DataLoader(Windows(ids, 256, None), 5, collate_fn=pad)
    found = measure_text(model, loader, Text(ids, None), Accelerator(cpu=True))
    assert found.metrics["perplexity"] == pytest.approx(stated["block"]["perplexity"], rel=0.5)


def test_frequencies_alone() -> None:
    train, text = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1])
    # Shares (3 + 1) / 6 and (1 + 1) / 6.
    expected = (4 / 6 * 2 / 6) ** -0.5
    assert measure_gpt2.frequency_perplexity(train, text, 2) == pytest.approx(expected)
