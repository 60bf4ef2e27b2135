"""What the two pretraining scripts share, and that each writes a checkpoint that loads."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import AutoModelForPreTraining, AutoTokenizer

from tasks import corpus
from tools.demo import pretrain_bert, pretrain_gpt2, pretraining
from tools.demo.pretraining import Arguments

WORDS = [f"{first}{last}" for first in ("wo", "ka", "li", "te") for last in ("rd", "no", "sum")]
DROPOUT = {
    pretrain_bert: ("hidden_dropout_prob", "attention_probs_dropout_prob"),
    pretrain_gpt2: ("resid_pdrop", "embd_pdrop", "attn_pdrop"),
}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that shows a second more each time it is read."""
    seconds = itertools.count()
    monkeypatch.setattr(pretraining.time, "monotonic", lambda: float(next(seconds)))


@pytest.fixture
def little_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library of a few modules, so that nothing is read and little is counted."""
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=9)) + "." for _ in range(120)]
    modules = [name for name in map(str, range(99)) if corpus.side_of(name) == "train"]
    documents = [corpus.Document(modules[0], (text, text)) for text in texts]
    monkeypatch.setattr(corpus, "documents", lambda: tuple(documents))


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
@pytest.mark.parametrize("script", DROPOUT, ids=lambda script: script.__name__)
def test_a_script_makes_a_checkpoint_that_loads(
    script: ModuleType, tmp_path: Path, clock: None, little_text: None
) -> None:
    small = "--vocab_size 320 --hidden_size 32 --layers 1 --heads 2 --minutes 0.05"
    script.main([*small.split(), "--output_dir", str(tmp_path)])
    model = AutoModelForPreTraining.from_pretrained(tmp_path)
    assert model.dtype == torch.float32
    assert model.config.hidden_size == 32
    assert model.config.vocab_size == len(AutoTokenizer.from_pretrained(tmp_path))
    rates = {name: model.config.to_dict()[name] for name in DROPOUT[script]}
    assert rates == dict.fromkeys(DROPOUT[script], 0.1)
