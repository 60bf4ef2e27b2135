"""A run's settings: one typed `Run`, read from a command line, from YAML, or from plain data.

Flags are named as in the transformers examples. Words are read at the shell's edge alone, by
transformers' HfArgumentParser; everything else exchanges a `Run` or the flags' values by name.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, make_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

from transformers import HfArgumentParser

import hf_graphattn as ga
from finetune.errors import Refused, meant, refusal
from finetune.settings import recipes, variants
from finetune.settings.flags import FOLDER_PATH, ID_OR_PATH, PATH
from finetune.settings.groups import FILTER_RATE, FilterArguments, ModelSource, SourceArguments
from finetune.settings.parser import SEE, LineParser
from finetune.settings.training import TrainArguments, check_schedule

Data = TypeVar("Data", bound=SourceArguments)
Model = TypeVar("Model", bound=ModelSource)
METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", bool: "BOOL"}
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

    def flat(self) -> dict[str, Any]:
        """Every flag's value by its name; of the variant's flags, those its config has."""
        values = {name: value for group in self._groups() for name, value in asdict(group).items()}
        return values if self.variant is None else values | self.variant.to_dict()

    def deciding(self) -> dict[str, Any]:
        """The flags that decide the run's numbers: all but the free ones."""
        free = {f.name for f in self._fields() if not f.compare}
        return {name: value for name, value in self.flat().items() if name not in free}

    def defaults(self) -> dict[str, Any]:
        """What each flag is where it is not given, of those that need not be given."""
        return {f.name: f.default for f in self._fields() if f.default is not MISSING}

    def paths(self) -> set[str]:
        """The names of the flags whose values may be files or folders."""
        return {f.name for f in self._fields() if f.metadata.get("metavar", "").endswith(PATH)}

    def learns_scalars(self) -> bool:
        """Whether the filter has scalars that are trained."""
        return bool(getattr(self.variant, "trainable", ()))

    def _groups(self) -> Iterator[Any]:
        yield from (self.data, self.model, self.train, self.filter)

    def _fields(self) -> Iterator[Field[Any]]:
        for group in (*self._groups(), *([] if self.variant is None else [self.variant])):
            yield from fields(group)


class _Parser(LineParser, HfArgumentParser):
    """transformers' parser with our errors."""


@cache
def _flags(
    of_script: tuple[type, type], configs: tuple[tuple[str, type], ...]
) -> dict[str, tuple[Field[Any], Any, str]]:
    variant_flags = variants.flags_of_all(dict(configs))
    groups: tuple[Any, ...] = (*of_script, TrainArguments, FilterArguments, variant_flags)
    hints = [get_type_hints(group) for group in groups]
    return {
        each.name: (each, kinds[each.name], _heading(group, each.name))
        for group, kinds in zip(groups, hints, strict=True)
        for each in fields(group)
    }


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

    def parse(self, argv: Sequence[str] | None = None) -> Run[Data, Model]:
        """The run of a command line (None: the process's) and of the recipe that it names.

        Raises ``Refused`` for flags that are unknown or cannot be, and files that are missing.
        """
        return self.run(self.read(sys.argv[1:] if argv is None else argv), is_new=True)

    def run(self, values: Mapping[str, Any], *, is_new: bool = False) -> Run[Data, Model]:
        """The run of these flags' values, as YAML has them.

        Args:
            values: by the names of the flags.
            is_new: whether it begins here; else its files may be elsewhere, or gone.

        Raises ``Refused`` for flags that are missing or cannot be.
        """
        values = {n: v for n, v in self.typed(values).items() if v is not None}
        filled = {name: each.default for name, (each, _, _) in self.flags().items()} | values
        if missing := [f"--{name}" for name, value in filled.items() if value is MISSING]:
            raise Refused(f"the following arguments are required: {', '.join(missing)}. {SEE}")
        groups: tuple[Any, ...] = (self.data, self.model, TrainArguments, FilterArguments)
        made: Any = [group(**{f.name: filled[f.name] for f in fields(group)}) for group in groups]
        chosen = {name: value for name, value in values.items() if variants.owners(name)}
        data, model, train, filters = made
        run = Run(data, model, train, filters, variants.config_of(filters.variant, chosen))
        if is_new:
            _check_paths(run)
        if is_new and run.data.metric:
            from tasks import metrics

            metrics.check_trusted(run.data.metric, run.model.trust_remote_code)
        check_schedule(run.train)
        return run

    def read(self, argv: Sequence[str]) -> dict[str, Any]:
        """The values that a command line and its recipe give, by name; the command line wins.

        Raises ``Refused`` for unknown flags, and for values that are none of their types.
        """
        values = self.typed(self.read_argv(argv))
        if (path := values.pop("recipe", None)) is None:
            return values
        flags = recipes.read(path, self.flags())
        chosen = values.get("variant")
        if chosen not in (None, flags.get("variant")):
            flags = variants.fitting(flags, chosen)
            if "variant" in flags:
                flags.pop(FILTER_RATE, None)  # of the scalars of another filter
        both = {**self.typed(flags), **values}
        return {name: both[name] for name in self.flags() if name in both}

    def read_argv(self, argv: Sequence[str]) -> dict[str, Any]:
        """The values that a command line itself gives, by name."""
        namespace, unknown = self.parser().parse_known_args(argv)
        if unknown:
            names = [x.partition("=")[0][2:].replace("-", "_") for x in unknown if x[:2] == "--"]
            hint = meant(names, self.flags(), SEE, sign="--")
            raise Refused(f"unrecognized arguments: {' '.join(unknown)}. {hint}")
        values = vars(namespace)
        if values["do_eval"] and not values["do_train"]:
            values["do_eval_only"] = True
        return {name: values[name] for name in self.flags() if values[name] is not None}

    def typed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values in their flags' types; raises ``Refused`` for those that cannot be."""
        flags = self.flags()
        return {
            name: value if value is None else _typed(name, value, flags[name][1])
            for name, value in values.items()
        }

    def flags(self) -> dict[str, tuple[Field[Any], Any, str]]:
        """Each flag's field, its type, and its heading in --help, by its name."""
        return _flags((self.data, self.model), tuple(ga.variant_configs().items()))

    def parser(self) -> argparse.ArgumentParser:
        """Reads words into values; a flag that is not given is None."""
        flags = self.flags()
        headings: dict[str, list[tuple[str, Any, Any]]] = {}
        for name, (each, kind, heading) in flags.items():
            metadata = {**each.metadata, "help": _help(each)}
            del metadata["rare"]
            scalar, _ = variants.flag_kind(kind)
            if get_origin(scalar) is not Literal:
                metadata.setdefault("metavar", METAVARS[scalar])
            kind = bool if scalar is bool else kind  # bool | None would need a value
            made = (name, kind, field(default=None, metadata=metadata))
            headings.setdefault(heading, []).append(made)
        groups = [
            make_dataclass("Flags", made, namespace={"_argument_group_name": heading})
            for heading, made in headings.items()
        ]
        needed = [
            f"--{n} {f.metadata['metavar']} "
            for n, (f, _, _) in flags.items()
            if f.default is MISSING
        ]
        usage = f"%(prog)s {''.join(needed)}[--FLAG VALUE ...]"
        parser = _Parser(groups, description=self.description, usage=usage, epilog=_epilog(flags))
        # transformers' own, of which two together mean one of ours
        hidden: dict[str, Any] = {"help": argparse.SUPPRESS}
        for name in ("fp16", "bf16"):
            hidden |= {"action": "store_const", "const": name, "dest": "mixed_precision"}
            parser.add_argument(f"--{name}", **hidden)
        for name in ("do_train", "do_eval"):
            parser.add_argument(f"--{name}", help=argparse.SUPPRESS, action="store_true")
        return parser


def _heading(group: type, name: str) -> str:
    """The ``TITLE`` of the class that first has the field."""
    first = [each for each in group.__mro__ if name in vars(each).get("__annotations__", {})][-1]
    return str(getattr(first, "TITLE", "flags"))


def _help(each: Field[Any]) -> str:
    if each.metadata.get("rare"):
        return argparse.SUPPRESS
    is_silent = any(each.default is value for value in (None, False, MISSING))
    text: str = each.metadata["help"] + ("" if is_silent else f" (default: {each.default})")
    return text.replace("%", "%%")


def _epilog(flags: Mapping[str, tuple[Field[Any], Any, str]]) -> str:
    """The names of the flags that have no line of their own."""
    rare = [n for n, (f, _, _) in flags.items() if f.metadata.get("rare")]
    filters = (f"  {name}: {variants.summary(name)}" for name in ga.variant_configs())
    rare = [name for name in rare if not variants.owners(name)]
    lines = [", ".join(rare[i : i + 4]) for i in range(0, len(rare), 4)]
    return EPILOG.format(rare=",\n".join(f"  {x}" for x in lines), filters="\n".join(filters))


def _typed(name: str, value: Any, annotation: Any) -> Any:
    kind, repeats = variants.flag_kind(annotation)
    if repeats:
        values = value if isinstance(value, list | tuple) else [value]
        return [_one(name, x, kind) for x in values]
    return _one(name, value, kind)


def _one(name: str, value: Any, kind: Any) -> Any:
    """A value of its type: YAML has 1e-3 as text, no as False, and 2 for a float."""
    if value is False and kind is not bool:
        value = "no"
    if choices := get_args(kind):
        if value not in choices:
            remedy = meant([str(value)], choices, "Choose one of these.")
            raise refusal(name, value, ", ".join(choices), remedy)
        return value
    try:
        if isinstance(value, dict | list) or isinstance(value, bool) != (kind is bool):
            raise ValueError
        return value if kind is bool else float(value) if kind is float else kind(str(value))
    except ValueError as error:
        what = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
        raise refusal(name, value, what[kind], "Give such a value.") from error


def _check_paths(run: Run[Any, Any]) -> None:
    """Raise ``Refused`` for a flag that can only mean a file or folder, where there is none."""
    allowed = {
        PATH: "an existing file",
        FOLDER_PATH: "an existing folder",
        ID_OR_PATH: "a hub id, or an existing folder",
    }
    if run.model.revision is not None and Path(run.model.origin or "").is_dir():
        without = f"None with {run.model.origin}, a folder, which has no revisions"
        raise refusal("revision", run.model.revision, without, "Drop the flag, or give a hub id.")
    values = run.flat()
    for each in run._fields():
        kind, value = each.metadata.get("metavar"), values[each.name]
        if kind in allowed and value is not None and not os.path.exists(value):
            is_id = not value.startswith((".", "~", "/")) and value.count("/") < 2
            if kind != ID_OR_PATH or not is_id:
                raise refusal(each.name, value, allowed[kind], "It does not exist: check the path.")
