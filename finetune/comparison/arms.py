"""What is compared: each arm is a name and the flags that only its runs have."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

import hf_graphattn as ga
from finetune import recipe_files
from finetune.arguments import NO_VARIANT
from finetune.comparison.scripts import Script, learns_scalars
from finetune.flags import refusal

FILTER_RATE = "filter_learning_rate"


@dataclass(frozen=True)
class Arm:
    """One of the things compared; ``flags`` are words of a command line, its variant among them."""

    name: str
    flags: tuple[str, ...]

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[^\W_][\w.+-]*", self.name):
            allowed = "a letter or digit, then letters, digits and any of - _ . +"
            raise refusal("an arm's name", self.name, allowed, "It names a folder: rename.")

    @property
    def variant(self) -> str:
        """The graph filter of its runs."""
        return recipe_files.given(self.flags, "variant") or NO_VARIANT


def chosen(
    names: Sequence[str] | None, path: str | None, own_flags: Iterable[str], baseline: str | None
) -> list[Arm]:
    """The arms to compare, the baseline first.

    Args:
        names: of variants, or of the file's arms; None is all of the file, or plain attention and
            every registered variant.
        path: a YAML file of arms, ``name: {flag: value}``; ``variant`` is the name unless given.
        own_flags: more flags of single arms, each ``"name: --flag value ..."``.
        baseline: what the others are compared to; None is plain attention, or else the first.

    Raises ``ValueError`` for a file, name or variant that cannot be.
    """
    known = read(path) if path else {name: [] for name in (NO_VARIANT, *ga.variant_configs())}
    names = list(known if names is None else names)
    added: dict[str, list[str]] = {}
    for line in own_flags:
        name, flags = _own_flags(line, names)
        if name not in names:
            names.append(name)
        added.setdefault(name, []).extend(flags)
    arms = [_arm(name, [*known.get(name, []), *added.get(name, [])], known) for name in names]
    if len(set(names)) < len(names) or len(names) < 2:
        raise refusal("variants", names, "two or more different names", "Name what to compare.")
    if baseline is None:
        plain = [arm.name for arm in arms if arm.variant == NO_VARIANT]
        baseline = (plain or names)[0]
    if baseline not in names:
        raise refusal("baseline", baseline, ", ".join(names), "Choose one of the arms.")
    return sorted(arms, key=lambda arm: arm.name != baseline)


def _own_flags(line: str, names: Sequence[str]) -> tuple[str, list[str]]:
    """The name and the words of ``"name: --flag value ..."``; a variant among them makes an arm."""
    name, colon, flags = line.partition(":")
    with suppress(ValueError):  # of a quotation mark that is not closed
        words = shlex.split(flags)
        if colon and (name.strip() in names or "--variant" in words):
            return name.strip(), words
    allowed = f"'name: --flag value ...' with a name of {', '.join(names)}"
    raise refusal("variant_flags", line, allowed, "Write it so, in quotes.")


def read(path: str) -> dict[str, list[str]]:
    """Each arm's flags, as words of a command line, from a YAML file."""
    found = recipe_files.load("arms", path, "name: {flag: value}")
    arms = found if isinstance(found, dict) else {"the file": found}
    for name, flags in arms.items():
        if not isinstance(flags, dict | None):
            raise refusal(f"arms {path}, {name}", flags, "`name: {flag: value}`", "Write it so.")
    return {str(name): recipe_files.words(flags or {}) for name, flags in arms.items()}


def flags_for(arm: Arm, common: Sequence[str], script: Script) -> list[str]:
    """All flags of the arm's runs: of the common ones those that its variant has, then its own.

    A variant's setting, like ``--order``, falls away for the arms of other variants, and
    ``--filter_learning_rate`` for those that learn no scalar.
    """
    configs = ga.variant_configs()
    of_variants = {field.name for config in configs.values() for field in fields(config)}
    own = {field.name for field in fields(configs[arm.variant])} if arm.variant in configs else {}
    groups = [g for g in grouped(common) if name_of(g) not in of_variants.difference(own)]
    rest = [word for g in groups if name_of(g) != FILTER_RATE for word in g]
    if learns_scalars(script.settings([*rest, *arm.flags])):
        rest = [word for g in groups for word in g]
    return [*rest, *arm.flags]


def grouped(flags: Sequence[str]) -> list[list[str]]:
    """Words of a command line as one list a flag: the flag, then its values."""
    groups: list[list[str]] = []
    for word in flags:
        if word.startswith("--") or not groups:
            groups.append([word])
        else:
            groups[-1].append(word)
    return groups


def name_of(group: Sequence[str]) -> str:
    """The flag's name in one of those lists."""
    return group[0].removeprefix("--").partition("=")[0]


def _arm(name: str, flags: list[str], known: dict[str, Any]) -> Arm:
    if not flags or recipe_files.given(flags, "variant") is None:
        allowed = [NO_VARIANT, *ga.variant_configs()]
        if name not in allowed:
            raise refusal(
                "variants",
                name,
                ", ".join(dict.fromkeys([*known, *allowed])),
                f"Choose among these, or say what it is: --variant_flags '{name}: --variant ...'.",
            )
        flags = ["--variant", name, *flags]
    return Arm(name, tuple(flags))
