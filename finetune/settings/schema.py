"""A run's settings: one typed `Run`, made from a command line or from values by their flags' names.

Flags are named as in the transformers examples. Command lines are read here alone, by transformers'
HfArgumentParser; everything else exchanges a `Run`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, make_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self, TypeVar, get_args, get_type_hints

from transformers import HfArgumentParser

import hf_graphattn as ga
from finetune.errors import Refused, did_you_mean, refusal
from finetune.settings import recipes, variants
from finetune.settings.flags import FOLDER_PATH, ID_OR_PATH, PATH, SEE, LineParser
from finetune.settings.groups import FILTER_RATE, FilterArguments, ModelSource, SourceArguments
from finetune.settings.training import TrainArguments, check_schedule

Data = TypeVar("Data", bound=SourceArguments)
Model = TypeVar("Model", bound=ModelSource)
EPILOG = """less used, by the same names here or as `name: value` in a recipe (docs/fine-tuning.md):
{rare}

settings of the graph filters and their defaults, here or in a recipe (docs/filters.md):
{filters}"""


@dataclass
class Run(Generic[Data, Model]):
    """All settings of a run.

    Attributes:
        data, model, train, filter: its flags; ``train`` has those of its output too.
        variant: the graph filter's config; None for plain attention.
    """

    data: Data
    model: Model
    train: TrainArguments
    filter: FilterArguments
    variant: ga.VariantConfig | None

    def __post_init__(self) -> None:
        is_for_model = self.model.trust_remote_code and not self.hub_metrics()
        if is_for_model and self.variant is not None:
            raise refusal(
                f"trust_remote_code with variant {self.filter.variant}",
                True,
                "with variant none: only a class of transformers' own is saved and loaded patched",
                "Drop the flag, or choose a model of a type that transformers has.",
            )

    def hub_metrics(self) -> list[str]:
        """The metrics whose code comes from the hub."""
        if not self.data.metric:
            return []
        from tasks import metrics  # takes a second

        return metrics.on_hub(self.data.metric)

    def training(self, **changes: Any) -> Self:
        """The same run with other values of these flags of ``train``."""
        return replace(self, train=replace(self.train, **changes))

    def flat(self) -> dict[str, Any]:
        """Every flag's value by its name; of the variant's flags, those its config has."""
        return {each.name: value for each, value in self.values()}

    def flags(self) -> dict[str, Any]:
        """The variant and the flags that are not at their defaults, as YAML has them."""
        return {
            each.name: value if value != [] else ["none"]
            for each, value in self.values()
            if each.name == "variant" or value != _as_list(each.default)
        }

    def deciding(self) -> dict[str, Any]:
        """The flags that decide the run's numbers: all but the free ones."""
        return {each.name: value for each, value in self.values() if each.compare}

    def defaults(self) -> dict[str, Any]:
        """What each flag is where it is not given, of those that need not be given."""
        return {f.name: f.default for f, _ in self.values() if f.default is not MISSING}

    def paths(self) -> set[str]:
        """The names of the flags whose values may be files or folders."""
        return {f.name for f, _ in self.values() if f.metadata.get("metavar", "").endswith(PATH)}

    def learns_scalars(self) -> bool:
        """Whether the filter has scalars that are trained."""
        return bool(getattr(self.variant, "trainable", ()))

    def values(self) -> Iterator[tuple[Field[Any], Any]]:
        """Every flag's dataclass field with its value; those of several are lists."""
        for group in (self.data, self.model, self.train, self.filter, self.variant):
            for each in fields(group) if group is not None else ():
                yield each, _as_list(getattr(group, each.name))


def _as_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


class _Parser(LineParser, HfArgumentParser):
    """transformers' parser with our errors."""


class _Flag(NamedTuple):
    """A flag's dataclass field, the type of its value or values, and its heading in --help."""

    field: Field[Any]
    kind: Any
    repeats: bool
    heading: str


@cache
def _flags(of_script: tuple[Any, ...], configs: tuple[tuple[str, type], ...]) -> dict[str, _Flag]:
    made = {}
    groups: tuple[Any, ...] = (*of_script, variants.flags_of_all(dict(configs)))
    for group in groups:
        hints = get_type_hints(group)
        for each in fields(group):
            classes = reversed(group.__mro__)
            first = next(c for c in classes if each.name in vars(c).get("__annotations__", {}))
            kind = variants.flag_kind(hints[each.name])
            made[each.name] = _Flag(each, *kind, getattr(first, "TITLE", "flags"))
    return made


@dataclass(frozen=True)
class Schema(Generic[Data, Model]):
    """The flags of one script.

    Attributes:
        data: the dataclass of its flags about rows.
        model: the dataclass of its flags about where the model comes from.
        description: of the script, which --help begins with.
    """

    data: type[Data]
    model: type[Model]
    description: str | None = None

    @property
    def groups(self) -> tuple[Any, ...]:
        """The dataclasses of all flags but those of the variants' own."""
        return (self.data, self.model, TrainArguments, FilterArguments)

    def flags(self) -> dict[str, _Flag]:
        """The flags by their names, in the order of --help."""
        return _flags(self.groups, tuple(ga.variant_configs().items()))

    def parse(self, argv: Sequence[str] | None = None) -> Run[Data, Model]:
        """The run of a command line (None: the process's) and of the recipe that it names.

        Raises ``Refused`` for flags that are unknown or cannot be, and files that are missing.
        """
        run = self.run(self.read(sys.argv[1:] if argv is None else argv))
        _check_sources(run)
        check_schedule(run.train)
        return run

    def run(self, values: Mapping[str, Any]) -> Run[Data, Model]:
        """The run of these values of flags, by their names; its files may be elsewhere, or gone.

        Raises ``Refused`` for flags that are missing or cannot be.
        """
        every = {name: flag.field.default for name, flag in self.flags().items()} | dict(values)
        if missing := [f"--{name}" for name, value in every.items() if value is MISSING]:
            raise Refused(f"the following arguments are required: {', '.join(missing)}. {SEE}")
        data, model, train, filters = (
            group(**{each.name: every[each.name] for each in fields(group)})
            for group in self.groups
        )
        script_flags = {each.name for group in self.groups for each in fields(group)}
        settings = {name: value for name, value in values.items() if name not in script_flags}
        return Run(data, model, train, filters, variants.config_of(filters.variant, settings))

    def read(self, argv: Sequence[str]) -> dict[str, Any]:
        """The values that a command line and its recipe give, by name; the command line wins.

        Raises ``Refused`` for unknown flags, and for values that are none of their types.
        """
        values = self.read_argv(argv)
        if (path := values.pop("recipe", None)) is None:
            return values
        flags = self.typed(recipes.read(path), f"recipe {path}")
        if (variant := values.get("variant")) not in (None, flags.get("variant")):
            flags = variants.without_others(flags, variant)
            if "variant" in flags:
                flags.pop(FILTER_RATE, None)  # of the scalars of another filter
        both = flags | values
        return {name: both[name] for name in self.flags() if name in both}

    def read_argv(self, argv: Sequence[str]) -> dict[str, Any]:
        """The values that a command line itself gives, by name."""
        namespace, unknown = self.parser().parse_known_args(argv)
        if unknown:
            names = [x.partition("=")[0][2:].replace("-", "_") for x in unknown if x[:2] == "--"]
            hint = did_you_mean(names, self.flags(), SEE, sign="--")
            raise Refused(f"unrecognized arguments: {' '.join(unknown)}. {hint}")
        values = vars(namespace)
        if values["do_eval"] and not values["do_train"]:
            values["do_eval_only"] = True
        return {name: values[name] for name in self.flags() if values[name] is not None}

    def typed(self, values: Mapping[Any, Any], source: str) -> dict[str, Any]:
        """Values as YAML has them in their flags' types; those that are null are left out.

        Raises ``Refused`` for those that cannot be, and for flags that the ``source`` cannot have.
        """
        names, made = [name for name in self.flags() if name != "recipe"], {}
        if unknown := {str(name): value for name, value in values.items() if name not in names}:
            remedy = did_you_mean(unknown, names, "Drop or rename it.")
            raise refusal(f"{source}, flag {', '.join(unknown)}", unknown, ", ".join(names), remedy)
        for name, value in values.items():
            _, kind, repeats, _ = self.flags()[name]
            if value is not None and repeats:
                several = value if isinstance(value, list) else [value]
                made[name] = [_typed(f"{source}, {name}", each, kind) for each in several]
            elif value is not None:
                made[name] = _typed(f"{source}, {name}", value, kind)
        return made

    def parser(self) -> argparse.ArgumentParser:
        """Reads words into values; a flag that is not given is None."""
        flags, headings = self.flags(), defaultdict[str, list[tuple[str, Any, Any]]](list)
        for name, each in flags.items():
            scalar = each.kind
            kind: Any = list[scalar] if each.repeats else scalar  # type: ignore[valid-type]
            optional = field(default=None, metadata=each.field.metadata)
            headings[each.heading].append((name, kind, optional))
        groups = [
            make_dataclass("Flags", made, namespace={"_argument_group_name": heading})
            for heading, made in headings.items()
        ]
        needed = [
            f"--{n} {each.field.metadata['metavar']} "
            for n, each in flags.items()
            if each.field.default is MISSING
        ]
        usage = f"%(prog)s {''.join(needed)}[--FLAG VALUE ...]"
        parser = _Parser(groups, description=self.description, usage=usage, epilog=self._epilog())
        # transformers' own, of which two together mean one of ours
        for name in ("fp16", "bf16"):
            as_ours: dict[str, Any] = {"action": "store_const", "dest": "mixed_precision"}
            parser.add_argument(f"--{name}", const=name, help=argparse.SUPPRESS, **as_ours)
        for name in ("do_train", "do_eval"):
            parser.add_argument(f"--{name}", help=argparse.SUPPRESS, action="store_true")
        return parser

    def _epilog(self) -> str:
        """The names of the flags that have no line of their own."""
        every = [each for group in self.groups for each in fields(group)]
        rare = [each.name for each in every if each.metadata["help"] == argparse.SUPPRESS]
        lines = [f"  {', '.join(rare[i : i + 4])}" for i in range(0, len(rare), 4)]
        filters = (f"  {name}: {variants.summary(name)}" for name in ga.variant_configs())
        return EPILOG.format(rare=",\n".join(lines), filters="\n".join(filters))


def _typed(name: str, value: Any, kind: Any) -> Any:
    """A value of its type: YAML has 1e-3 as text, no as False, and 2 for a float."""
    if value is False and kind is not bool:
        value = "no"
    if choices := get_args(kind):
        if value not in choices:
            remedy = did_you_mean([str(value)], choices, "Choose one of these.")
            raise refusal(name, value, ", ".join(choices), remedy)
        return value
    try:
        if isinstance(value, dict | list | None) or isinstance(value, bool) != (kind is bool):
            raise ValueError
        return kind(value if kind in (bool, float) else str(value))
    except (TypeError, ValueError) as error:  # YAML has dates, too
        what = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
        raise refusal(name, value, what[kind], "Give such a value.") from error


def _check_sources(run: Run[Any, Any]) -> None:
    """Raise ``Refused`` for a file or folder that does not exist, and for code not trusted."""
    allowed = {
        PATH: "an existing file",
        FOLDER_PATH: "an existing folder",
        ID_OR_PATH: "a hub id, or an existing folder",
    }
    if run.model.revision is not None and Path(run.model.origin or "").is_dir():
        without = f"None with {run.model.origin}, a folder, which has no revisions"
        raise refusal("revision", run.model.revision, without, "Drop the flag, or give a hub id.")
    for each, value in run.values():
        kind = each.metadata.get("metavar")
        if kind in allowed and value is not None and not os.path.exists(value):
            is_id = not value.startswith((".", "~", "/")) and value.count("/") < 2
            if kind != ID_OR_PATH or not is_id:
                raise refusal(each.name, value, allowed[kind], "It does not exist: check the path.")
    if run.data.metric:
        from tasks import metrics

        metrics.check_trusted(run.data.metric, run.model.trust_remote_code)
