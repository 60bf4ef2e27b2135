"""The flags that only language models have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from finetune.errors import refusal
from finetune.settings.flags import ID_OR_PATH, PATH, at_least, flag, only, shares
from finetune.settings.groups import SourceArguments, StartArguments

CHARACTERS = "char"
HELD_OUT = 5  # per cent, as in transformers' run_clm


@dataclass
class LanguageDataArguments(SourceArguments):
    """The text, how it is cut for training, and how it is measured."""

    INPUTS: ClassVar[tuple[str, ...]] = ("block_size", "row_end")

    train_file: str | None = flag("Own txt, csv, json or parquet file to train on.", metavar=PATH)
    max_train_samples: int | None = flag("Train on the first so many rows: lines, not blocks.")
    dataset_config_name: str | None = flag(rare=True)
    text_column: str | None = flag("Column with the text, where it is not the task's.")
    validation_split_percentage: float | None = flag(
        f"Per cent of training rows to evaluate on, if no others; default: {HELD_OUT} of own text."
    )
    row_end: Literal["none", "newline", "eos"] | None = flag(rare=True)  # default: the task's
    word_level: bool | None = flag(rare=True)  # whether white space separates words
    block_size: int | None = flag("Tokens of a block; default: the model's, at most 1024.")
    random_offsets: bool = flag("Draw each epoch's blocks from anywhere in the text.", False)
    eval_protocol: Literal["block", "sliding"] = flag(
        "Evaluate block by block, or slide the context: every token but the first.", "block"
    )
    stride: int | None = flag("Tokens between two contexts, with sliding.")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 2, "block_size")
        at_least(self, 1, "stride")
        is_sliding, has_stride = self.eval_protocol == "sliding", self.stride is not None
        only(self, "None with eval_protocol block", is_sliding, "stride")
        only(self, "block without a stride", has_stride or not is_sliding, "eval_protocol")
        shares(self, "validation_split_percentage", scale=100, is_open=True)


@dataclass
class LanguageModelArguments(StartArguments):
    """Where the model comes from, and its tokenizer."""

    tokenizer_name: str | None = flag(
        f"Another than the model's own; {CHARACTERS}: the text's characters.", metavar=ID_OR_PATH
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model_name_or_path is None and self.tokenizer_name is None:
            allowed = f"a hub id, a folder or {CHARACTERS} for an untrained model"
            raise refusal("tokenizer_name", None, allowed, "Name a tokenizer, or give char.")
