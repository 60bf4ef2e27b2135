"""The flags that only language models have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from finetune.errors import refusal
from finetune.settings.flags import ID_OR_PATH, PATH, also, at_least, flag
from finetune.settings.groups import SourceArguments, StartArguments

CHARACTERS = "char"
HELD_OUT = 5  # per cent, as in transformers' run_clm


@dataclass
class LanguageDataArguments(SourceArguments):
    """The text, how it is cut for training, and how it is measured."""

    INPUTS: ClassVar[tuple[str, ...]] = ("block_size", "row_end")

    train_file: str | None = flag("Own txt, csv, json or parquet file to train on.", path=PATH)
    max_train_samples: int | None = flag(
        "Train on the first so many rows: of a txt file its lines, not blocks as in run_clm."
    )
    max_eval_samples: int | None = flag(
        "Evaluate on the first so many rows of each split: lines, not blocks as in run_clm."
    )
    dataset_config_name: str | None = flag("Which configuration of the data, not the task's.")
    text_column: str | None = flag(
        "Column with the text, where it is not the task's.", aliases=also("text_column_names")
    )
    validation_split_percentage: float | None = flag(
        "Where there is no validation split: so many per cent of the training rows, the last ones; "
        f"default: {HELD_OUT} of one's own text, none of a task's."
    )
    row_end: Literal["none", "newline", "eos"] | None = flag(
        "What ends each row: nothing, a line break where it has none, or the tokenizer's end of "
        "text; default: the task's."
    )
    word_level: bool | None = flag(
        "Whether white space parts the words, for a perplexity a word; default: as the task says."
    )
    block_size: int | None = flag(
        "Tokens of a training block and of the context in evaluation; default: the longest that "
        "model and tokenizer take, at most 1024."
    )
    random_offsets: bool = flag(
        "Draw each epoch's training blocks from anywhere in the text, as many as it has; default: "
        "the text is cut into blocks once, and what is left over at its end not used.",
        False,
    )
    eval_protocol: Literal["block", "sliding"] = flag(
        "Evaluate blocks one after another (each block's first token is not predicted), or slide a "
        "context of block_size tokens over the text (every token but the text's first is).",
        "block",
    )
    stride: int | None = flag("Tokens between two contexts, with sliding; 1: the last of each.")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 2, "block_size")
        at_least(self, 1, "stride")
        if (self.eval_protocol == "sliding") != (self.stride is not None):
            raise refusal(
                "stride",
                self.stride,
                "1 to block_size with eval_protocol sliding, None with block",
                f"eval_protocol is {self.eval_protocol}: change one of the two.",
            )
        share = self.validation_split_percentage
        if share is not None and not 0 < share < 100:
            raise refusal(
                "validation_split_percentage", share, "above 0 and below 100", "Give a share."
            )


@dataclass
class LanguageModelArguments(StartArguments):
    """Where the model comes from, and its tokenizer."""

    tokenizer_name: str | None = flag(
        f"Tokenizer, where it is not the model's own; {CHARACTERS}: one token for each character "
        "of the training text.",
        path=ID_OR_PATH,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model_name_or_path is None and self.tokenizer_name is None:
            raise refusal(
                "tokenizer_name",
                None,
                f"a hub id, a folder or {CHARACTERS} for an untrained model",
                "Name a tokenizer, or give char.",
            )
