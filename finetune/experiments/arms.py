"""What is compared: each arm is a name and the flags that only its runs have."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import hf_graphattn as ga
from finetune.errors import Refused, refusal
from finetune.experiments.scripts import Script
from finetune.settings import recipes, variants
from finetune.settings.groups import FILTER_RATE
from finetune.settings.variants import NO_VARIANT


@dataclass(frozen=True)
class Arm:
    """One of the things compared.

    Attributes:
        name: also that of its runs' folder.
        flags: by name, as data; ``variant`` is among them.
        setting: of a sweep, the value of each swept flag, None where the flag is not given.
    """

    name: str
    flags: Mapping[str, Any]
    setting: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[^\W_][\w.+-]*", self.name):
            allowed = "a letter or digit, then letters, digits and any of - _ . +"
            remedy = "It names a folder: choose another name."
            raise refusal("an arm's name", self.name, allowed, remedy)

    @property
    def variant(self) -> str:
        """The graph filter of its runs."""
        return str(self.flags.get("variant", NO_VARIANT))


def chosen(
    names: Sequence[str] | None,
    path: str | None,
    own_flags: Iterable[str],
    baseline: str | None,
    script: Script,
) -> list[Arm]:
    """The arms to compare, the baseline first.

    Args:
        names: of variants, or of the file's arms; None is all of the file, else the arms that
            ``own_flags`` names beside plain attention, else every registered variant.
        path: a YAML file of arms, ``name: {flag: value}``; ``variant`` is the name unless given.
        own_flags: more flags of single arms, each ``"name: --flag value ..."``.
        baseline: what the others are compared to; None is plain attention, or else the first.
        script: whose flags they are.

    Raises ``ValueError`` for a file, name, flag or variant that cannot be.
    """
    known = read(path) if path else {name: {} for name in (NO_VARIANT, *ga.variant_configs())}
    lines = list(own_flags)
    are_named = names is not None or path is not None or not lines  # else by their flags alone
    names = list(known if names is None else names) if are_named else []
    flags = {name: dict(known.get(name, {})) for name in names}
    for line in lines:
        name, added = _own_flags(line, list(flags if are_named else known), script)
        if name not in flags:
            names.append(name)
        flags[name] = {**flags.get(name, {}), **added}
    arms = [_arm(name, flags[name], known, script) for name in names]
    has_plain = any(arm.variant == NO_VARIANT for arm in arms)
    wants_plain = not has_plain if baseline is None else baseline == NO_VARIANT
    if not are_named and wants_plain and NO_VARIANT not in names:
        names.append(NO_VARIANT)
        arms.append(_arm(NO_VARIANT, {}, known, script))
    if len(set(names)) < len(names) or len(names) < 2:
        raise refusal("variants", names, "two or more different names", "Name what to compare.")
    if baseline is None:
        plain = [arm.name for arm in arms if arm.variant == NO_VARIANT]
        baseline = (plain or names)[0]
    if baseline not in names:
        raise refusal("baseline", baseline, ", ".join(names), "Choose one of the arms.")
    return sorted(arms, key=lambda arm: arm.name != baseline)


def read(path: str) -> dict[str, dict[str, Any]]:
    """Each arm's flags, from a YAML file.

    Raises ``ValueError`` if it is no file of ``name: {flag: value}``.
    """
    form = "name: {flag: value}"
    found = recipes.load("arms", path, form)
    arms = found if isinstance(found, dict) else {"the file": found}
    for name, flags in arms.items():
        if not isinstance(flags, dict | None):
            remedy = "Put the arm's flags into braces, or each on an indented line."
            raise refusal(f"arms {path}, {name}", flags, f"`{form}`", remedy)
    return {
        str(name): {flag: value for flag, value in (flags or {}).items() if value is not None}
        for name, flags in arms.items()
    }


def flags_for(arm: Arm, common: Mapping[str, Any], script: Script) -> dict[str, Any]:
    """All flags of the arm's runs: its own, and of the common ones those that its variant has.

    A variant's setting, like ``order``, falls away for the arms of other variants, and
    ``filter_learning_rate`` for those that learn no scalar.
    """
    others = {name: value for name, value in common.items() if name not in arm.flags}
    flags = {**arm.flags, **variants.fitting(others, arm.variant)}
    if FILTER_RATE in arm.flags:
        return flags
    without = {name: value for name, value in flags.items() if name != FILTER_RATE}
    return flags if script.settings(without).learns_scalars() else without


def _own_flags(line: str, names: Sequence[str], script: Script) -> tuple[str, dict[str, Any]]:
    """The name and the flags of ``"name: --flag value ..."``; a variant among them makes an arm."""
    name, colon, rest = (part.strip() for part in line.partition(":"))
    try:
        words = shlex.split(rest)
    except ValueError:  # a quotation mark is not closed
        words = []
    if not (colon and words) or not (name in names or "--variant" in words):
        allowed = f"'name: --flag value ...' with a name of {', '.join(names)}"
        remedy = "Write the arm's name, a colon and its flags, all between one pair of quotes."
        raise refusal("variant_flags", line, allowed, remedy)
    return name, _typed(name, words, script)


def _arm(name: str, flags: Mapping[str, Any], known: Iterable[str], script: Script) -> Arm:
    if "variant" not in flags:
        allowed = [NO_VARIANT, *ga.variant_configs()]
        if name not in allowed:
            raise refusal(
                "variants",
                name,
                ", ".join(dict.fromkeys([*known, *allowed])),
                f"Choose among these, or say what it is: --variant_flags '{name}: --variant ...'.",
            )
        flags = {"variant": name, **flags}
    typed = _typed(name, recipes.words(flags), script)
    return Arm(name, {"variant": typed.pop("variant"), **typed})


def _typed(name: str, words: Sequence[str], script: Script) -> dict[str, Any]:
    try:
        return script.schema.given(words)
    except ValueError as error:
        raise Refused(f"Arm {name}: {error}") from error
