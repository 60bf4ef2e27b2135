"""How the kernels in blocks divide a call: heads and sequences computed at once, and rows."""

from __future__ import annotations

from typing import Any

Part = tuple[slice, slice]  # sequences of the batch, and heads


def parts(batch: int, heads: int, at_once: int) -> list[Part]:
    """So many heads each, of one sequence or of several whole ones."""
    at_once = max(1, at_once)
    sequences = max(1, at_once // heads)
    return [
        (slice(b, b + sequences), slice(h, h + at_once))
        for b in range(0, batch, sequences)
        for h in range(0, heads, at_once)
    ]


def part_of(x: Any, part: Part) -> Any:
    """What concerns a part, a view: of states, or of what broadcasts to (B, H, N, N); None of None.

    What is one for all sequences or heads is whole.
    """
    if x is None:
        return None
    sizes = zip(part, x.shape[:2], strict=True)
    return x[tuple(own if size > 1 else slice(None) for own, size in sizes)]


def row_blocks(length: int, rows: int) -> list[slice]:
    """Blocks of so many rows; the last one may have fewer."""
    return [slice(start, min(start + rows, length)) for start in range(0, length, rows)]
