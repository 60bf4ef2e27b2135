"""The groups of flags that most scripts share: rows, models, filters, and what is trained."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from finetune.errors import refusal
from finetune.settings.flags import ID_OR_PATH, PATH, at_least, flag, only
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
    dataset_name: str | None = flag("Hub id or folder, not the task's.", metavar=ID_OR_PATH)
    train_file: str | None = flag("Own csv, json or parquet file to train on.", metavar=PATH)
    validation_file: str | None = flag("Own file to evaluate on.", metavar=PATH)
    test_file: str | None = flag("Own file to predict, with do_predict.", free=True, metavar=PATH)
    max_train_samples: int | None = flag("Train on the first so many rows.")
    max_eval_samples: int | None = flag("Evaluate on the first so many rows of each split.")
    max_predict_samples: int | None = flag(free=True, rare=True)
    metric: list[str] | None = flag(
        "More metrics: a name (f1:average=macro), or a module of evaluate.",
        metavar=f"NAME_OR_{PATH}",
    )

    def __post_init__(self) -> None:
        at_least(self, 1, "max_train_samples", "max_eval_samples", "max_predict_samples")

    @property
    def data_name(self) -> str | None:
        """The name of the data set, folder or file to train on, without its suffix."""
        if self.train_file is not None:
            return Path(self.train_file).stem
        folder = self.dataset_name or getattr(self, "train_dir", None)
        return None if folder is None else Path(folder).resolve().name


@dataclass
class DataArguments(SourceArguments):
    """What to train on and to measure, and how long the inputs are."""

    INPUTS: ClassVar[tuple[str, ...]] = ("max_length",)

    text_column_names: list[str] | None = flag(
        "Column with the text, or two that are a pair; default: the task's, or the only one."
    )
    label_column_name: str | None = flag("Column with the labels; default: the task's, or label.")
    max_length: int = flag("Longest input, in tokens.", 128, aliases=["max_seq_length"])
    pad_to_max_length: bool = flag(default=False, rare=True)
    group_by_length: bool = flag("Train on batches of like lengths: less padding.", False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (names := self.text_column_names) is not None:
            self.text_column_names = names = [x for name in names for x in name.split(",")]
            if not all(names) or not len(set(names)) == len(names) <= 2:
                allowed = "one column, or two that are read as a pair"
                raise refusal("text_column_names", names, allowed, "Name them.")
        at_least(self, 1, "max_length")


@dataclass
class ModelSource:
    """Where the model comes from, as far as every script has it."""

    TITLE: ClassVar[str] = "model"

    model_name_or_path: str | None = flag("Hub id or folder, plain or patched.", metavar=ID_OR_PATH)
    revision: str | None = flag("Branch, tag or commit on the hub.", aliases=["model_revision"])
    cache_dir: str | None = flag(free=True, rare=True)
    trust_remote_code: bool = flag("Run code of the model's repository, or a metric's.", False)

    def hub(self) -> dict[str, Any]:
        """Where on the hub the model is, as arguments of `from_pretrained`."""
        named = {"revision": self.revision, "cache_dir": self.cache_dir}
        # Without trust_remote_code transformers would ask on the terminal.
        known = {name: value for name, value in named.items() if value is not None}
        return {**known, "trust_remote_code": self.trust_remote_code}

    @property
    def origin(self) -> str | None:
        """The hub id or folder that the model, or its configuration, comes from."""
        return self.model_name_or_path or getattr(self, "config_name", None)


@dataclass
class ModelArguments(ModelSource):
    """Where the model comes from, and its tokenizer."""

    model_name_or_path: str = flag(
        "Hub id or folder, plain or patched.", MISSING, metavar=ID_OR_PATH
    )
    tokenizer_name: str | None = flag("Another than the model's own.", metavar=ID_OR_PATH)
    ignore_mismatched_sizes: bool = flag(default=False, rare=True)  # replace such a head


@dataclass
class StartArguments(ModelSource):
    """A checkpoint to start from, or a configuration to start from nothing."""

    config_name: str | None = flag("A configuration: untrained weights.", metavar=ID_OR_PATH)
    model_type: str | None = flag("The same by transformers' defaults of a type: gpt2, vit ...")
    config_overrides: str | None = flag("Changes to it, like n_embd=384,resid_pdrop=0.2.")

    def __post_init__(self) -> None:
        names = ("model_name_or_path", "config_name", "model_type")
        starts = {name: x for name in names if (x := getattr(self, name)) is not None}
        if len(starts) != 1:
            allowed, remedy = "exactly one of them", "Say where to start."
            raise refusal(", ".join(names), starts or None, allowed, remedy)
        without = "None for a checkpoint, whose weights fit its own configuration"
        only(self, without, self.model_name_or_path is None, "config_overrides")
        only(
            self,
            "None with model_type, which is no repository",
            self.origin is not None,
            "revision",
        )

    @property
    def source(self) -> str | None:
        """The checkpoint's or configuration's name, or the type."""
        return self.origin or self.model_type


@dataclass
class TuningArguments:
    """What is trained."""

    TITLE: ClassVar[str] = "what is trained"

    peft: Literal["none", "lora", "filters"] = flag(
        "Train all; LoRA, the filters and the head; or the filters' scalars and the head.", "none"
    )
    lora_r: int | None = flag(f"[lora] Rank; default: {LORA['lora_r']}.")
    lora_alpha: int | None = flag(rare=True)
    lora_dropout: float | None = flag(rare=True)
    lora_target_modules: list[str] | None = flag(rare=True)  # default: all

    def __post_init__(self) -> None:
        at_least(self, 1, "lora_r", "lora_alpha")
        at_least(self, 0, "lora_dropout")
        only(self, "with peft lora only", self.peft == "lora", *LORA, "lora_target_modules")


@dataclass
class FilterArguments(TuningArguments):
    """Which graph filter, and what of the model is trained with it."""

    TITLE: ClassVar[str] = "graph filter"

    variant: str = flag("Filter to put into each attention: none, or one named below.", NO_VARIANT)
    backend: str = flag("How attention is computed: auto, eager, sdpa ...", "auto")
    filter_learning_rate: float | None = flag(
        f"Highest learning rate of the filter's scalars; default: {DEFAULT_FILTER_RATE}."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "filter_learning_rate")
        checked_variant(self.variant)
