"""The one error class of the library, and the one form its messages take."""

from __future__ import annotations


class GraphAttentionError(ValueError):
    """Every refusal of hf_graphattn. A `ValueError`, so that callers need not know this name."""


def refusal(what: str, got: object, allowed: str, remedy: str = "") -> GraphAttentionError:
    """The error for a bad argument: what it is, what it was, what is allowed, what to do."""
    message = f"{what} is {got!r}; allowed: {allowed}."
    return GraphAttentionError(f"{message} {remedy}".rstrip())
