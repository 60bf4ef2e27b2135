"""What is compared: scripts, arms, and spaces of settings, of which each is an arm."""

from __future__ import annotations

import hashlib
import importlib
import itertools
import math
import re
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hf_graphattn as ga
import tasks
from finetune.errors import did_you_mean, refusal
from finetune.settings import recipes, variants
from finetune.settings.groups import FILTER_RATE
from finetune.settings.schema import Run, Schema
from finetune.settings.training import check_schedule
from finetune.settings.variants import NO_VARIANT

SPACES = Path(__file__).parents[1] / "spaces"
FORM = "`flag: [value, ...]`, for optuna also `flag: {low: 1, high: 2}`, or a list of such spaces"
PER_RUN = ("variant", "seed", "output_dir")  # each run has its own
# Flags that are given per run, and those that would make runs which cannot be compared.
NOT_COMMON = (
    *PER_RUN,
    *("resume_from_checkpoint", "overwrite_output_dir", "do_eval_only", "push_to_hub"),
)
# They decide what is measured: runs with other values of these cannot be compared.
NOT_SWEPT = {*NOT_COMMON, "task_name", "recipe", "metric", "metric_for_best_model"}
NOT_SWEPT |= {"greater_is_better"}
LONGEST = 120  # characters of a folder's name


def families() -> list[str]:
    """The families of tasks that a script of this project runs."""
    names = dict.fromkeys(family for family, _ in tasks.registered() if family)
    return [family for family in names if find_spec(f"finetune.{family}") is not None]


@dataclass(frozen=True)
class Arm:
    """One of the things compared.

    Attributes:
        name: also that of its runs' folder.
        flags: those that it sets, by name; ``variant`` is among them.
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


PLAIN = Arm(NO_VARIANT, {"variant": NO_VARIANT})


@dataclass(frozen=True)
class Script:
    """A script of the folder ``finetune``, or a file of the same name that takes the same flags.

    Raises ``Refused`` if there is no such file, or no family of tasks has its name.
    """

    path: Path

    def __post_init__(self) -> None:
        if not self.path.is_file() or self.family not in families():
            allowed = ", ".join(f"finetune/{family}.py" for family in families())
            raise refusal("script", str(self.path), allowed, "Give the path of one of these.")

    @property
    def family(self) -> str:
        """Its name, which is that of its tasks' family."""
        return self.path.stem

    @property
    def schema(self) -> Schema[Any, Any]:
        """Its flags."""
        schema: Schema[Any, Any] = importlib.import_module(f"finetune.{self.family}").SCHEMA
        return schema

    def run(self, arm: Arm, common: Mapping[str, Any]) -> Run[Any, Any]:
        """The run of an arm; its seed and its folder are still to be set.

        Of the common flags, a variant's setting, like ``order``, is left out for the arms of other
        variants, and ``filter_learning_rate`` for those that learn no scalar.

        Raises ``Refused`` for flags that the script would refuse before it loads anything, and for
        an arm's own learning rate of scalars that are not learned.
        """
        others = variants.without_others(common, arm.flags["variant"])
        run = self.schema.run({"output_dir": ".", **others, **arm.flags})
        check_schedule(run.train)
        rate = run.filter.filter_learning_rate
        if rate is None or run.learns_scalars():
            return run
        if FILTER_RATE in arm.flags:
            name = f"{FILTER_RATE} with variant {run.filter.variant}"
            remedy = "Drop the flag, or name the scalars to learn with --trainable."
            raise refusal(name, rate, "with a variant that learns scalars", remedy)
        return replace(run, filter=replace(run.filter, filter_learning_rate=None))


def chosen(options: Namespace, script: Script, extra: Mapping[str, Mapping[str, Any]]) -> list[Arm]:
    """The arms to compare, the baseline first: plain attention, or else the first of all.

    Without --variants they are all of the file --arms, else those of ``extra`` beside plain
    attention, else every registered variant.

    Args:
        options: the flags of compare.py.
        script: which the arms run.
        extra: the flags of --variant_flags by the arm's name.

    Raises:
        Refused: for a file, name, flag or variant that cannot be.
    """
    every: dict[str, dict[str, Any]] = {name: {} for name in (NO_VARIANT, *ga.variant_configs())}
    known = read(options.arms) if options.arms else every
    is_listed = bool(options.variants or options.arms or not extra)
    names = [*(options.variants or known)] if is_listed else []
    names += [name for name in extra if name not in names]
    arms = [_arm(n, {**known.get(n, {}), **extra.get(n, {})}, known, script) for n in names]
    plain = [arm.name for arm in arms if arm.flags["variant"] == NO_VARIANT]
    lacks_plain = options.baseline == NO_VARIANT or not (options.baseline or plain)
    if lacks_plain and not is_listed and NO_VARIANT not in names:
        arms, names, plain = [*arms, PLAIN], [*names, NO_VARIANT], [NO_VARIANT]
    if len(set(names)) < len(names) or len(names) < 2:
        raise refusal("variants", names, "two or more different names", "Name what to compare.")
    baseline = options.baseline or (plain or names)[0]
    if baseline not in names:
        raise refusal("baseline", baseline, ", ".join(names), "Choose one of the arms.")
    return sorted(arms, key=lambda arm: arm.name != baseline)


def read(path: str) -> dict[str, dict[str, Any]]:
    """Each arm's flags, from a YAML file; raises ``Refused`` if it is none."""
    form = "name: {flag: value}"
    data = recipes.load("arms", path, form)
    for name, flags in data.items() if isinstance(data, dict) else [("the file", data)]:
        if not isinstance(flags, dict | None):
            remedy = "Put the arm's flags into braces, or each on an indented line."
            raise refusal(f"arms {path}, {name}", flags, f"`{form}`", remedy)
    return {
        str(name): {flag: value for flag, value in (flags or {}).items() if value is not None}
        for name, flags in data.items()
    }


def _arm(name: str, flags: Mapping[str, Any], known: Iterable[str], script: Script) -> Arm:
    allowed = [NO_VARIANT, *ga.variant_configs()]
    if "variant" not in flags and name not in allowed:
        remedy = f"Choose among these, or define it: --variant_flags '{name}: --variant ...'."
        raise refusal("variants", name, ", ".join(dict.fromkeys([*known, *allowed])), remedy)
    return Arm(name, script.schema.typed({"variant": name, **flags}, f"arm {name}"))


@dataclass(frozen=True)
class Space:
    """What is swept: each setting is an arm of a comparison.

    Attributes:
        variant: the graph filter of all settings.
        parts: of each its flags' values: a list, or what Optuna draws from.
    """

    variant: str
    parts: Sequence[Mapping[str, Any]]

    def grid(self) -> list[Arm]:
        """Every combination, the last flag changing fastest."""
        return [
            self.arm(dict(zip(part, values, strict=True)))
            for part in self.parts
            for values in itertools.product(*part.values())
        ]

    def ends(self) -> list[Arm]:
        """The first and last value of each flag together: what can be checked of ranges."""
        ends = {f: v if isinstance(v, list) else [v.low, v.high] for f, v in self.parts[0].items()}
        return [self.arm({f: v[i] for f, v in ends.items()}) for i in (0, -1)]

    def arm(self, setting: Mapping[str, Any]) -> Arm:
        """A setting as an arm: each flag's value, None where the flag is not given."""
        values = {flag: value for flag, value in setting.items() if value is not None}
        name = "_".join(f"{flag}-{_slug(value)}" for flag, value in setting.items())
        if len(name) > LONGEST:
            name = f"{name[: LONGEST - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        return Arm(name, {"variant": self.variant, **values}, setting)


def read_space(text: str, script: Script, variant: str, *, ranges: bool = False) -> Space:
    """The space in a YAML file, or in YAML itself.

    Args:
        text: the file's path, or the YAML.
        script: whose flags it has.
        variant: the graph filter of all settings.
        ranges: whether one space is searched, which may have ranges.

    Raises:
        Refused: for what is no space, and for flags that the script or the variant lacks.
    """
    if text.endswith((".yaml", ".yml")) and not Path(text).is_file():
        shipped = ", ".join(sorted(f"finetune/spaces/{p.name}" for p in SPACES.glob("*.yaml")))
        remedy = "Check the path, or make the file."
        raise refusal("space", text, f"an existing file, like {shipped}", remedy)
    data = recipes.parsed("space", text, Path(text).read_bytes() if Path(text).is_file() else text)
    parts = data if isinstance(data, list) else [data]
    if not parts or not all(isinstance(part, dict) and part for part in parts):
        raise refusal("space", text, FORM, "Name a flag, then a colon and its values.")
    if ranges and len(parts) > 1:
        raise refusal("space", "a list", "one space with optuna", "Sweep them one by one.")
    return Space(variant, [_part(part, script, variant, ranges) for part in parts])


def described(setting: Mapping[str, Any]) -> str:
    """A setting in a sentence: ``order 4, w_0 -0.01``."""
    return ", ".join(f"{flag} {as_text(value)}" for flag, value in setting.items())


def as_text(value: Any) -> str:
    """A value in tables and figures, lists as on the command line."""
    return "default" if value is None else " ".join(recipes.argv({"": value})[1:])


def _slug(value: Any) -> str:
    if isinstance(value, list) and value:
        return "+".join(map(_slug, value))
    return re.sub(r"[^\w.+-]", "-", as_text(value))


def _part(part: Mapping[str, Any], script: Script, variant: str, ranges: bool) -> dict[str, Any]:
    """Each flag's values in its type, a list or what Optuna draws from."""
    allowed = [
        name
        for name in script.schema.flags()
        if name not in NOT_SWEPT and variant in (variants.owners(name) or [variant])
    ]
    made = {}
    for flag, values in part.items():
        if flag not in allowed:
            owners = ", ".join(variants.owners(flag))
            remedy = f"It is a setting of {owners}." if owners else "Sweep one of these."
            remedy = did_you_mean([str(flag)], allowed, remedy)
            raise refusal(f"space, flag {flag}", values, ", ".join(allowed), remedy)
        if isinstance(values, dict) and not ranges:
            remedy = "List the values, or use --method optuna --trials N."
            raise refusal(f"space, {flag}", values, "a list with method grid", remedy)
        read = _range if isinstance(values, dict) else _values
        made[flag] = read(flag, values, script.schema)
    return made


def _values(flag: str, values: Any, schema: Schema[Any, Any]) -> list[Any]:
    several = values if isinstance(values, list) else [values]
    typed = [schema.typed({flag: value}, "space").get(flag) for value in several]
    if not typed or any(value in typed[:i] for i, value in enumerate(typed)):
        remedy = "Name each value once." if typed else "Name a value, or drop the flag."
        raise refusal(f"space, {flag}", values, "one or more values that differ", remedy)
    return typed


def _range(flag: str, values: Mapping[str, Any], schema: Schema[Any, Any]) -> Any:
    """What Optuna draws from; whole numbers for a flag that takes these."""
    from optuna import distributions

    kinds = {int: distributions.IntDistribution, float: distributions.FloatDistribution}
    try:
        kind = kinds.get(schema.flags()[flag].kind)
        numbers = {n: v for n, v in values.items() if n != "log"}
        typed: dict[str, Any] = {
            n: schema.typed({flag: v}, "space").get(flag) for n, v in numbers.items()
        }
        if kind is None or not all(map(math.isfinite, typed.values())):
            raise ValueError("these are no numbers")
        return kind(**{**values, **typed})
    except (TypeError, ValueError) as error:
        allowed = f"low below high, and log: true or step; {error}"
        remedy = "Write {low: 1, high: 2} with your numbers, whole ones for a flag of these."
        raise refusal(f"space, {flag}", values, allowed, remedy) from error
