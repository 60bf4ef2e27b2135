"""The flags that only speech recognition has."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal

from finetune.errors import refusal
from finetune.settings.flags import ID_OR_PATH, at_least, flag
from finetune.settings.groups import SourceArguments, StartArguments

CHARACTERS = "char"


@dataclass
class SpeechDataArguments(SourceArguments):
    """The recordings, their transcripts, and how both are read."""

    INPUTS: ClassVar[tuple[str, ...]] = ("text_case", "chars_to_ignore")

    dataset_config_name: str | None = flag("Which configuration of the data, not the task's.")
    train_split_name: str | None = flag("Split to train on, where it is not the task's, or train.")
    eval_split_name: str | None = flag(
        "Split to evaluate on, where it is not the task's, or validation."
    )
    validation_split_percentage: float | None = flag(
        "Where there is no validation split: so many per cent of the training rows, the last ones."
    )
    audio_column_name: str | None = flag(
        "Column with the recordings, or with the names of their files, which are looked for beside "
        "the table; default: audio, file_name, path or file."
    )
    text_column_name: str | None = flag(
        "Column with the transcripts; default: text, sentence, transcription or transcript."
    )
    chars_to_ignore: list[str] | None = field(
        default=None, metadata={"help": "Characters to remove from the transcripts."}
    )
    text_case: Literal["keep", "lower", "upper"] = flag(
        "Whether the transcripts are written in small or in capital letters.", "keep"
    )
    min_duration_in_seconds: float | None = flag("Leave shorter recordings out of training.")
    max_duration_in_seconds: float | None = flag("Leave longer recordings out of training.")
    group_by_length: bool = flag(
        "Train on batches of like lengths, with little padding; the order is less random.", False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "min_duration_in_seconds", "max_duration_in_seconds")
        share = self.validation_split_percentage
        if share is not None and not 0 < share < 100:
            raise refusal(
                "validation_split_percentage", share, "above 0 and below 100", "Give a share."
            )


@dataclass
class RegularisationArguments:
    """What is dropped out and masked in training: settings of the model's configuration."""

    TITLE: ClassVar[str] = "dropout and masks in training"

    attention_dropout: float | None = flag("Dropout of the attention; default: the model's own.")
    activation_dropout: float | None = flag("Dropout within the feed-forward part; the same.")
    hidden_dropout: float | None = flag("Dropout of the layers' outputs; the same.")
    feat_proj_dropout: float | None = flag("Dropout of the projected features; the same.")
    final_dropout: float | None = flag("Dropout before the head; the same.")
    layerdrop: float | None = flag("Share of layers that are left out of an update; the same.")
    mask_time_prob: float | None = flag("SpecAugment: share of masked frames; the same.")
    mask_time_length: int | None = flag("SpecAugment: frames that are masked together; the same.")
    mask_feature_prob: float | None = flag("SpecAugment: share of masked features; the same.")
    mask_feature_length: int | None = flag("SpecAugment: features masked together; the same.")

    def regularisation(self) -> dict[str, float | int]:
        """Those that are given, by their names in a configuration."""
        found = {f.name: getattr(self, f.name) for f in fields(RegularisationArguments)}
        return {name: value for name, value in found.items() if value is not None}


@dataclass
class SpeechModelArguments(StartArguments, RegularisationArguments):
    """Where the model comes from, its vocabulary, and what of it is trained how."""

    tokenizer_name: str | None = flag(
        f"Vocabulary; {CHARACTERS}: the characters of the training transcripts, with a new head; "
        f"default: the checkpoint's own, where it has a head for CTC, else {CHARACTERS}.",
        path=ID_OR_PATH,
    )
    freeze_feature_encoder: bool = flag("Do not train the convolutions before the layers.", False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in self.regularisation().items():
            at_least(self, 0, name)
            if not name.endswith("length") and value > 1:
                raise refusal(name, value, "0 to 1", "Give a share.")
