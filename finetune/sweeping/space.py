"""Spaces of settings: each flag with the values to try, or with a range to draw them from."""

from __future__ import annotations

import difflib
import hashlib
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

import hf_graphattn as ga
from finetune import recipe_files
from finetune.arguments import NO_VARIANT
from finetune.comparison.arms import Arm
from finetune.comparison.grid import NOT_COMMON
from finetune.comparison.scripts import Script
from finetune.flags import refusal

SHIPPED = Path(__file__).parents[1] / "spaces"
FORM = "`flag: [value, ...]`, for optuna also `flag: {low: 1, high: 2}`, or a list of such spaces"
# What decides what is measured, not how well: other values of these cannot be compared.
NOT_SWEPT = {*NOT_COMMON, "task_name", "recipe", "metric_for_best_model", "greater_is_better"}
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


@dataclass(frozen=True)
class Setting:
    """One point of a space: each flag's value, None where the flag is not given."""

    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Names its folder: ``order-4_w_0--0.01``; flags not given say ``default``."""
        parts = [f"{flag}-{_slug(value)}" for flag, value in self.values.items()]
        name = "_".join(parts)
        if len(name) <= LONGEST:
            return name
        return f"{name[: LONGEST - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"

    def flags(self) -> list[str]:
        """Words of a command line."""
        given = {flag: value for flag, value in self.values.items() if value is not None}
        return recipe_files.words({flag: ["none"] if v == [] else v for flag, v in given.items()})

    def arm(self, variant: str) -> Arm:
        """What is compared with plain attention."""
        return Arm(self.name, ("--variant", variant, *self.flags()))

    def __str__(self) -> str:
        return ", ".join(f"{flag} {shown(value)}" for flag, value in self.values.items())


@dataclass(frozen=True)
class Space:
    """What is swept: settings of each part, each flag's values as a list or a `Range`."""

    parts: tuple[Mapping[str, list[Any] | Range], ...]

    @property
    def flags(self) -> list[str]:
        """The flags of all parts."""
        return list(dict.fromkeys(flag for part in self.parts for flag in part))

    def grid(self) -> Iterator[Setting]:
        """Every combination, the last flag changing fastest.

        Raises ``ValueError`` for a range.
        """
        for part in self.parts:
            for flag, values in part.items():
                if isinstance(values, Range):
                    raise refusal(
                        f"space, {flag}",
                        f"a range, {values.low} to {values.high}",
                        "a list of values with method grid",
                        "List them, or use --method optuna --trials N.",
                    )
            for chosen in itertools.product(*part.values()):
                yield Setting(dict(zip(part, chosen, strict=True)))

    def ends(self) -> list[Setting]:
        """The first and last value of each flag together: what can be checked of ranges."""
        ends = []
        for i in (0, -1):
            for part in self.parts:
                lists = {f: [v.low, v.high] if isinstance(v, Range) else v for f, v in part.items()}
                ends.append(Setting({flag: values[i] for flag, values in lists.items()}))
        return ends


def read(text: str, script: Script, variant: str) -> Space:
    """The space in a YAML file, or in YAML itself.

    Raises ``ValueError`` for what is none, and for flags that the script or the variant has not.
    """
    try:
        found = yaml.safe_load(_source(text))
    except yaml.YAMLError as error:
        raise refusal("space", text, f"YAML, {FORM}", f"It says: {error}") from error
    parts = found if isinstance(found, list) else [found]
    if not parts or not all(isinstance(part, dict) and part for part in parts):
        raise refusal("space", text, FORM, "Write it so.")
    kinds, made = script.flags(), []
    for part in parts:
        for flag in part:
            _check(flag, part[flag], kinds, variant)
        made.append({flag: _choices(flag, part[flag], kinds[flag]) for flag in part})
    return Space(tuple(made))


def shown(value: Any) -> str:
    """A value in tables and figures, lists as on the command line."""
    if value is None:
        return "default"
    if isinstance(value, list):
        return " ".join(map(shown, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _source(text: str) -> str:
    if Path(text).is_file():
        return Path(text).read_text("utf-8")
    if text.endswith((".yaml", ".yml")):
        shipped = ", ".join(sorted(f"finetune/spaces/{p.name}" for p in SHIPPED.glob("*.yaml")))
        raise refusal("space", text, f"an existing file, like {shipped}", "Check the path.")
    return text


def _check(flag: str, values: Any, kinds: Mapping[str, Any], variant: str) -> None:
    """Refuse a flag that cannot be swept."""
    configs = ga.variant_configs()
    owners = [name for name, c in configs.items() if flag in {f.name for f in fields(c)}]
    own = [f.name for f in fields(configs[variant])] if variant != NO_VARIANT else []
    if flag in kinds and flag not in NOT_SWEPT and (not owners or variant in owners):
        return
    if owners:
        allowed = f"with variant {', '.join(owners)}"
        remedy = f"Variant {variant} has {', '.join(own) or 'no settings'}."
    else:
        allowed = ", ".join([*own, *(n for n in kinds if n not in NOT_SWEPT and n not in own)])
        close = difflib.get_close_matches(flag, set(kinds) - NOT_SWEPT)
        remedy = f"Did you mean {' or '.join(close)}?" if close else "Sweep one of these."
    raise refusal(f"space, flag {flag}", values, allowed, remedy)


def _choices(flag: str, values: Any, kind: Any) -> list[Any] | Range:
    if isinstance(values, dict):
        return _range(flag, values, kind)
    found = [_value(v, kind) for v in (values if isinstance(values, list) else [values])]
    if not found or any(value in found[:i] for i, value in enumerate(found)):
        raise refusal(
            f"space, {flag}", values, "one or more values that differ", "Change the list."
        )
    return found


def _value(value: Any, kind: Any) -> Any:
    """As the flag's type has it: YAML takes 1e-3 for text."""
    if isinstance(value, list):
        return [_value(item, kind) for item in value]
    if kind in (int, float) and isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return float(value) if kind is float and type(value) is int else value


def _range(flag: str, given: Mapping[str, Any], kind: Any) -> Range:
    with suppress(TypeError):  # names that a range has not, or lacks
        found = Range(**{name: _value(value, float) for name, value in given.items()})
        if _is_drawable(found, kind):
            numbers = (found.low, found.high, found.step)
            low, high, step = (n if n is None else kind(n) for n in numbers)
            return Range(low, high, found.log, step)
    whole = ", whole ones for this flag" if kind is int else ""
    raise refusal(
        f"space, {flag}",
        dict(given),
        f"low below high, of a flag that takes numbers{whole}; also log: true (above 0), or step",
        "Write {low: 1, high: 2}.",
    )


def _is_drawable(drawn: Range, kind: Any) -> bool:
    numbers = [drawn.low, drawn.high] + ([] if drawn.step is None else [drawn.step])
    return (
        kind in (int, float)
        and all(type(number) is float and math.isfinite(number) for number in numbers)
        and (kind is float or all(number.is_integer() for number in numbers))
        and drawn.low < drawn.high
        and isinstance(drawn.log, bool)
        and not (drawn.log and (drawn.low <= 0 or drawn.step is not None))
        and (drawn.step is None or drawn.step > 0)
    )


def _slug(value: Any) -> str:
    if isinstance(value, list) and value:
        return "+".join(map(_slug, value))
    return re.sub(r"[^\w.+-]", "-", shown(value))
