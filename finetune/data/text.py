"""Text to tensors for language models: read, check, tokenise, pack."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, DatasetDict, Features, List, Value
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from finetune.data import columns, sources
from finetune.data import rows as row_checks
from finetune.data.loaders import Loaders, of_splits
from finetune.data.windows import Blocks, Offsets, Windows, pad
from finetune.errors import refusal
from finetune.settings.language import HELD_OUT, LanguageDataArguments
from finetune.settings.training import TrainArguments
from tasks import Task, lm

logger = logging.getLogger(__name__)
OPENING = 32  # tokens that a card's example has


@dataclass(frozen=True)
class Text:
    """A split's tokens in one row, with its words if they are counted.

    Attributes:
        tokens: int32 of shape (total,).
        words: the text's words, ends of lines included; None if it is not word-level.
        bytes: the text's length in UTF-8; None if it has tokens that are unknown, which stand for
            any bytes.
    """

    tokens: Tensor
    words: int | None
    bytes: int | None = None


def load(arguments: LanguageDataArguments, predict: bool) -> tuple[Task, DatasetDict]:
    """The task and the rows of the needed splits, checked and cut to their limits.

    Raises ``ValueError`` if the source, a split or the text column is missing, or is not text.
    """
    adapt = partial(_with_flags, arguments)
    files = (arguments.train_file, arguments.validation_file, arguments.test_file)
    if arguments.task_name is None and arguments.dataset_name is not None and not any(files):
        task = lm.own_task("text", dataset_name=arguments.dataset_name, row_end="newline")
        task = sources.with_metrics(adapt(task), arguments.metric)
        rows = sources.read_source(arguments.dataset_name, task)
    else:
        infer = partial(_infer_task, arguments)
        task, rows = sources.read(
            arguments, lm.FAMILY, readers=sources.TEXT_READERS, infer=infer, adapt=adapt
        )
    for name, split in rows.items():
        if set(task.text_columns) <= set(split.column_names):
            # Before a split is cut off, while its rows are still those of its files.
            columns.check_text(task, name, split, blank_cells=True)
    share = arguments.validation_split_percentage
    if share is None and arguments.task_name is None and _lacks_validation(task, rows):
        share = HELD_OUT
        logger.info(
            f"No validation text is given: the last {share} per cent of the training rows are held "
            "out for it; --validation_split_percentage says how many."
        )
    rows = row_checks.with_validation(task, rows, share)
    return task, checked(task, rows, arguments, predict)


def _lacks_validation(task: Task, rows: DatasetDict) -> bool:
    return task.train_split in rows and task.validation_splits[0].name not in rows


def checked(
    task: Task, rows: DatasetDict, arguments: LanguageDataArguments, predict: bool
) -> DatasetDict:
    """The needed splits, cut to their limits, with the text column alone.

    Raises ``ValueError`` if a split or the column is missing, empty or not of text.
    """
    needed = row_checks.needed_splits(task, predict)
    row_checks.check_splits(task, rows, needed)
    (column,) = task.text_columns
    limits = row_checks.sample_limits(arguments, task)
    return DatasetDict(
        {n: row_checks.first_rows(rows[n].select_columns([column]), limits[n]) for n in needed}
    )


def texts(task: Task, rows: DatasetDict, tokenizer: PreTrainedTokenizerBase) -> dict[str, Text]:
    """Each split as one row of tokens, the task's row ends included; by the split's name.

    Raises ``ValueError`` for rows that end in the end of text, if the tokenizer has no such token.
    """
    if task.row_end == "eos" and tokenizer.eos_token_id is None:
        allowed = "newline or none with this tokenizer, which has no end-of-text token"
        raise refusal("row_end", "eos", allowed, "Give --row_end newline, or another tokenizer.")
    return {name: _text(task, split, tokenizer) for name, split in rows.items()}


def block_size(
    arguments: LanguageDataArguments, tokenizer: PreTrainedTokenizerBase, positions: int | None
) -> int:
    """Tokens of a block: as asked, or the most that tokenizer and model take, at most 1024.

    Raises ``ValueError`` if it is more than the model's ``positions`` (None: any number), or less
    than the stride.
    """
    asked = arguments.block_size
    most = positions or tokenizer.model_max_length
    if asked is not None and positions is not None and asked > positions:
        raise refusal(
            "block_size",
            asked,
            f"2 to {positions}, the model's positions",
            "Give a smaller number.",
        )
    chosen = asked or min(most, tokenizer.model_max_length, 1024)
    if arguments.stride is not None and arguments.stride > chosen:
        raise refusal(
            "stride",
            arguments.stride,
            f"1 to {chosen}, the block_size: a longer one would skip tokens",
            "Give a smaller number.",
        )
    return chosen


def training_blocks(task: Task, found: dict[str, Text], size: int) -> Blocks:
    """The training text in blocks of so many tokens.

    Raises ``ValueError`` if it is shorter than one block.
    """
    blocks = Blocks(found[task.train_split].tokens, size)
    if not len(blocks):
        raise refusal(
            f"split {task.train_split!r} of task {task.name}",
            f"{blocks.left_over} tokens",
            f"block_size {size} or more",
            "Give more text, or a smaller block_size.",
        )
    logger.info(
        f"training text: {len(blocks)} blocks of {size} tokens; the last {blocks.left_over} tokens "
        "are left over"
    )
    return blocks


def loaders(
    task: Task,
    found: dict[str, Text],
    blocks: Blocks,
    origin: dict[str, Any],
    arguments: LanguageDataArguments,
    train: TrainArguments,
) -> Loaders:
    """Batches of training blocks, and of the windows of each other split.

    ``origin`` says where the text comes from.

    Raises ``ValueError`` if another split than the training's has fewer than two tokens.
    """
    windows = {
        split.name: _windows(task, split.name, found[split.name].tokens, blocks.size, arguments)
        for split in (*task.validation_splits, *task.test_splits)
        if split.name in found
    }
    sampler = Offsets(blocks) if arguments.random_offsets else None
    rows = {task.train_split: blocks, **windows}
    # Half a block leaves room for what the model writes after it.
    opening = found[task.validation_splits[0].name].tokens[: min(OPENING, blocks.size // 2)]
    return of_splits(task, rows, origin, train, None, pad, sampler, example=opening)


def _windows(
    task: Task, name: str, tokens: Tensor, size: int, arguments: LanguageDataArguments
) -> Windows:
    if len(tokens) < 2:
        what = f"split {name!r} of task {task.name}"
        raise refusal(what, f"{len(tokens)} tokens", "2 or more", "Give more text.")
    return Windows(tokens, size, arguments.stride)


def _text(task: Task, rows: Dataset, tokenizer: PreTrainedTokenizerBase) -> Text:
    (column,) = task.text_columns
    last = [tokenizer.eos_token_id] if task.row_end == "eos" else []

    def encode(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        lines = [_line(task, text) for text in batch[column]]
        # No warning about length: the rows are cut into blocks later.
        encoded = tokenizer(lines, add_special_tokens=False, verbose=False)["input_ids"]
        return {
            "input_ids": [ids + last for ids in encoded],
            "words": [lm.words(line, task.row_end) for line in lines],
            "bytes": [lm.count_bytes(line, task.row_end) for line in lines],
            "unknown": [ids.count(tokenizer.unk_token_id) for ids in encoded],
        }

    counts = {name: Value("int64") for name in ("words", "bytes", "unknown")}
    features = Features({"input_ids": List(Value("int32")), **counts})
    encoded = rows.map(
        encode, batched=True, remove_columns=[column], features=features, desc="Tokenising"
    )
    chunks = encoded.data.column("input_ids").chunks
    tokens = np.concatenate([chunk.flatten().to_numpy() for chunk in chunks])
    words, bytes_, unknown = (int(encoded.data.column(n).to_numpy().sum()) for n in counts)
    return Text(
        torch.from_numpy(tokens), words if task.word_level else None, None if unknown else bytes_
    )


def _line(task: Task, text: str | None) -> str:
    # A csv file keeps a blank line as a missing value.
    text = text or ""
    return text if task.row_end != "newline" or text.endswith("\n") else text + "\n"


def _with_flags(arguments: LanguageDataArguments, task: Task) -> Task:
    """The task with what the flags change of it."""
    changes: dict[str, Any] = {}
    if arguments.text_column is not None:
        changes["text_columns"] = (arguments.text_column,)
    if arguments.row_end is not None:
        changes["row_end"] = arguments.row_end
    if arguments.word_level is not None:
        changes["word_level"] = arguments.word_level
    config = arguments.dataset_config_name or _local_config(arguments.dataset_name, task)
    if config is not None:
        changes["dataset_config"] = config
    return replace(task, **changes)


def _local_config(dataset_name: str | None, task: Task) -> str | None:
    """Another form of the data, if the local folder holds that and not the task's own."""
    folder = Path(dataset_name or "")
    if dataset_name is None or not folder.is_dir() or task.dataset_config is None:
        return None
    forms = [
        name for name in (task.dataset_config, *task.other_configs) if (folder / name).is_dir()
    ]
    if forms and forms[0] != task.dataset_config:
        logger.warning(f"{folder} has no {task.dataset_config}: its {forms[0]} is used.")
        return forms[0]
    return None


def _infer_task(arguments: LanguageDataArguments, rows: DatasetDict) -> Task:
    """A task of own files: their text column, and a line break after each row of a table."""
    features = next(iter(rows.values())).features
    columns = [name for name, kind in features.items() if "string" in str(kind)]
    chosen = "text" if "text" in columns or len(columns) != 1 else columns[0]
    if arguments.text_column is None and chosen not in features:
        raise refusal(
            "text_column",
            None,
            f"one of the files' columns: {', '.join(features)}",
            "Say which one holds the text.",
        )
    files = (arguments.train_file, arguments.validation_file, arguments.test_file)
    is_plain = any(Path(path).suffix.lower() == ".txt" for path in files if path is not None)
    # A line of a txt file has its own line break.
    return _with_flags(
        arguments, lm.own_task(chosen, rows, row_end="none" if is_plain else "newline")
    )
