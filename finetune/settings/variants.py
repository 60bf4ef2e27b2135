"""Which variant has which setting: the one place that says whose a flag is.

The flags are made from the registered configs, so a new variant brings its own.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, make_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

import hf_graphattn as ga
from finetune.errors import did_you_mean, refusal
from finetune.settings.flags import flag

NO_VARIANT = "none"
COMMON = ("trainable", "layers")  # settings that nearly all variants have


def checked_variant(name: str | None) -> str:
    """The name, if it is plain attention's or a registered variant's; else ``ValueError``."""
    allowed = [NO_VARIANT, *ga.variant_configs()]
    if name not in allowed:
        remedy = did_you_mean([str(name)], allowed, "Choose one of these with --variant.")
        raise refusal("variant", name, ", ".join(allowed), remedy)
    return name


def owners(setting: str) -> list[str]:
    """The variants that have a setting of this name; none of a script's own flag."""
    configs = ga.variant_configs().items()
    return [variant for variant, each in configs if setting in (f.name for f in fields(each))]


def without_others(flags: Mapping[str, Any], variant: str) -> dict[str, Any]:
    """The flags without those settings that only other variants have."""
    return {n: v for n, v in flags.items() if variant in (owners(n) or [variant])}


def config_of(variant: str, settings: Mapping[str, Any]) -> ga.VariantConfig | None:
    """The variant's config with these settings alone; None for plain attention.

    Raises ``Refused`` for a setting that the variant does not have.
    """
    for name, value in settings.items():
        if variant not in (having := owners(name)):
            remedy = f"variant {variant} has no such setting: drop the flag or choose the variant."
            raise refusal(name, value, f"with variant {', '.join(having)}", remedy)
    if variant == NO_VARIANT:
        return None
    values = {
        name: () if value == ["none"] else tuple(value) if isinstance(value, list) else value
        for name, value in settings.items()
    }
    return ga.variant_configs()[variant](**values)


def flags_of_all(configs: Mapping[str, type]) -> type:
    """A dataclass with one optional flag for each field of any config, sequences as lists.

    Raises ``ValueError`` if two configs have a field of one name and different types.
    """
    made: dict[str, tuple[str, Any, Any]] = {}
    for variant, config in configs.items():
        hints = get_type_hints(config)
        for each in fields(config):
            scalar, repeats = flag_kind(hints[each.name])
            kind: Any = list[scalar] if repeats else scalar  # type: ignore[valid-type]
            if each.name in made and made[each.name][1] != kind:
                raise ValueError(
                    f"{variant}'s field {each.name} is {hints[each.name]}; allowed: the type "
                    f"{made[each.name][1]} that it has in another variant. Rename it."
                )
            made_flag = flag(f"{each.metadata.get('help')}.", rare=each.name not in COMMON)
            made.setdefault(each.name, (each.name, kind, made_flag))
    return make_dataclass("VariantArguments", made.values(), namespace={"TITLE": "graph filter"})


def summary(variant: str) -> str:
    """The variant's own settings with their defaults, in a line."""
    texts = [
        f"{f.name} {' '.join(map(str, f.default)) if isinstance(f.default, tuple) else f.default}"
        for f in fields(ga.variant_configs()[variant])
        if f.name not in COMMON
    ]
    return ", ".join(texts) or "none"


def flag_kind(annotation: Any) -> tuple[Any, bool]:
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
