"""Command line of the scripts: HfArgumentParser dataclasses, flags named as in transformers.

The flags of the variants are made from the registered configs, so a new variant brings its own.
"""

from __future__ import annotations

import math
import re
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, make_dataclass
from decimal import Decimal
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from transformers import HfArgumentParser

import hf_graphattn as ga

NO_VARIANT = "none"


def flag(help: str, default: Any = None) -> Any:
    """A dataclass field that becomes a flag with this help."""
    return field(default=default, metadata={"help": help})


def refusal(argument: str, value: object, allowed: str, remedy: str) -> ValueError:
    """The scripts' one form of error: what was given, what is allowed, what to do."""
    return ValueError(f"{argument} is {value!r}; allowed: {allowed}. {remedy}")


@dataclass
class SourceArguments:
    """Which rows to train on and to measure."""

    task_name: str | None = flag("Task to run; without one, train_file is a task of its own.")
    dataset_name: str | None = flag("Hub id, or local folder of its layout, instead of the task's.")
    train_file: str | None = flag("Own csv, json or parquet file to train on.")
    validation_file: str | None = flag("Own file to evaluate on.")
    test_file: str | None = flag("Own file to predict, with do_predict.")
    max_train_samples: int | None = flag("Train on the first so many rows.")
    max_eval_samples: int | None = flag("Evaluate on the first so many rows of each split.")
    max_predict_samples: int | None = flag("Predict the first so many rows of each split.")

    def __post_init__(self) -> None:
        at_least(self, 1, "max_train_samples", "max_eval_samples", "max_predict_samples")


@dataclass
class DataArguments(SourceArguments):
    """What to train on and to measure, and how long the inputs are."""

    max_length: int = flag("Longest input, in tokens; longer ones are cut.", 128)
    pad_to_max_length: bool = flag("Pad to max_length instead of to the batch's longest.", False)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "max_length")


@dataclass
class ModelArguments:
    """Where the model comes from."""

    model_name_or_path: str = field(metadata={"help": "Hub id or folder, plain or patched."})
    tokenizer_name: str | None = flag("Tokenizer, where it is not the model's own.")
    ignore_mismatched_sizes: bool = flag(
        "Replace a head that has other labels by a new one.", False
    )


@dataclass
class TrainArguments:
    """How to train, and where results go."""

    output_dir: str = field(metadata={"help": "Folder for results, predictions and the model."})
    per_device_train_batch_size: int = flag("Training batch of one process.", 8)
    per_device_eval_batch_size: int = flag("Evaluation batch of one process.", 8)
    learning_rate: float = flag("Highest learning rate.", 5e-5)
    weight_decay: float = flag("AdamW's; biases, norms and the filter's scalars have none.", 0.0)
    num_train_epochs: int = flag("Passes over the training rows.", 3)
    max_train_steps: int | None = flag("Updates, instead of num_train_epochs.")
    gradient_accumulation_steps: int = flag("Batches an update.", 1)
    lr_scheduler_type: Literal[
        "linear",
        "cosine",
        "cosine_with_restarts",
        "polynomial",
        "constant",
        "constant_with_warmup",
        "inverse_sqrt",
    ] = flag("Schedule of the learning rate.", "linear")
    num_warmup_steps: int = flag("Updates until the highest learning rate.", 0)
    warmup_ratio: float = flag("The same, as a share of all updates.", 0.0)
    max_grad_norm: float = flag("Longer gradients are clipped to this norm; 0 is never.", 1.0)
    mixed_precision: Literal["no", "fp16", "bf16"] | None = flag(
        "Number format of the forward pass; default: the launcher's."
    )
    seed: int = flag("Seed of weights, order and dropout.", 42)
    do_predict: bool = flag("Write predictions for the test splits.", False)
    with_tracking: bool = flag("Log to trackers.", False)
    report_to: str = flag("Which tracker, with with_tracking; 'all' is each installed one.", "all")

    def __post_init__(self) -> None:
        at_least(self, 1, "per_device_train_batch_size", "per_device_eval_batch_size")
        at_least(self, 1, "num_train_epochs", "max_train_steps", "gradient_accumulation_steps")
        at_least(self, 0, "learning_rate", "weight_decay", "num_warmup_steps", "max_grad_norm")
        at_least(self, 0, "seed", "warmup_ratio")
        if self.warmup_ratio > 1:
            raise refusal("warmup_ratio", self.warmup_ratio, "0 to 1", "Give a share of the run.")
        if self.warmup_ratio and self.num_warmup_steps:
            raise refusal(
                "warmup_ratio",
                self.warmup_ratio,
                f"0 beside num_warmup_steps {self.num_warmup_steps}",
                "Give only one of the two.",
            )


@dataclass
class FilterArguments:
    """Which graph filter."""

    variant: str = flag(
        "Graph filter to put into each attention: none, or a registered one.", "none"
    )
    backend: str = flag("How attention is computed: auto, eager, sdpa ...", "auto")
    filter_learning_rate: float | None = flag("Learning rate of the filter's scalars alone.")

    def __post_init__(self) -> None:
        at_least(self, 0, "filter_learning_rate")
        allowed = [NO_VARIANT, *ga.variant_configs()]
        if self.variant not in allowed:
            raise refusal("variant", self.variant, ", ".join(allowed), "Choose one of these.")


@dataclass
class Settings:
    """All that a run was asked for; ``variant`` is the filter's config, or None."""

    data: Any  # the script's own dataclasses: DataArguments and ModelArguments, unless it says
    model: Any
    train: TrainArguments
    filter: FilterArguments
    variant: Any

    def flat(self) -> dict[str, Any]:
        """Every flag's value by its name; of the variant's flags, those its config has."""
        groups = (self.data, self.model, self.train, self.filter)
        values = {name: value for group in groups for name, value in asdict(group).items()}
        return values if self.variant is None else values | self.variant.to_dict()


def at_least(arguments: object, least: float, *names: str) -> None:
    """Raise ``ValueError`` for a number among these fields that is given and below ``least``."""
    for name in names:
        value = getattr(arguments, name)
        if value is not None and not (math.isfinite(value) and value >= least):
            raise refusal(name, value, f"a number of at least {least}", "Change the flag.")


def parse(
    argv: Sequence[str] | None = None,
    *,
    data_group: type[SourceArguments] = DataArguments,
    model_group: type = ModelArguments,
    **defaults: Any,
) -> Settings:
    """Settings from the command line, or from ``argv``; ``defaults`` replace those of the flags.

    The groups are the dataclasses of a script whose data or models have flags of their own.
    """
    variant_flags = variant_arguments(ga.variant_configs())
    groups = (data_group, model_group, TrainArguments, FilterArguments, variant_flags)
    parser = HfArgumentParser(groups, allow_abbrev=False)
    parser.set_defaults(**defaults)
    *parsed, own_flags = parser.parse_args_into_dataclasses(
        plain_numbers(argv), look_for_args_file=False
    )
    data, model, train, filter_arguments = parsed
    given = {name: value for name, value in vars(own_flags).items() if value is not None}
    variant = variant_config(filter_arguments.variant, given)
    return Settings(data, model, train, filter_arguments, variant)


def plain_numbers(argv: Sequence[str] | None) -> list[str]:
    """``argv`` (None: the process's) with ``-1e-3`` as ``-0.001``: argparse takes it for a flag."""
    argv = sys.argv[1:] if argv is None else argv
    negative = re.compile(r"-(\d+\.?\d*|\.\d+)[eE][+-]?\d+")
    return [f"{Decimal(word):f}" if negative.fullmatch(word) else word for word in argv]


def variant_arguments(configs: Mapping[str, type]) -> type:
    """A dataclass with one optional flag for each field of any config, sequences as lists.

    Raises ``ValueError`` if two configs have a field of one name and different types.
    """
    kinds: dict[str, tuple[type, bool]] = {}
    owners: dict[str, list[str]] = {}
    helps: dict[str, str] = {}
    for variant, config in configs.items():
        hints = get_type_hints(config)
        for config_field in fields(config):
            name, kind = config_field.name, flag_kind(hints[config_field.name])
            if kinds.setdefault(name, kind) != kind:
                raise ValueError(
                    f"{variant}'s field {name} is {hints[name]}; allowed: the type it has in "
                    f"{', '.join(owners[name])}, since one flag --{name} serves all. Rename it."
                )
            owners.setdefault(name, []).append(variant)
            helps.setdefault(name, config_field.metadata["help"])
    made = []
    for name, (scalar, is_sequence) in kinds.items():
        kind = list[scalar] if is_sequence else scalar
        note = " 'none' is an empty list." if scalar is str and is_sequence else ""
        help = f"[{', '.join(owners[name])}] {helps[name]}.{note}".replace("%", "%%")
        made.append((name, kind | None, flag(help)))
    return make_dataclass("VariantArguments", made)


def flag_kind(annotation: Any) -> tuple[type, bool]:
    """Scalar type of an annotation like ``float | tuple[float, ...]``, and whether it repeats."""
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [part for part in get_args(annotation) if part is not type(None)]
        kinds = {flag_kind(part) for part in parts}
        scalars = {scalar for scalar, _ in kinds}
        if len(scalars) != 1:
            raise TypeError(f"{annotation} mixes types; a flag has one.")
        return scalars.pop(), any(repeats for _, repeats in kinds)
    if get_origin(annotation) in (tuple, list):
        return get_args(annotation)[0], True
    return annotation, False


def variant_config(variant: str, given: Mapping[str, Any]) -> Any:
    """The config of ``variant`` with only the flags that were given; None for plain attention."""
    configs = ga.variant_configs()
    known = {name: _field_names(config) for name, config in configs.items()}
    for name, value in given.items():
        if name not in known.get(variant, ()):
            owners = ", ".join(other for other in configs if name in known[other])
            raise refusal(
                name,
                value,
                f"with variant {owners}",
                f"variant {variant} has no such setting: drop the flag or choose the variant.",
            )
    if variant == NO_VARIANT:
        return None
    return configs[variant](**{name: _as_setting(value) for name, value in given.items()})


def _field_names(config: type) -> Iterable[str]:
    return [config_field.name for config_field in fields(config)]


def _as_setting(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return () if value == ["none"] else tuple(value)
