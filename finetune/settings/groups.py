"""The groups of flags that most scripts share: rows, models, filters, and what is trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from finetune.errors import refusal
from finetune.settings.flags import ID_OR_PATH, PATH, also, at_least, flag
from finetune.settings.variants import NO_VARIANT, checked_variant

FILTER_RATE = "filter_learning_rate"
# At a model's own rate the scalars hardly move in a short run; at 0.1 one of four on sentences was
# lost. By the studies filter-rate-ptb and filter-rate-sentences of docs/evidence.md.
DEFAULT_FILTER_RATE = 1e-2
LORA = {"lora_r": 8, "lora_alpha": 16, "lora_dropout": 0.0}


@dataclass
class SourceArguments:
    """Which rows to train on and to measure.

    ``INPUTS`` are the flags that make a model's inputs what they are, in evaluation as in training.
    """

    TITLE: ClassVar[str] = "data"
    INPUTS: ClassVar[tuple[str, ...]] = ()

    task_name: str | None = flag("Task to run; without one, train_file is a task of its own.")
    dataset_name: str | None = flag(
        "Hub id, or local folder of its layout, instead of the task's.", path=ID_OR_PATH
    )
    train_file: str | None = flag("Own csv, json or parquet file to train on.", path=PATH)
    validation_file: str | None = flag("Own file to evaluate on.", path=PATH)
    test_file: str | None = flag("Own file to predict, with do_predict.", free=True, path=PATH)
    max_train_samples: int | None = flag("Train on the first so many rows.")
    max_eval_samples: int | None = flag("Evaluate on the first so many rows of each split.")
    max_predict_samples: int | None = flag(
        "Predict the first so many rows of each split.", free=True
    )
    metric: list[str] | None = field(
        default=None,
        metadata={
            "help": "Metrics beside the task's own, each a name (f1), the path of a module of the "
            "library evaluate, or its hub id with trust_remote_code; arguments as in "
            "f1:average=macro.",
            "metavar": f"NAME_OR_{PATH}",
        },
    )

    def __post_init__(self) -> None:
        at_least(self, 1, "max_train_samples", "max_eval_samples", "max_predict_samples")

    @property
    def own_name(self) -> str | None:
        """The name of the data set, folder or file to train on, without its suffix."""
        if self.train_file is not None:
            return Path(self.train_file).stem
        folder = self.dataset_name or getattr(self, "train_dir", None)
        return None if folder is None else Path(folder).resolve().name


@dataclass
class DataArguments(SourceArguments):
    """What to train on and to measure, and how long the inputs are."""

    INPUTS: ClassVar[tuple[str, ...]] = ("max_length",)

    text_column_names: list[str] | None = field(
        default=None,
        metadata={
            "help": "Column with the text, or two that are read as a pair, also parted by a comma; "
            "default: the task's, or the one column of text that own files have."
        },
    )
    label_column_name: str | None = flag("Column with the labels; default: the task's, or label.")
    max_length: int = flag(
        "Longest input, in tokens; longer ones are cut.", 128, aliases=also("max_seq_length")
    )
    pad_to_max_length: bool = flag("Pad to max_length instead of to the batch's longest.", False)
    group_by_length: bool = flag(
        "Train on batches of like lengths, with little padding; the order is less random.", False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text_column_names is not None:
            names = [name for part in self.text_column_names for name in part.split(",")]
            self.text_column_names = names
            if not all(names) or not len(set(names)) == len(names) <= 2:
                allowed = "one column, or two that are read as a pair"
                raise refusal("text_column_names", names, allowed, "Name them.")
        at_least(self, 1, "max_length")
        if self.group_by_length and self.pad_to_max_length:
            raise refusal(
                "group_by_length",
                True,
                "without pad_to_max_length, which makes all rows of one length",
                "Drop one of the two flags.",
            )


@dataclass
class ModelSource:
    """Where the model comes from, as far as every script has it."""

    TITLE: ClassVar[str] = "model"
    model_name_or_path: str | None = flag("Hub id or folder, plain or patched.", path=ID_OR_PATH)
    revision: str | None = flag(
        "Branch, tag or commit of the model on the hub; default: main.",
        aliases=also("model_revision"),
    )
    cache_dir: str | None = flag(
        "Folder for models that are downloaded; default: the hub's own, in HF_HOME.", free=True
    )
    trust_remote_code: bool = flag(
        "Run the code that the model's repository brings, with variant none; and that of metrics "
        "on the hub.",
        False,
    )

    def hub(self) -> dict[str, Any]:
        """What says where on the hub the model is, as `from_pretrained` takes it."""
        found = {"revision": self.revision, "cache_dir": self.cache_dir}
        given = {name: value for name, value in found.items() if value is not None}
        return {**given, "trust_remote_code": self.trust_remote_code}  # unsaid it would be asked

    @property
    def origin(self) -> str | None:
        """The hub id or folder that the model, or its configuration, comes from."""
        return self.model_name_or_path or getattr(self, "config_name", None)


@dataclass
class ModelArguments(ModelSource):
    """Where the model comes from, and its tokenizer."""

    model_name_or_path: str = field(
        metadata={"help": "Hub id or folder, plain or patched.", "metavar": ID_OR_PATH}
    )
    tokenizer_name: str | None = flag(
        "Tokenizer, where it is not the model's own.", path=ID_OR_PATH
    )
    ignore_mismatched_sizes: bool = flag(
        "Replace a head that has other labels by a new one.", False
    )


@dataclass
class StartArguments(ModelSource):
    """A checkpoint to start from, or a configuration to start from nothing."""

    model_name_or_path: str | None = flag(
        "Hub id or folder to start from, plain or patched.", path=ID_OR_PATH
    )
    config_name: str | None = flag(
        "Hub id or folder of a configuration, for untrained weights.", path=ID_OR_PATH
    )
    model_type: str | None = flag(
        "The same from transformers' defaults of this type: gpt2, vit ..."
    )
    config_overrides: str | None = flag(
        "Changes to that configuration, like n_embd=384,n_layer=6,resid_pdrop=0.2."
    )

    def __post_init__(self) -> None:
        starts = {
            name: getattr(self, name)
            for name in ("model_name_or_path", "config_name", "model_type")
        }
        given = {name: value for name, value in starts.items() if value is not None}
        if len(given) != 1:
            raise refusal(
                ", ".join(starts), given or None, "exactly one of them", "Say where to start."
            )
        if self.config_overrides is not None and self.model_name_or_path is not None:
            raise refusal(
                "config_overrides",
                self.config_overrides,
                "None for a checkpoint, whose weights fit its own configuration",
                "Drop it, or give config_name instead of model_name_or_path.",
            )
        if self.revision is not None and self.origin is None:
            allowed = "None with model_type, which is no repository"
            raise refusal("revision", self.revision, allowed, "Drop the flag.")

    @property
    def source(self) -> str | None:
        """The checkpoint's or configuration's name, or the type."""
        return self.origin or self.model_type


@dataclass
class TuningArguments:
    """What is trained."""

    TITLE: ClassVar[str] = "what is trained"

    peft: Literal["none", "lora", "filters"] = flag(
        "Train everything (none), LoRA with the filters and the head (lora), or the filters' "
        "scalars and the head alone (filters).",
        "none",
    )
    lora_r: int | None = flag(f"[lora] Rank; default: {LORA['lora_r']}.")
    lora_alpha: int | None = flag(
        f"[lora] Scale: alpha / r times the update; default: {LORA['lora_alpha']}."
    )
    lora_dropout: float | None = flag(f"[lora] Dropout before it; default: {LORA['lora_dropout']}.")
    lora_target_modules: list[str] | None = field(
        default=None,
        metadata={
            "help": "[lora] Names of the linear layers, or how they end; default: all of the base."
        },
    )

    def __post_init__(self) -> None:
        at_least(self, 1, "lora_r", "lora_alpha")
        at_least(self, 0, "lora_dropout")
        for name in (*LORA, "lora_target_modules"):
            value = getattr(self, name)
            if value is not None and self.peft != "lora":
                raise refusal(
                    name, value, "with peft lora only", "Drop the flag, or give --peft lora."
                )


@dataclass
class FilterArguments(TuningArguments):
    """Which graph filter, and what of the model is trained with it."""

    TITLE: ClassVar[str] = "graph filter"

    variant: str = flag(
        "Graph filter to put into each attention: none, or one that is named below.", NO_VARIANT
    )
    backend: str = flag("How attention is computed: auto, eager, sdpa ...", "auto")
    filter_learning_rate: float | None = flag(
        f"Highest learning rate of the filter's scalars; default: {DEFAULT_FILTER_RATE}."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "filter_learning_rate")
        checked_variant(self.variant)
