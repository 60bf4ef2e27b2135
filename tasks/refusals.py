"""The one form of this folder's errors."""

from __future__ import annotations

LONGEST_REASON = 300


class TaskError(ValueError):
    """What was asked of a task or metric cannot be done; the message is for whoever asked."""


def refusal(argument: str, value: object, allowed: str, remedy: str) -> TaskError:
    """An error that says in one line what was given, what is allowed and what to do."""
    return TaskError(f"{argument} is {value!r}; allowed: {allowed}. {remedy}")


def reason(error: BaseException) -> str:
    """What another library's error says, on one line."""
    words = " ".join(f"{type(error).__name__}: {error}".split())
    return words if len(words) <= LONGEST_REASON else words[:LONGEST_REASON] + "..."
