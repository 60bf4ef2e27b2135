"""Which variant has which setting: the one place that says whose a flag is.

The flags are made from the registered configs, so a new variant brings its own.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, make_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

import hf_graphattn as ga
from finetune.errors import meant, refusal
from finetune.settings.flags import flag

NO_VARIANT = "none"


def checked_variant(name: str | None) -> str:
    """The name, if it is plain attention's or a registered variant's; else ``ValueError``."""
    allowed = [NO_VARIANT, *ga.variant_configs()]
    if name not in allowed:
        question = meant([str(name)], allowed, "Choose one of these with --variant.")
        raise refusal("variant", name, ", ".join(allowed), question)
    return name


def settings_of(variant: str) -> list[str]:
    """The names of a variant's settings; plain attention has none."""
    configs = ga.variant_configs()
    return [f.name for f in fields(configs[variant])] if variant in configs else []


def owners(name: str) -> list[str]:
    """The variants that have a setting of this name; none of a script's own flag."""
    return [variant for variant in ga.variant_configs() if name in settings_of(variant)]


def fitting(flags: Mapping[str, Any], variant: str) -> dict[str, Any]:
    """The flags without those settings that only other variants have."""
    return {n: v for n, v in flags.items() if not owners(n) or variant in owners(n)}


def config_of(variant: str, given: Mapping[str, Any]) -> ga.VariantConfig | None:
    """The variant's config with only the settings that were given; None for plain attention.

    Raises ``ValueError`` for a setting that the variant does not have.
    """
    for name, value in given.items():
        if variant not in owners(name):
            raise refusal(
                name,
                value,
                f"with variant {', '.join(owners(name))}",
                f"variant {variant} has no such setting: drop the flag or choose the variant.",
            )
    if variant == NO_VARIANT:
        return None
    return ga.variant_configs()[variant](**{n: _as_setting(v) for n, v in given.items()})


def flags_of_all(configs: Mapping[str, type]) -> type:
    """A dataclass with one optional flag for each field of any config, sequences as lists.

    Raises ``ValueError`` if two configs have a field of one name and different types.
    """
    kinds: dict[str, tuple[type, bool]] = {}
    known: dict[str, list[str]] = {}
    helps: dict[str, str] = {}
    defaults: dict[str, set[Any]] = {}
    for variant, config in configs.items():
        hints = get_type_hints(config)
        for config_field in fields(config):
            name, kind = config_field.name, flag_kind(hints[config_field.name])
            if kinds.setdefault(name, kind) != kind:
                raise ValueError(
                    f"{variant}'s field {name} is {hints[name]}; allowed: the type it has in "
                    f"{', '.join(known[name])}, since one flag --{name} serves all. Rename it."
                )
            known.setdefault(name, []).append(variant)
            helps.setdefault(name, config_field.metadata["help"])
            defaults.setdefault(name, set()).add(config_field.default)
    made = []
    for name, (scalar, is_sequence) in kinds.items():
        annotation: Any = list[scalar] if is_sequence else scalar  # type: ignore[valid-type]
        note = " 'none' is an empty list." if scalar is str and is_sequence else ""
        whose = "all" if len(known[name]) == len(configs) else ", ".join(known[name])
        help = f"[{whose}] {helps[name]}.{note}{_shown(defaults[name])}".replace("%", "%%")
        made.append((name, annotation | None, flag(help)))
    title = {"TITLE": "settings of the graph filters, after the [variants] that have them"}
    return make_dataclass("VariantArguments", made, namespace=title)


def _shown(defaults: set[Any]) -> str:
    """The default of a setting, if all variants that have it have the same, and it is no None."""
    if len(defaults) > 1 or defaults & {None, MISSING}:
        return ""
    (value,) = defaults
    return f" (default: {' '.join(map(str, value)) if isinstance(value, tuple) else value})"


def flag_kind(annotation: Any) -> tuple[type, bool]:
    """Scalar type of an annotation like ``float | tuple[float, ...]``, and whether it repeats."""
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [part for part in get_args(annotation) if part is not type(None)]
        kinds = {flag_kind(part) for part in parts}
        scalars = {scalar for scalar, _ in kinds}
        if len(scalars) != 1:
            raise TypeError(f"{annotation} mixes types; a flag has one.")
        return scalars.pop(), any(repeats for _, repeats in kinds)
    if get_origin(annotation) in (tuple, list):
        return get_args(annotation)[0], True
    return annotation, False


def _as_setting(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return () if value == ["none"] else tuple(value)
