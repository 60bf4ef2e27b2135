"""The flags that only models of code have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from finetune.settings.flags import flag
from finetune.settings.groups import ModelArguments

GENERATE = "generate"


@dataclass
class CodeModelArguments(ModelArguments):
    """Where the model comes from, and how it says the label."""

    objective: Literal["classify", "generate"] = flag(
        "classify: a head chooses the label; generate: the decoder writes its word, as CodeT5's.",
        "classify",
    )
