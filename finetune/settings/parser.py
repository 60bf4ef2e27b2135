"""Dataclasses read from a command line: a flag a field, as transformers' HfArgumentParser has them.

That parser costs an import of transformers, and a wrong flag is to be told at once.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, fields
from decimal import Decimal
from typing import Any, Literal, get_args, get_origin, get_type_hints

from finetune.errors import Refused, meant, refusal
from finetune.settings.flags import Aliases
from finetune.settings.variants import flag_kind
from finetune.settings.words import SEE, WordParser

TRUE, FALSE = ("true", "yes", "t", "y", "1"), ("false", "no", "f", "n", "0")
METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", bool: "BOOL"}
LONGEST_METAVAR = 30
NO, LONG = "no", "WORD"
_NEGATIVE = re.compile(r"-(\d+\.?\d*|\.\d+)[eE][+-]?\d+")


class Parser(WordParser):
    """A parser of flags that are all optional; `filled` says which are missing.

    Args:
        groups: dataclasses whose fields have a help text in their metadata; the class that first
            has a field says by its ``TITLE`` under which heading --help shows it.
        defaults: values that replace the fields' own defaults.
        description: what --help begins with.
    """

    def __init__(
        self,
        groups: Sequence[type],
        defaults: Mapping[str, Any] | None = None,
        description: str | None = None,
    ) -> None:
        self.groups, self.defaults = groups, dict(defaults or {})
        self.fields: dict[str, Field[Any]] = {}
        self.kinds: dict[str, Any] = {}
        titles: dict[str, list[str]] = {}
        for group in groups:
            kinds = get_type_hints(group)
            for each in fields(group):
                self.fields[each.name], self.kinds[each.name] = each, kinds[each.name]
                titles.setdefault(_title(group, each.name), []).append(each.name)
        required = [name for name in self.fields if self._default(name) is MISSING]
        shown = " ".join(f"--{name} {_metavar(self, name)}" for name in required)
        super().__init__(description, f"%(prog)s {shown} [--FLAG VALUE ...]")
        for title, names in titles.items():
            heading = self.add_argument_group(title)
            for name in names:
                self._add(heading, name)

    @property
    def names(self) -> list[str]:
        """All flags, those of transformers that mean one of ours last."""
        return [*self.fields, *(name for found in self._aliases().values() for name in found.kinds)]

    def given(self, words: Sequence[str], besides: Iterable[str] = ()) -> dict[str, Any]:
        """The flags among the words, by our names; of those that are `said`."""
        return self.translated(self.said(words, besides))

    def said(self, words: Sequence[str], besides: Iterable[str] = ()) -> dict[str, Any]:
        """The flags among the words, by the names that they have there.

        ``besides`` are flags of whoever has read the words before, which an unknown one may mean.

        Raises ``Refused`` for words that are no flags, or have values that cannot be.
        """
        found, others = self.parse_known_args([_usual(word) for word in words])
        if others:
            unknown = [word.partition("=")[0][2:] for word in others if word.startswith("--")]
            said = f"unrecognized arguments: {' '.join(others)}."
            raise Refused(f"{said} {meant(unknown, [*self.names, *besides], SEE, sign='--')}")
        return {name: self._chosen(name, value) for name, value in vars(found).items()}

    def translated(
        self, said: Mapping[str, Any], recipe: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """What was said, by our names alone; None where that takes back what a recipe says.

        Flags that together mean one of ours may be parted: some said, others in the recipe.

        Raises ``Refused`` where one of ours is said twice, or its other names do not go together.
        """
        recipe = recipe or {}
        given = {name: said[name] for name in self.fields if name in said}
        for name, aliases in self._aliases().items():
            own = {other: said[other] for other in aliases.kinds if other in said}
            if own and name in said:
                both = f"without {name}, which says the same"
                raise refusal(", ".join(own), own, both, "Drop one of the two.")
            if own:
                others = {other: recipe[other] for other in aliases.kinds if other in recipe}
                given[name] = _meaning(aliases, own, others)
        return given

    def others(self, said: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """What was said, without what other names say of flags that are given already."""
        ours = {other: name for name, found in self._aliases().items() for other in found.kinds}
        return {name: value for name, value in said.items() if ours.get(name) not in given}

    def filled(self, given: Mapping[str, Any]) -> list[Any]:
        """An object of each group, with the flags that are given, and defaults.

        Raises ``Refused`` for flags that are missing, or do not go together.
        """
        values = {name: given.get(name, self._default(name)) for name in self.fields}
        missing = [f"--{name}" for name, value in values.items() if value is MISSING]
        if missing:
            self.error(f"the following arguments are required: {', '.join(missing)}")
        return [group(**{f.name: values[f.name] for f in fields(group)}) for group in self.groups]

    def _aliases(self) -> dict[str, Aliases]:
        known = {name: each.metadata.get("aliases") for name, each in self.fields.items()}
        return {name: aliases for name, aliases in known.items() if aliases is not None}

    def _default(self, name: str) -> Any:
        return self.defaults.get(name, self.fields[name].default)

    def _add(self, heading: Any, name: str) -> None:
        aliases = self._aliases().get(name, Aliases({}, dict))
        for each, kind in ((name, None), *aliases.kinds.items()):
            if each != name:
                self.kinds[each] = kind or self.kinds[name]
            help = argparse.SUPPRESS
            if each == name:
                help = " ".join(self._help(name, [*aliases.kinds]))
            metavar = _metavar(self, each)
            options = _options(self.kinds[each])
            heading.add_argument(
                f"--{each}", help=help, metavar=metavar, default=argparse.SUPPRESS, **options
            )

    def _help(self, name: str, others: Sequence[str]) -> Iterator[str]:
        yield self.fields[name].metadata["help"]
        if _metavar(self, name) == LONG:
            yield f"One of {', '.join(get_args(self.kinds[name]))}."
        default = self._default(name)
        if not any(default is each for each in (None, False, MISSING)):
            yield f"(default: {default})".replace("%", "%%")
        if others:
            yield f"(also: {', '.join(f'--{other}' for other in others)})"

    def _chosen(self, name: str, value: Any) -> Any:
        """The value, if its flag has no list of choices or this is one of them."""
        kind, _ = flag_kind(self.kinds.get(name, bool))
        if get_origin(kind) is not Literal:
            return value
        choices = get_args(kind)
        if value.lower() in FALSE and NO in choices:
            return NO  # as YAML reads the word no
        if value not in choices:
            question = meant([value], choices, "Choose one of these.")
            raise refusal(name, value, ", ".join(choices), question)
        return value


def _meaning(aliases: Aliases, said: Mapping[str, Any], recipe: Mapping[str, Any]) -> Any:
    """What they mean with the recipe's; alone where that says otherwise."""
    with suppress(Refused):
        return aliases.meaning(**{**recipe, **said})
    return aliases.meaning(**said)


def _title(group: type, name: str) -> str:
    """What the class that first has the field says of it."""
    first = [each for each in group.__mro__ if name in vars(each).get("__annotations__", {})][-1]
    return str(getattr(first, "TITLE", "flags"))


def _options(annotation: Any) -> dict[str, Any]:
    """How argparse takes values of this type."""
    kind, repeats = flag_kind(annotation)
    if repeats:
        return {"type": _reader(kind), "nargs": "+"}
    if kind is bool:  # alone it is true
        return {"type": _truth, "nargs": "?", "const": True}
    return {"type": _reader(kind)}


def _reader(kind: Any) -> Any:
    return _whole if kind is int else str if get_origin(kind) is Literal else kind


def _metavar(parser: Parser, name: str) -> str:
    own = parser.fields[name].metadata.get("metavar") if name in parser.fields else None
    kind, _ = flag_kind(parser.kinds[name])
    if own is not None or get_origin(kind) is not Literal:
        return str(own or METAVARS[kind])
    choices = "|".join(get_args(kind))
    return choices if len(choices) <= LONGEST_METAVAR else LONG


def _usual(word: str) -> str:
    """A flag with ``_`` for ``-``; ``-1e-3`` as ``-0.001``, since argparse takes it for a flag."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return f"--{name[2:].replace('-', '_')}{equals}{value}"
    return f"{Decimal(word):f}" if _NEGATIVE.fullmatch(word) else word


def _whole(word: str) -> int:
    """A whole number, also as 3.0, which transformers takes for epochs."""
    with suppress(ValueError):
        return int(word)
    with suppress(ValueError):
        if float(word).is_integer():
            return int(float(word))
    raise argparse.ArgumentTypeError(f"invalid int value: {word!r}")


def _truth(word: str) -> bool:
    if word.lower() not in TRUE + FALSE:
        raise argparse.ArgumentTypeError(f"{word!r} is neither true nor false")
    return word.lower() in TRUE
