"""The one error class of the library, and the one form its messages take."""

from __future__ import annotations


class GraphAttentionError(ValueError):
    """What hf_graphattn raises. It is a `ValueError`, so that callers need not know this name."""


def refusal(what: str, got: object, allowed: str, remedy: str = "") -> GraphAttentionError:
    """The error for a bad argument: its name, its value, what is allowed, and what to do."""
    message = f"{what} is {_shown(got)}; allowed: {allowed}."
    return GraphAttentionError(f"{message} {remedy}".rstrip())


def _shown(got: object) -> str:
    try:
        return repr(got)
    except ValueError:  # Python prints no integer of more than 4300 digits
        return f"{type(got).__name__} of very many digits"
