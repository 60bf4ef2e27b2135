"""The shipped T5: small, whole, loaded in float32; and the span corruption that it learned."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import hf_graphattn as ga
from finetune.objectives.generated import LabelWords
from tools.demo import pretrain_t5

CHECKPOINT = Path(__file__).parents[2] / "finetune" / "demo" / "t5"


def test_the_checkpoint_is_small_and_loads_in_float32() -> None:
    assert sum(path.stat().st_size for path in CHECKPOINT.iterdir()) <= 4_000_000
    model = AutoModelForSeq2SeqLM.from_pretrained(CHECKPOINT)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert len(ga.graph_filters(ga.patch_model(model, ga.GFSAConfig()))) == 6


def test_the_tokenizer_ends_texts_and_gives_any_code_back() -> None:
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    text = "def f(a, *, b=None):\n    return a[1:] if b is not None else 'é\t'"
    ids = tokenizer(text)["input_ids"]
    assert ids[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert LabelWords.of(("false", "true"), tokenizer).tokens.shape[0] == 2


def test_corrupted_and_hidden_parts_make_the_whole() -> None:
    arguments, generator = pretrain_t5.SHIPPED, random.Random(0)
    sentinels = list(range(1000, 1032))
    hidden_tokens = 0
    for length in (3, 20, 128) * 40:
        ids = [generator.randrange(100) for _ in range(length)]
        left, hidden = pretrain_t5.corrupt(ids, sentinels, arguments, generator)
        spans: dict[int, list[int]] = {}
        for token in hidden:
            if token in sentinels:
                spans[token] = current = []
            else:
                current.append(token)
        whole = [part for token in left for part in spans.get(token, [token])]
        assert whole == ids
        assert [token for token in left if token in sentinels] == sentinels[: len(spans)]
        assert all(1 <= len(span) <= arguments.longest_span for span in spans.values())
        hidden_tokens += sum(map(len, spans.values()))
    assert 0.15 < hidden_tokens / (151 * 40) < 0.3
