"""Whether a model is running: patching it then would mix two models in one output."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType

from torch import nn

from .errors import GraphAttentionError

RUNS = ("forward", "generate")  # the methods of a model that must not see it change


def refuse_running(model: nn.Module, do: str) -> None:
    """Raise `GraphAttentionError` if a thread, this one too, is in a forward of the model.

    The threads' stacks are read, so that a forward need not note that it runs.
    """
    modules = set(model.modules())
    for frame in _frames():
        if frame.f_code.co_name in RUNS and _owner(frame) in modules:
            raise GraphAttentionError(
                f"{type(model).__name__} is running, perhaps in another thread, and {do} it now "
                f"would mix two models in one output. Wait until its forward has returned."
            )


def _frames() -> Iterator[FrameType]:
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            yield frame
            frame = frame.f_back


def _owner(frame: FrameType) -> nn.Module | None:
    owner = frame.f_locals.get("self")
    return owner if isinstance(owner, nn.Module) else None
