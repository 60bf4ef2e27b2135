"""The flags that only models of code have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from finetune.settings.flags import flag
from finetune.settings.groups import DataArguments, ModelArguments

GENERATE = "generate"


@dataclass
class CodeDataArguments(DataArguments):
    """The code, which the papers' runs cut at 512 tokens."""

    max_length: int = flag("Longest input, in tokens.", 512, aliases=["max_seq_length"])


@dataclass
class CodeModelArguments(ModelArguments):
    """Where the model comes from, and how it gives the label."""

    objective: Literal["classify", "generate"] = flag(
        "classify: a head chooses the label; generate: the decoder writes its word.", "classify"
    )
