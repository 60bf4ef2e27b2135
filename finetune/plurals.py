"""Counts in sentences."""

from __future__ import annotations


def many(count: int, word: str) -> str:
    """The count with its word: 1 seed, 2 seeds, 2 batches."""
    ending = "es" if word in ("batch", "process") else "s"
    return f"{count} {word}{'' if count == 1 else ending}"
