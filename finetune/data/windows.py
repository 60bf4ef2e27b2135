"""A row of tokens cut into blocks to train on, or into windows to measure on."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from finetune.data.orders import Drawn

IGNORED = -100


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
        for start in torch.randint(starts, (len(self),), generator=self.drawing()).tolist():
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
