"""What is compared: scripts, arms, and spaces of settings, of which each is an arm."""

from __future__ import annotations

import hashlib
import importlib
import itertools
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hf_graphattn as ga
import tasks
from finetune.errors import Refused, meant, refusal
from finetune.settings import recipes, variants
from finetune.settings.groups import FILTER_RATE
from finetune.settings.schema import Run, Schema, check_learning_rate
from finetune.settings.variants import NO_VARIANT

SHIPPED = Path(__file__).parents[1] / "spaces"
FORM = "`flag: [value, ...]`, for optuna also `flag: {low: 1, high: 2}`, or a list of such spaces"
PER_RUN = ("variant", "seed", "output_dir")  # each run has its own
# Flags that are given per run, and those that would make runs which cannot be compared.
NOT_COMMON = (
    *(*PER_RUN, "resume_from_checkpoint", "overwrite_output_dir", "do_eval_only"),
    *("push_to_hub", "hub_model_id", "hub_private_repo", "hub_example"),
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

    def run(self, flags: Mapping[str, Any]) -> Run[Any, Any]:
        """The run of these flags; ``output_dir`` may be missing.

        Raises ``Refused`` for flags that the script would refuse before it loads anything, and for
        a learning rate of scalars that are not learned.
        """
        run = self.schema.run({"output_dir": ".", **flags})
        check_learning_rate(run)
        return run


@dataclass(frozen=True)
class Arm:
    """One of the things compared.

    Attributes:
        name: also that of its runs' folder.
        flags: by name; ``variant`` is among them.
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


PLAIN = Arm(NO_VARIANT, {"variant": NO_VARIANT})


def chosen(
    names: Sequence[str] | None,
    path: str | None,
    lines: Sequence[str],
    baseline: str | None,
    script: Script,
) -> list[Arm]:
    """The arms to compare, the baseline first.

    Args:
        names: of variants, or of the file's arms; None is all of the file, else the arms that
            ``lines`` name beside plain attention, else every registered variant.
        path: a YAML file of arms, ``name: {flag: value}``; ``variant`` is the name unless given.
        lines: more flags of single arms, each ``"name: --flag value ..."``.
        baseline: what the others are compared to; None is plain attention, or else the first.
        script: whose flags they are.

    Raises ``Refused`` for a file, name, flag or variant that cannot be.
    """
    known = read(path) if path else {name: {} for name in (NO_VARIANT, *ga.variant_configs())}
    by_lines = names is None and path is None and bool(lines)
    names = list(names or ([] if by_lines else known))
    added: dict[str, dict[str, Any]] = {}
    for line in lines:
        name, flags = _flags_of_line(line, [*known] if by_lines else names, script)
        added[name] = {**added.get(name, {}), **flags}
        names += [] if name in names else [name]
    arms = [_arm(n, {**known.get(n, {}), **added.get(n, {})}, known, script) for n in names]
    plain = [arm.name for arm in arms if arm.variant == NO_VARIANT]
    if by_lines and NO_VARIANT not in names and (baseline == NO_VARIANT or not (baseline or plain)):
        arms, names, plain = [*arms, PLAIN], [*names, NO_VARIANT], [NO_VARIANT]
    if len(set(names)) < len(names) or len(names) < 2:
        raise refusal("variants", names, "two or more different names", "Name what to compare.")
    baseline = baseline or (plain or names)[0]
    if baseline not in names:
        raise refusal("baseline", baseline, ", ".join(names), "Choose one of the arms.")
    return sorted(arms, key=lambda arm: arm.name != baseline)


def read(path: str) -> dict[str, dict[str, Any]]:
    """Each arm's flags, from a YAML file; raises ``Refused`` if it is none."""
    form = "name: {flag: value}"
    data = recipes.load("arms", path, form)
    arms = data if isinstance(data, dict) else {"the file": data}
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
    return flags if script.run(without).learns_scalars() else without


def _flags_of_line(line: str, names: Sequence[str], script: Script) -> tuple[str, dict[str, Any]]:
    """The name and the flags of ``"name: --flag value ..."``; with a variant any name will do."""
    name, _, rest = (part.strip() for part in line.partition(":"))
    try:
        argv = shlex.split(rest)
    except ValueError:  # a quotation mark is not closed
        argv = []
    if not argv or not (name in names or "--variant" in argv):
        allowed = f"'name: --flag value ...' with a name of {', '.join(names)}"
        remedy = "Write the arm's name, a colon and its flags, all between one pair of quotes."
        raise refusal("variant_flags", line, allowed, remedy)
    return name, script.schema.given(argv)


def _arm(name: str, flags: Mapping[str, Any], known: Iterable[str], script: Script) -> Arm:
    allowed = [NO_VARIANT, *ga.variant_configs()]
    if "variant" not in flags and name not in allowed:
        remedy = f"Choose among these, or define it: --variant_flags '{name}: --variant ...'."
        raise refusal("variants", name, ", ".join(dict.fromkeys([*known, *allowed])), remedy)
    unknown = [flag for flag in flags if flag not in script.schema.flags()]
    if unknown:
        raise refusal(f"arm {name}, flags", unknown, "the script's", "Drop or rename them.")
    try:
        return Arm(name, script.schema.typed({"variant": name, **flags}))
    except Refused as error:
        raise Refused(f"Arm {name}: {error}") from error


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, both included; whole ones for a flag that takes these.

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
        return self.low > 0 and self.step is None if self.log else (self.step or 1) > 0


@dataclass(frozen=True)
class Space:
    """What is swept: each setting is an arm of a comparison.

    Attributes:
        variant: the graph filter of all settings.
        parts: of each, its flags' values as a list or a `Range`.
    """

    variant: str
    parts: tuple[Mapping[str, list[Any] | Range], ...]

    @property
    def flags(self) -> list[str]:
        """The flags of all parts."""
        return list(dict.fromkeys(flag for part in self.parts for flag in part))

    def grid(self) -> list[Arm]:
        """Every combination, the last flag changing fastest; raises ``Refused`` for a range."""
        for flag, values in itertools.chain(*(part.items() for part in self.parts)):
            if isinstance(values, Range):
                remedy = "List them, or use --method optuna --trials N."
                allowed = "a list of values with method grid"
                value = f"a range, {values.low} to {values.high}"
                raise refusal(f"space, {flag}", value, allowed, remedy)
        parts: tuple[Mapping[str, Any], ...] = self.parts
        return [
            self.arm(dict(zip(part, values, strict=True)))
            for part in parts
            for values in itertools.product(*part.values())
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
        values = {flag: value for flag, value in setting.items() if value is not None}
        name = "_".join(f"{flag}-{_slug(value)}" for flag, value in setting.items())
        if len(name) > LONGEST:
            name = f"{name[: LONGEST - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        return Arm(name, {"variant": self.variant, **values}, setting)


def read_space(text: str, script: Script, variant: str) -> Space:
    """The space in a YAML file, or in YAML itself.

    Raises ``Refused`` for what is none, and for flags that the script or the variant has not.
    """
    if text.endswith((".yaml", ".yml")) and not Path(text).is_file():
        shipped = ", ".join(sorted(f"finetune/spaces/{p.name}" for p in SHIPPED.glob("*.yaml")))
        remedy = "Check the path, or make the file."
        raise refusal("space", text, f"an existing file, like {shipped}", remedy)
    source = Path(text).read_bytes() if Path(text).is_file() else text
    data = recipes.parsed("space", text, source)
    parts = data if isinstance(data, list) else [data]
    if not parts or not all(isinstance(part, dict) and part for part in parts):
        raise refusal("space", text, FORM, "Name a flag, then a colon and its values.")
    return Space(variant, tuple(dict(_choices(part, script, variant)) for part in parts))


def described(setting: Mapping[str, Any]) -> str:
    """A setting in a sentence: ``order 4, w_0 -0.01``."""
    return ", ".join(f"{flag} {as_text(value)}" for flag, value in setting.items())


def as_text(value: Any) -> str:
    """A value in tables and figures, lists as on the command line."""
    if value is None:
        return "default"
    return " ".join(recipes.argv({"": value})[1:])


def _slug(value: Any) -> str:
    if isinstance(value, list) and value:
        return "+".join(map(_slug, value))
    return re.sub(r"[^\w.+-]", "-", as_text(value))


def _choices(
    part: Mapping[str, Any], script: Script, variant: str
) -> Iterator[tuple[str, list[Any] | Range]]:
    flags = script.schema.flags()
    own = variants.settings_of(variant)
    allowed = [*own, *(n for n in flags if n not in NOT_SWEPT and not variants.owners(n))]
    for flag, values in part.items():
        if flag not in allowed:
            owners = variants.owners(flag)
            remedy = f"It is a setting of {', '.join(owners)}." if owners else "Sweep one of these."
            remedy = meant([flag], allowed, remedy)
            raise refusal(f"space, flag {flag}", values, ", ".join(allowed), remedy)
        if isinstance(values, dict):
            yield flag, _range(flag, values, variants.flag_kind(flags[flag][1])[0])
            continue
        listed = values if isinstance(values, list) else [values]
        typed = [script.schema.typed({flag: value})[flag] for value in listed]
        if not typed or any(value in typed[:i] for i, value in enumerate(typed)):
            remedy = "Name each value once." if typed else "Name a value, or drop the flag."
            raise refusal(f"space, {flag}", values, "one or more values that differ", remedy)
        yield flag, typed


def _range(flag: str, values: Mapping[str, Any], kind: type) -> Range:
    whole = ", whole ones for this flag" if kind is int else ""
    allowed = (
        f"low below high, of a flag that takes numbers{whole}; also log: true (above 0), or step"
    )
    try:
        ends = {k: float(str(v)) for k, v in values.items() if k != "log" and v is not None}
        numbers: dict[str, Any] = {name: kind(value) for name, value in ends.items()}
        made = Range(**numbers, log=values.get("log", False))
        if kind not in (int, float) or numbers != ends or not made.is_drawable():
            raise ValueError
    except (TypeError, ValueError, OverflowError) as error:  # other names, or no such numbers
        remedy = "Write {low: 1, high: 2} with your numbers."
        raise refusal(f"space, {flag}", dict(values), allowed, remedy) from error
    return made
