"""A script's command line: its groups of flags, read into `Settings` or into plain data.

Flags are named as in the transformers examples. Nothing here imports transformers or `datasets`
before the flags are read: a wrong one is told at once.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from decimal import Decimal
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

import hf_graphattn as ga
from finetune.errors import refusal
from finetune.settings import recipes, variants
from finetune.settings.flags import FOLDER_PATH, ID_OR_PATH, PATH
from finetune.settings.groups import FILTER_RATE, FilterArguments, ModelSource, SourceArguments
from finetune.settings.parser import Parser
from finetune.settings.training import TrainArguments, check_schedule

Data = TypeVar("Data", bound=SourceArguments)
Model = TypeVar("Model", bound=ModelSource)


@dataclass
class Settings(Generic[Data, Model]):
    """All that a run was asked for; ``variant`` is the filter's config, or None."""

    data: Data
    model: Model
    train: TrainArguments
    filter: FilterArguments
    variant: ga.VariantConfig | None

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


@dataclass(frozen=True)
class Schema(Generic[Data, Model]):
    """The groups of flags of one script.

    Attributes:
        data: the dataclass of its flags about rows.
        model: the dataclass of its flags about where the model comes from.
        defaults: values that replace the flags' own defaults.
    """

    data: type[Data]
    model: type[Model]
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def parse(self, argv: Sequence[str] | None = None) -> Settings[Data, Model]:
        """Settings from ``argv`` (None: the process's) and from the recipe that it names.

        Raises ``Refused`` for flags that are unknown, or have values that cannot be.
        """
        settings = self._read(sys.argv[1:] if argv is None else argv)
        _check_paths(settings)
        check_schedule(settings.train)
        return settings

    def settings(self, flags: Mapping[str, Any]) -> Settings[Data, Model]:
        """Settings from flags as data, checked as those of a command line.

        Files may be missing: they may be elsewhere, or gone since the run has ended.
        """
        settings = self._read(recipes.words(flags))
        check_schedule(settings.train)
        return settings

    def _read(self, argv: Sequence[str]) -> Settings[Data, Model]:
        parser = Parser(self._groups())
        parser.set_defaults(**self.defaults)
        data, model, train, filter_arguments, own_flags = parser.read(self._with_recipe(argv))
        given = {name: value for name, value in vars(own_flags).items() if value is not None}
        variant = variants.config_of(filter_arguments.variant, given)
        return Settings(data, model, train, filter_arguments, variant)

    def given(self, argv: Sequence[str]) -> dict[str, Any]:
        """The flags that ``argv`` and its recipe give, by name, with values of their types.

        Raises ``Refused`` for unknown flags.
        """
        found = vars(Parser(self._groups(), given_only=True).parse_args(self._with_recipe(argv)))
        return {name: found[name] for name in self._names() if name in found and name != "recipe"}

    def kinds(self) -> dict[str, type]:
        """Each flag's type by its name; of a flag that takes several values, the type of one."""
        hints = {n: hint for group in self._groups() for n, hint in get_type_hints(group).items()}
        return {name: variants.flag_kind(hint)[0] for name, hint in hints.items()}

    def _groups(self) -> tuple[Any, ...]:
        own_flags = variants.flags_of_all(ga.variant_configs())
        return (self.data, self.model, TrainArguments, FilterArguments, own_flags)

    def _names(self) -> list[str]:
        return [f.name for group in self._groups() for f in fields(group)]

    def _with_recipe(self, argv: Sequence[str]) -> list[str]:
        """The words of the recipe in ``argv``, then those of ``argv``, which win."""
        path = recipes.value_of(argv, "recipe")
        words = list(argv)
        if path is not None:
            flags = recipes.read(path, self._names())
            chosen = recipes.value_of(argv, "variant")
            if chosen not in (None, flags.get("variant")):
                flags = variants.fitting(flags, chosen)
                if "variant" in flags:
                    flags.pop(FILTER_RATE, None)  # of the scalars of another filter
            words = [*recipes.words(flags), *words]
        return [_plain_number(word) for word in words]


_NEGATIVE = re.compile(r"-(\d+\.?\d*|\.\d+)[eE][+-]?\d+")


def _plain_number(word: str) -> str:
    """``-1e-3`` as ``-0.001``: argparse takes the first for a flag."""
    return f"{Decimal(word):f}" if _NEGATIVE.fullmatch(word) else word


def _check_paths(settings: Settings[Any, Any]) -> None:
    """Raise ``Refused`` for a flag that can only mean a file or folder, where there is none."""
    allowed = {
        PATH: "an existing file",
        FOLDER_PATH: "an existing folder",
        ID_OR_PATH: "a hub id, or an existing folder",
    }
    values = settings.flat()
    for each in settings._fields():
        kind, value = each.metadata.get("metavar"), values[each.name]
        if value is None or kind not in allowed or Path(value).exists():
            continue
        is_no_id = value.startswith((".", "~")) or value.count("/") > 1
        if kind != ID_OR_PATH or is_no_id or Path(value).is_absolute():
            raise refusal(each.name, value, allowed[kind], "It does not exist: check the path.")


def check_learning_rate(settings: Settings[Any, Any]) -> None:
    """Raise ``Refused`` for a learning rate of scalars that are not learned."""
    rate = settings.filter.filter_learning_rate
    if rate is not None and settings.variant is not None and not settings.learns_scalars():
        raise refusal(
            f"filter_learning_rate with variant {settings.filter.variant}",
            rate,
            "with a variant that learns scalars",
            "Drop the flag, or name the scalars to learn with --trainable.",
        )
