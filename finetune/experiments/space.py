"""Spaces of settings: each flag with the values to try, or with a range to draw them from."""

from __future__ import annotations

import difflib
import hashlib
import itertools
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune.errors import refusal
from finetune.experiments.arms import Arm
from finetune.experiments.grid import NOT_COMMON
from finetune.experiments.scripts import Script
from finetune.settings import recipes, variants

SHIPPED = Path(__file__).parents[1] / "spaces"
FORM = "`flag: [value, ...]`, for optuna also `flag: {low: 1, high: 2}`, or a list of such spaces"
# What decides what is measured, not how well: other values of these cannot be compared.
NOT_SWEPT = {
    *(*NOT_COMMON, "task_name", "recipe"),
    *("metric", "metric_for_best_model", "greater_is_better"),
}
LONGEST = 120  # characters of a folder's name


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, both included, whole ones for a flag that takes these.

    Attributes:
        log: drawn evenly on a logarithmic scale.
        step: only low, low + step, low + 2 step ...
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def is_drawable(self) -> bool:
        """Whether numbers can be drawn from it."""
        if not -math.inf < self.low < self.high < math.inf or not isinstance(self.log, bool):
            return False
        if self.log:
            return self.low > 0 and self.step is None
        return self.step is None or self.step > 0


Choices = list[Any] | Range


@dataclass(frozen=True)
class Space:
    """What is swept: each setting is an arm of a comparison.

    Attributes:
        variant: the graph filter of all settings.
        parts: of each, its flags' values as a list or a `Range`.
    """

    variant: str
    parts: tuple[Mapping[str, Choices], ...]

    @property
    def flags(self) -> list[str]:
        """The flags of all parts."""
        return list(dict.fromkeys(flag for part in self.parts for flag in part))

    def grid(self) -> list[Arm]:
        """Every combination, the last flag changing fastest.

        Raises ``ValueError`` for a range.
        """
        return [
            self.arm(dict(zip(part, chosen, strict=True)))
            for part in self.parts
            for chosen in itertools.product(*(_listed(f, part[f]) for f in part))
        ]

    def ends(self) -> list[Arm]:
        """The first and last value of each flag together: what can be checked of ranges."""
        lists = [
            {f: [v.low, v.high] if isinstance(v, Range) else v for f, v in part.items()}
            for part in self.parts
        ]
        return [self.arm({f: part[f][i] for f in part}) for i in (0, -1) for part in lists]

    def arm(self, setting: Mapping[str, Any]) -> Arm:
        """A setting as an arm: each flag's value, None where the flag is not given."""
        given = {flag: value for flag, value in setting.items() if value is not None}
        flags = {flag: ["none"] if value == [] else value for flag, value in given.items()}
        return Arm(_name(setting), {"variant": self.variant, **flags}, setting)


def read(text: str, script: Script, variant: str) -> Space:
    """The space in a YAML file, or in YAML itself.

    Raises ``ValueError`` for what is none, and for flags that the script or the variant has not.
    """
    found = recipes.parsed("space", text, _source(text))
    parts = found if isinstance(found, list) else [found]
    if not parts or not all(isinstance(part, dict) and part for part in parts):
        raise refusal("space", text, FORM, "Name a flag, then a colon and its values.")
    kinds, made = script.schema.kinds(), []
    for part in parts:
        for flag in part:
            _check(flag, part[flag], kinds, variant)
        made.append({flag: _choices(flag, part[flag], kinds[flag]) for flag in part})
    return Space(variant, tuple(made))


def described(setting: Mapping[str, Any]) -> str:
    """A setting in words: ``order 4, w_0 -0.01``."""
    return ", ".join(f"{flag} {shown(value)}" for flag, value in setting.items())


def shown(value: Any) -> str:
    """A value in tables and figures, lists as on the command line."""
    if value is None:
        return "default"
    if isinstance(value, list):
        return " ".join(map(shown, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _name(setting: Mapping[str, Any]) -> str:
    """Names its folder: ``order-4_w_0--0.01``; flags not given say ``default``."""
    name = "_".join(f"{flag}-{_slug(value)}" for flag, value in setting.items())
    if len(name) <= LONGEST:
        return name
    return f"{name[: LONGEST - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _slug(value: Any) -> str:
    if isinstance(value, list) and value:
        return "+".join(map(_slug, value))
    return re.sub(r"[^\w.+-]", "-", shown(value))


def _source(text: str) -> str | bytes:
    if Path(text).is_file():
        return Path(text).read_bytes()
    if text.endswith((".yaml", ".yml")):
        shipped = ", ".join(sorted(f"finetune/spaces/{p.name}" for p in SHIPPED.glob("*.yaml")))
        remedy = "Check the path, or make the file."
        raise refusal("space", text, f"an existing file, like {shipped}", remedy)
    return text


def _check(flag: str, values: Any, kinds: Mapping[str, type], variant: str) -> None:
    """Refuse a flag that cannot be swept."""
    owners, own = variants.owners(flag), variants.settings_of(variant)
    if flag in kinds and flag not in NOT_SWEPT and (not owners or variant in owners):
        return
    if owners:
        allowed = f"with variant {', '.join(owners)}"
        remedy = f"Variant {variant} has {', '.join(own) or 'no settings'}: sweep one of those."
    else:
        allowed = ", ".join([*own, *(n for n in kinds if n not in NOT_SWEPT and n not in own)])
        close = difflib.get_close_matches(flag, set(kinds) - NOT_SWEPT)
        remedy = f"Did you mean {' or '.join(close)}?" if close else "Sweep one of these."
    raise refusal(f"space, flag {flag}", values, allowed, remedy)


def _listed(flag: str, choices: Choices) -> list[Any]:
    if not isinstance(choices, Range):
        return choices
    raise refusal(
        f"space, {flag}",
        f"a range, {choices.low} to {choices.high}",
        "a list of values with method grid",
        "List them, or use --method optuna --trials N.",
    )


def _choices(flag: str, values: Any, kind: type) -> Choices:
    if isinstance(values, dict):
        return _range(flag, values, kind)
    found = [_value(v, kind) for v in (values if isinstance(values, list) else [values])]
    if not found or any(value in found[:i] for i, value in enumerate(found)):
        allowed = "one or more values that differ"
        remedy = "Name each value once." if found else "Name a value, or drop the flag."
        raise refusal(f"space, {flag}", values, allowed, remedy)
    return found


def _value(value: Any, kind: type) -> Any:
    """As the flag's type has it: YAML takes 1e-3 for text."""
    if isinstance(value, list):
        return [_value(item, kind) for item in value]
    if kind is float and type(value) is int:
        return float(value)
    if kind in (int, float) and isinstance(value, str):
        with suppress(ValueError):
            return float(value)
    return value


def _range(flag: str, given: Mapping[str, Any], kind: type) -> Range:
    ends = {name: value for name, value in given.items() if name != "log" and value is not None}
    with suppress(TypeError, ValueError, OverflowError):  # other names, or no such numbers
        numbers = {name: kind(float(str(value))) for name, value in ends.items()}
        found = Range(**numbers, log=given.get("log", False))
        is_exact = all(float(str(ends[name])) == numbers[name] for name in ends)
        if kind in (int, float) and is_exact and found.is_drawable():
            return found
    whole = ", whole ones for this flag" if kind is int else ""
    raise refusal(
        f"space, {flag}",
        dict(given),
        f"low below high, of a flag that takes numbers{whole}; also log: true (above 0), or step",
        "Write {low: 1, high: 2} with your numbers.",
    )
