"""The scripts' errors: what was given, what is allowed, and what to do about it."""

from __future__ import annotations


class Refused(ValueError):
    """What was asked for cannot be done; the message is for the person who asked."""


class DivergedError(RuntimeError):
    """The loss, the weights or the model's outputs became NaN or infinite."""


def refusal(argument: str, value: object, allowed: str, remedy: str) -> Refused:
    """The scripts' one form of error.

    Args:
        argument: what is wrong: a flag's name, or what was found in a file.
        value: what was given.
        allowed: what could have been given instead.
        remedy: a sentence that says what a person can do.
    """
    return Refused(f"{argument} is {value!r}; allowed: {allowed}. {remedy}")


def diverged_logits() -> DivergedError:
    """The error of a model whose outputs cannot be scored."""
    return DivergedError("The model's logits are NaN or infinite. Lower learning_rate.")
