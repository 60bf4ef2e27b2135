"""Command line of the scripts: HfArgumentParser dataclasses, flags named as in transformers.

The flags of the variants are made from the registered configs, so a new variant brings its own.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, make_dataclass
from decimal import Decimal
from typing import Any, Union, get_args, get_origin, get_type_hints

from transformers import HfArgumentParser
from transformers.hf_argparser import string_to_bool

import hf_graphattn as ga
from finetune import recipe_files
from finetune.flags import at_least, flag, refusal
from finetune.train_arguments import TrainArguments
from finetune.tuning import TuningArguments

NO_VARIANT = "none"


@dataclass
class SourceArguments:
    """Which rows to train on and to measure."""

    task_name: str | None = flag("Task to run; without one, train_file is a task of its own.")
    dataset_name: str | None = flag("Hub id, or local folder of its layout, instead of the task's.")
    train_file: str | None = flag("Own csv, json or parquet file to train on.")
    validation_file: str | None = flag("Own file to evaluate on.")
    test_file: str | None = flag("Own file to predict, with do_predict.", free=True)
    max_train_samples: int | None = flag("Train on the first so many rows.")
    max_eval_samples: int | None = flag("Evaluate on the first so many rows of each split.")
    max_predict_samples: int | None = flag(
        "Predict the first so many rows of each split.", free=True
    )

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
class FilterArguments(TuningArguments):
    """Which graph filter, and what of the model is trained with it."""

    variant: str = flag(
        "Graph filter to put into each attention: none, or a registered one.", "none"
    )
    backend: str = flag("How attention is computed: auto, eager, sdpa ...", "auto")
    filter_learning_rate: float | None = flag("Learning rate of the filter's scalars alone.")

    def __post_init__(self) -> None:
        super().__post_init__()
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

    def free(self) -> set[str]:
        """Names of the flags that change no number of the run."""
        groups = (self.data, self.model, self.train, self.filter)
        return {f.name for group in groups for f in fields(group) if not f.compare}


def parse(
    argv: Sequence[str] | None = None,
    *,
    data_group: type[SourceArguments] = DataArguments,
    model_group: type = ModelArguments,
    **defaults: Any,
) -> Settings:
    """Settings from the command line, or from ``argv``, and from the recipe that it names.

    The groups are the dataclasses of a script whose data or models have flags of their own;
    ``defaults`` replace those of the flags.
    """
    variant_flags = variant_arguments(ga.variant_configs())
    groups = (data_group, model_group, TrainArguments, FilterArguments, variant_flags)
    parser = HfArgumentParser(groups, allow_abbrev=False)
    parser.set_defaults(**defaults)
    for action in parser._actions:
        # A switch whose default is None would need a value; alone it is true, as the others are.
        if action.type is string_to_bool and action.nargs is None:
            action.nargs, action.const = "?", True
    argv = list(sys.argv[1:] if argv is None else argv)
    names = [f.name for group in groups for f in fields(group)]
    argv = plain_numbers([*recipe_words(argv, names), *argv])
    *parsed, own_flags = parser.parse_args_into_dataclasses(argv, look_for_args_file=False)
    data, model, train, filter_arguments = parsed
    given = {name: value for name, value in vars(own_flags).items() if value is not None}
    variant = variant_config(filter_arguments.variant, given)
    return Settings(data, model, train, filter_arguments, variant)


def recipe_words(argv: Sequence[str], names: Iterable[str]) -> list[str]:
    """What the recipe in ``argv`` adds; nothing without one.

    Where ``argv`` chooses another variant, the recipe's settings of its own variant fall away.
    """
    path = recipe_files.given(argv, "recipe")
    if path is None:
        return []
    flags = recipe_files.read(path, names)
    chosen = recipe_files.given(argv, "variant")
    if chosen not in (None, flags.get("variant")):
        configs = ga.variant_configs()
        own = {name for config in configs.values() for name in _field_names(config)}
        kept = set(_field_names(configs[chosen])) if chosen in configs else set()
        flags = {name: value for name, value in flags.items() if name not in own - kept}
    return recipe_files.words(flags)


def plain_numbers(argv: Sequence[str]) -> list[str]:
    """``argv`` with ``-1e-3`` as ``-0.001``: argparse takes it for a flag."""
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
