"""The order of rows: each once, like lengths together, the same for all processes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import tiny_task
import torch
from accelerate.data_loader import prepare_data_loader
from datasets import Dataset
from tiny_run import COLA, trainer
from torch.utils.data import DataLoader

from finetune import lm
from finetune.data import loaders
from finetune.data.loaders import ByLength
from finetune.engine.trainer import Trainer
from finetune.errors import Refused


def padding(batches: list[list[int]], lengths: list[int]) -> int:
    return sum(max(lengths[i] for i in batch) - lengths[i] for batch in batches for i in batch)


def shared(sampler: ByLength, processes: int, epoch: int) -> list[list[list[int]]]:
    """The batches of four rows that each process reads in an epoch."""
    rows = list(range(len(sampler)))
    found = []
    for process in range(processes):
        loader = DataLoader(rows, 4, sampler=sampler, collate_fn=list)
        loader = prepare_data_loader(loader, num_processes=processes, process_index=process)
        loader.set_epoch(epoch)
        found.append(list(loader))
    return found


def test_each_row_once_an_epoch_in_batches_of_like_lengths() -> None:
    lengths = [random.randint(3, 60) for _ in range(203)]
    torch.manual_seed(random.randrange(1000))
    sampler = ByLength(lengths, 8)
    (first,), (second,) = shared(sampler, 1, 0), shared(sampler, 1, 1)
    assert first != second
    for batches in (first, second):
        assert sorted(i for batch in batches for i in batch) == list(range(203))
        assert max(lengths) in [lengths[i] for i in batches[0]]
        plain = torch.randperm(203).tolist()
        at_random = [plain[i : i + 4] for i in range(0, 203, 4)]
        assert padding(batches, lengths) < padding(at_random, lengths) / 2


def test_processes_share_the_batches_of_one() -> None:
    lengths = [random.randint(3, 60) for _ in range(200)]
    sampler = ByLength(lengths, 8)
    (alone,) = shared(sampler, 1, 3)
    left, right = shared(sampler, 2, 3)
    assert [batch for pair in zip(left, right, strict=True) for batch in pair] == alone


def test_the_order_is_of_the_seed_and_the_epoch_alone() -> None:
    lengths = [random.randint(3, 60) for _ in range(40)]
    torch.manual_seed(5)
    sampler = ByLength(lengths, 2)
    sampler.set_epoch(2)
    expected = list(sampler)
    torch.manual_seed(5)
    again = ByLength(lengths, 2)
    torch.rand(3)
    again.set_epoch(2)
    assert list(again) == list(again) == expected
    torch.manual_seed(6)
    assert list(ByLength(lengths, 2)) != expected


def read_in(run: Trainer) -> list[list[int]]:
    """The lengths of the rows of each training batch."""
    return [
        part.batch["attention_mask"].sum(1).tolist()
        for window in run.updates.read(0, done=0)
        for part in window
    ]


def test_the_flag_groups_the_training_rows(tmp_path: Path) -> None:
    flags = ("--per_device_train_batch_size", "4", "--num_train_epochs", "1")
    plain = trainer(tmp_path, *flags, count=41)
    grouped = trainer(tmp_path, *flags, "--group_by_length", count=41)
    spread = [sum(max(x) - min(x) for x in read_in(run)) for run in (plain, grouped)]
    assert spread[1] < spread[0]
    assert sum(map(sum, read_in(grouped))) == sum(map(sum, read_in(plain)))
    assert len(read_in(grouped)[-1]) == 1
    # What is logged of a step is counted without the padding.
    assert sum(int(grouped._update(window)[1]) for window in grouped.updates.read(0, 0)) == sum(
        map(sum, read_in(plain))
    )


def test_evaluation_reads_the_longest_rows_first(tmp_path: Path) -> None:
    run = trainer(tmp_path, "--per_device_eval_batch_size", "2", held_out=7)
    shapes = [tuple(batch["input_ids"].shape) for batch in run.validation["validation"]]
    expected = sorted((3 + i % 4 + 2 for i in range(7)), reverse=True)
    assert shapes == [(2, expected[0]), (2, expected[2]), (2, expected[4]), (1, expected[6])]
    loader = run.validation["validation"]
    _, labels = run.objective.outputs(run.model, loader, run.accelerator, "Evaluating")
    assert labels is not None
    assert labels.tolist() == tiny_task.rows(COLA, 7)["label"][:]


def test_lengths_are_those_of_the_rows_that_are_left() -> None:
    rows = Dataset.from_dict({"input_ids": [[1], [1, 2, 3], [], [4, 5, 6]], "labels": [0] * 4})
    assert loaders.lengths_of(rows) == [1, 3, 0, 3]
    assert loaders.lengths_of(rows.select([3, 0])) == [3, 1]


def test_grouping_is_refused_where_all_rows_have_one_length() -> None:
    base = ["--model_name_or_path", "m", "--output_dir", "o", "--group_by_length"]
    # All blocks have one length.
    with pytest.raises(Refused, match=r"unrecognized arguments: --group_by_length\. See --help"):
        lm.SCHEMA.parse(base)
