"""A script's command line: its groups of flags, read into `Settings` or into plain data.

Flags are named as in the transformers examples. Nothing here imports transformers or `datasets`
before the flags are read: a wrong one is told at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

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
    own_defaults: Mapping[str, Any] = field(default_factory=dict)  # the script's, of some flags

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
        known = {f.name: f.default for f in self._fields() if f.default is not MISSING}
        return {**known, **self.own_defaults}

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
        description: of the script, which --help begins with.
    """

    data: type[Data]
    model: type[Model]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    description: str | None = None

    def parse(self, argv: Sequence[str] | None = None) -> Settings[Data, Model]:
        """Settings from ``argv`` (None: the process's) and from the recipe that it names.

        Raises ``Refused`` for flags that are unknown, or have values that cannot be.
        """
        settings = self._read(sys.argv[1:] if argv is None else argv)
        _check_paths(settings)
        _check_metrics(settings)
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
        parser = self.parser()
        found = self._given(parser, argv)
        data, model, train, filter_arguments, own_flags = parser.filled(found)
        given = {name: value for name, value in vars(own_flags).items() if value is not None}
        variant = variants.config_of(filter_arguments.variant, given)
        return Settings(data, model, train, filter_arguments, variant, self.defaults)

    def given(self, argv: Sequence[str], besides: Iterable[str] = ()) -> dict[str, Any]:
        """The flags that ``argv`` and its recipe give, by name, with values of their types.

        ``besides`` are flags of whoever asks, which an unknown one may mean.

        Raises ``Refused`` for unknown flags.
        """
        parser = self.parser()
        found = self._given(parser, argv, besides)
        return {name: found[name] for name in parser.fields if name in found and name != "recipe"}

    def kinds(self) -> dict[str, type]:
        """Each flag's type by its name; of a flag that takes several values, the type of one."""
        parser = self.parser()
        return {name: variants.flag_kind(parser.kinds[name])[0] for name in parser.fields}

    def _groups(self) -> tuple[Any, ...]:
        own_flags = variants.flags_of_all(ga.variant_configs())
        return (self.data, self.model, TrainArguments, FilterArguments, own_flags)

    def parser(self) -> Parser:
        """What reads the flags, and shows them."""
        return Parser(self._groups(), self.defaults, self.description)

    @staticmethod
    def _given(parser: Parser, argv: Sequence[str], besides: Iterable[str] = ()) -> dict[str, Any]:
        """The flags of the recipe in ``argv``, then those of ``argv``, which win."""
        said = parser.said(argv, besides)
        if said.get("recipe") is None:
            found = parser.translated(said)
        else:
            written = parser.said(recipes.words(recipes.read(said["recipe"], parser.names)))
            found = parser.translated(said, written)
            flags = parser.translated(parser.others(written, found))
            chosen = found.get("variant")
            if chosen not in (None, flags.get("variant")):
                flags = variants.fitting(flags, chosen)
                if "variant" in flags:
                    flags.pop(FILTER_RATE, None)  # of the scalars of another filter
            found = {**flags, **found}
        return {name: value for name, value in found.items() if value is not None}


def _check_paths(settings: Settings[Any, Any]) -> None:
    """Raise ``Refused`` for a flag that can only mean a file or folder, where there is none."""
    allowed = {
        PATH: "an existing file",
        FOLDER_PATH: "an existing folder",
        ID_OR_PATH: "a hub id, or an existing folder",
    }
    values = settings.flat()
    revision, origin = settings.model.revision, settings.model.origin
    if revision is not None and Path(origin or "").is_dir():
        without = f"None with {origin}, a folder, which has no revisions"
        raise refusal("revision", revision, without, "Drop the flag, or give a hub id.")
    for each in settings._fields():
        kind, value = each.metadata.get("metavar"), values[each.name]
        if value is None or kind not in allowed or os.path.exists(value):
            continue
        is_no_id = value.startswith((".", "~")) or value.count("/") > 1
        if kind != ID_OR_PATH or is_no_id or Path(value).is_absolute():
            raise refusal(each.name, value, allowed[kind], "It does not exist: check the path.")


def _check_metrics(settings: Settings[Any, Any]) -> None:
    """Raise ``ValueError`` for a metric of the hub, unless its code may be run."""
    if settings.data.metric:
        from tasks import metrics

        metrics.check_trusted(settings.data.metric, settings.model.trust_remote_code)


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
