"""The one error class of the library, and the one form its messages take."""

from __future__ import annotations

LONGEST = 300  # characters of a value in a message: the text of a model has thousands


class GraphAttentionError(ValueError):
    """The error of hf_graphattn. It is a `ValueError`, so that callers need not know this name."""


def refusal(what: str, got: object, allowed: str, remedy: str = "") -> GraphAttentionError:
    """The error for a bad argument: its name, its value, what is allowed, and what to do."""
    value = repr(got)
    value = value if len(value) <= LONGEST else f"{value[:LONGEST]}..."
    return GraphAttentionError(f"{what} is {value}; allowed: {allowed}. {remedy}".rstrip())


def no_square(name: str, queries: int, keys: int) -> GraphAttentionError:
    """The error of an attention class whose A, (queries, keys), no filter can take."""
    return GraphAttentionError(
        f"{name} has {queries} queries and {keys} keys: keys from a cache that the filter cannot "
        f"use (pass use_cache=False); or queries left out by a model that is asked for the last "
        f"logits alone (Gemma 4; pass output_hidden_states=True too); or keys of other tokens, "
        f"where A has no square (leave such modules out with layers=(...))."
    )
