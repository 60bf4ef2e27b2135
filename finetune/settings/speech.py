"""The flags that only speech recognition has."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, Literal

from finetune.settings.flags import ID_OR_PATH, at_least, flag, shares
from finetune.settings.groups import SourceArguments, StartArguments

CHARACTERS = "char"


@dataclass
class SpeechDataArguments(SourceArguments):
    """The recordings, their transcripts, and how both are read."""

    INPUTS: ClassVar[tuple[str, ...]] = ("text_case", "chars_to_ignore")

    dataset_config_name: str | None = flag(rare=True)
    train_split_name: str | None = flag(rare=True)  # default: the task's, or train
    eval_split_name: str | None = flag(rare=True)  # default: the task's, or validation
    validation_split_percentage: float | None = flag(
        "Without a validation split: so many per cent of the training rows, the last ones."
    )
    audio_column_name: str | None = flag(
        "Column with recordings or their files; default: audio, file_name, path or file."
    )
    text_column_name: str | None = flag("Column with the transcripts; default: text, sentence ...")
    chars_to_ignore: list[str] | None = flag("Characters to remove from the transcripts.")
    text_case: Literal["keep", "lower", "upper"] = flag("Case of the transcripts.", "keep")
    min_duration_in_seconds: float | None = flag("Leave shorter recordings out of training.")
    max_duration_in_seconds: float | None = flag("Leave longer recordings out of training.")
    group_by_length: bool = flag("Train on batches of like lengths: less padding.", False)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "min_duration_in_seconds", "max_duration_in_seconds")
        shares(self, "validation_split_percentage", scale=100, is_open=True)


@dataclass
class RegularisationArguments:
    """Dropout and SpecAugment: settings of the model's configuration, by its names.

    The default of each is the model's own.
    """

    TITLE: ClassVar[str] = "dropout and masks in training"

    attention_dropout: float | None = flag(rare=True)
    activation_dropout: float | None = flag(rare=True)
    hidden_dropout: float | None = flag(rare=True)
    feat_proj_dropout: float | None = flag(rare=True)
    final_dropout: float | None = flag(rare=True)
    layerdrop: float | None = flag(rare=True)
    mask_time_prob: float | None = flag(rare=True)
    mask_time_length: int | None = flag(rare=True)
    mask_feature_prob: float | None = flag(rare=True)
    mask_feature_length: int | None = flag(rare=True)

    def regularisation(self) -> dict[str, float | int]:
        """Those that are given, by their names in a configuration."""
        values = {f.name: getattr(self, f.name) for f in fields(RegularisationArguments)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass
class SpeechModelArguments(StartArguments, RegularisationArguments):
    """Where the model comes from, its vocabulary, and what of it is trained how."""

    tokenizer_name: str | None = flag(
        f"Vocabulary; {CHARACTERS}: the transcripts' characters, and a new head; default: the "
        f"checkpoint's, where it has a head for CTC, else {CHARACTERS}.",
        metavar=ID_OR_PATH,
    )
    freeze_feature_encoder: bool = flag("Do not train the convolutions before the layers.", False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.regularisation():
            at_least(self, 0, name)
            if not name.endswith("length"):
                shares(self, name)
