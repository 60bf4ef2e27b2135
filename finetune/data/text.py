"""Text for language models: read, checked, tokenised into one row, cut into blocks or windows."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from datasets import Dataset, DatasetDict, Features, List, Value
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from finetune.data import rows as checks
from finetune.data import sources
from finetune.data.loaders import IGNORED, Batching, Drawn, Loaders, of_splits
from finetune.errors import refusal
from finetune.settings.language import HELD_OUT, LanguageDataArguments
from finetune.settings.schema import Run
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


class Blocks(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Training blocks one after another; what is left over at the end is in none.

    A slice instead of a block's number is that part of the text. A row's ``labels`` are its
    ``input_ids``: the model itself shifts them by one.
    """

    def __init__(self, tokens: Tensor, block_size: int) -> None:
        self.tokens, self.size = tokens, block_size
        count = len(tokens) // block_size
        self.left_over = len(tokens) - count * block_size
        self.blocks = tokens[: count * block_size].view(count, block_size)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int | slice) -> dict[str, Tensor]:
        block = (self.tokens if isinstance(index, slice) else self.blocks)[index].long()
        return {"input_ids": block, "labels": block, "attention_mask": torch.ones_like(block)}


class Offsets(Drawn[slice]):
    """In each epoch as many blocks as there are, each from anywhere in the text."""

    def __init__(self, blocks: Blocks) -> None:
        super().__init__()
        self.blocks = blocks

    def __len__(self) -> int:
        return len(self.blocks)

    def __iter__(self) -> Iterator[slice]:
        size = self.blocks.size
        starts = len(self.blocks.tokens) - size + 1
        for start in torch.randint(starts, (len(self),), generator=self.generator()).tolist():
            yield slice(start, start + size)


class Windows(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Evaluation contexts; a row's ``labels`` are the next tokens, -100 where not scored.

    With ``stride`` None the contexts lie one after another, the last one shorter, and each but its
    first token is predicted. Otherwise a context of up to ``block_size`` tokens starts every
    ``stride`` tokens, and scores what no earlier one has: every token but the text's first.
    """

    def __init__(self, tokens: Tensor, block_size: int, stride: int | None) -> None:
        self.tokens = tokens
        self.spans = list(_spans(len(tokens), block_size, stride))

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        start, scored, end = self.spans[index]
        labels = self.tokens[start + 1 : end].long()
        labels[: scored - start - 1] = IGNORED
        return {"input_ids": self.tokens[start : end - 1].long(), "labels": labels}


def _spans(total: int, block_size: int, stride: int | None) -> Iterator[tuple[int, int, int]]:
    """(first token seen, first scored, end) of each window; at least one token is scored."""
    if stride is None:
        for start in range(0, total - 1, block_size):
            yield start, start + 1, min(start + block_size, total)
        return
    scored = 1
    for start in range(0, total, stride):
        if scored >= total:
            return
        end = min(start + block_size + 1, total)
        yield start, scored, end
        scored = end


def pad(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Equal lengths by filling at the end, where causal attention sees nothing of it.

    So no position needs to be masked, and the kernels may stay causal alone.
    """
    ids = pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    labels = [row["labels"] for row in rows]
    return {
        "input_ids": ids,
        "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED),
        "attention_mask": torch.ones_like(ids),
    }


def load(arguments: LanguageDataArguments, predict: bool) -> tuple[Task, DatasetDict]:
    """The task and the text column of the needed splits, checked and cut to their limits.

    Raises:
        ValueError: the source, a split or the text column is missing, or is not text.
    """
    task, rows = sources.read(arguments, lm.FAMILY, partial(_own_task, arguments), predict)
    for name, split in rows.items():
        if set(task.text_columns) <= set(split.column_names):
            # Before a split is cut off, while its rows are still those of its files.
            checks.check_text(task, name, split, blank_cells=True)
    share = arguments.validation_split_percentage
    lacks_validation = task.train_split in rows and task.validation_splits[0].name not in rows
    if share is None and arguments.task_name is None and lacks_validation:
        share = HELD_OUT
        logger.info(
            f"No validation text is given: the last {share} per cent of the training rows are held "
            "out for it; --validation_split_percentage changes how many."
        )
    rows = checks.with_validation(task, rows, "validation_split_percentage", share)
    used = checks.needed(task, rows, arguments, predict)
    return task, DatasetDict(used).select_columns(list(task.text_columns))


def texts(task: Task, rows: DatasetDict, tokenizer: PreTrainedTokenizerBase) -> dict[str, Text]:
    """Each split as one row of tokens, the task's row ends included; by the split's name.

    Raises:
        ValueError: rows that end in the end of text, if the tokenizer has no such token.
    """
    if task.row_end == "eos" and tokenizer.eos_token_id is None:
        allowed = "newline or none with this tokenizer, which has no end-of-text token"
        raise refusal("row_end", "eos", allowed, "Give --row_end newline, or another tokenizer.")
    return {name: _text(task, split, tokenizer) for name, split in rows.items()}


def block_size(
    arguments: LanguageDataArguments, tokenizer: PreTrainedTokenizerBase, positions: int | None
) -> int:
    """Tokens of a block: as the flag says, or the most that tokenizer and model take, at most 1024.

    Raises:
        ValueError: it is more than the model's ``positions`` (None: any number), or less than the
            stride.
    """
    most, longest = positions or tokenizer.model_max_length, tokenizer.model_max_length
    size, stride = arguments.block_size or min(most, longest, 1024), arguments.stride
    if positions is not None and size > positions:
        allowed = f"2 to {positions}, the model's positions"
        raise refusal("block_size", size, allowed, "Give a smaller number.")
    if stride is not None and stride > size:
        allowed = f"1 to {size}, the block_size: a longer one would skip tokens"
        raise refusal("stride", stride, allowed, "Give a smaller number.")
    return size


def training_blocks(task: Task, texts: dict[str, Text], size: int) -> Blocks:
    """The training text in blocks of so many tokens.

    Raises:
        ValueError: it is shorter than one block.
    """
    blocks = Blocks(texts[task.train_split].tokens, size)
    if not len(blocks):
        what = f"split {task.train_split!r} of task {task.name}"
        value, allowed = f"{blocks.left_over} tokens", f"block_size {size} or more"
        remedy = "Give more text, or a smaller block_size."
        raise refusal(what, value, allowed, remedy)
    logger.info(
        f"training text: {len(blocks)} blocks of {size} tokens; the last {blocks.left_over} tokens "
        "are left over"
    )
    return blocks


def loaders(
    settings: Run[LanguageDataArguments, Any],
    task: Task,
    texts: dict[str, Text],
    blocks: Blocks,
    origin: dict[str, Any],
) -> Loaders:
    """Batches of training blocks, and of the windows of each other split.

    ``origin`` says where the text comes from.

    Raises:
        ValueError: a split has fewer than two tokens.
    """
    stride = settings.data.stride
    rows: dict[str, Any] = {n: Windows(x.tokens, blocks.size, stride) for n, x in texts.items()}
    rows[task.train_split] = blocks
    if short := [name for name, split in rows.items() if not len(split)]:
        value = f"{len(texts[short[0]].tokens)} tokens"
        what = f"split {short[0]!r} of task {task.name}"
        raise refusal(what, value, "2 tokens or more", "Give more text.")
    sampler = Offsets(blocks) if settings.data.random_offsets else None
    # Half a block leaves room for what the model writes after it.
    opening = texts[task.validation_splits[0].name].tokens[: min(OPENING, blocks.size // 2)]
    how = Batching(collate_evaluation=pad, sampler=sampler)
    return of_splits(task, rows, how, settings.train, (origin, opening))


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


def _own_task(arguments: LanguageDataArguments, rows: DatasetDict | None) -> Task:
    """A task of own files: their text column, and a line break after each row of a table."""
    name = arguments.text_column
    if rows is None:
        source = arguments.dataset_name
        return lm.own_task(name or "text", dataset_name=source, row_end="newline")
    features = next(iter(rows.values())).features
    if name is None:
        known = [column for column, kind in features.items() if "string" in str(kind)]
        usual = ("text", *(known if len(known) == 1 else ()))
        name = checks.chosen_column("text_column", None, usual, features)
    # A line of a txt file has its own line break.
    files = [path for split in rows.values() for path in sources.files_of(split)]
    is_plain = any(path.suffix.lower() == ".txt" for path in files)
    return lm.own_task(name, rows, row_end="none" if is_plain else "newline")
