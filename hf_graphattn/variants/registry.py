"""The known variants, by name. `register` is open: a package of your own may call it too."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any, TypeVar

from hf_graphattn.errors import GraphAttentionError, refusal

from .base import VariantConfig

_CONFIGS: dict[str, type[VariantConfig]] = {}
ConfigClass = TypeVar("ConfigClass", bound=type[VariantConfig])


def register(name: str) -> Callable[[ConfigClass], ConfigClass]:
    """Class decorator that makes a config known as variant `name`.

    Raises:
        GraphAttentionError: the name is not lower-case, is taken (both modules are named), or is
            "none"; or the class is not a frozen dataclass derived from `VariantConfig`, or names a
            scalar that is no field.
    """

    def add(cls: ConfigClass) -> ConfigClass:
        is_name = isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9_]*", name)
        if not is_name or name == "none":
            raise refusal("a variant's name", name, "lower-case letters, digits and _, not 'none'")
        # Without a decorator of its own, the fields that a class adds would not be fields.
        if not issubclass(cls, VariantConfig) or "__dataclass_params__" not in vars(cls):
            raise refusal(
                f"the config of variant {name!r}",
                cls,
                "a frozen dataclass from VariantConfig",
                "Write @register(...) above @dataclass(frozen=True).",
            )
        if name in _CONFIGS:
            raise GraphAttentionError(
                f"variant {name!r} is defined twice: in {_CONFIGS[name].__module__} and in "
                f"{cls.__module__}. Give one of them another name."
            )
        fields = [field.name for field in dataclasses.fields(cls)]
        if not set(cls.scalars) <= set(fields):
            allowed = f"names of its fields: {', '.join(fields)}"
            raise refusal(f"'scalars' of variant {name!r}", cls.scalars, allowed)
        attributes = vars(cls)  # without those of a variant that it derives from
        colour = attributes.get("colour")
        taken = {other.colour: other.variant for other in _CONFIGS.values()}
        if colour is not None and colour in taken:
            allowed = f"a place that no other variant has; this is {taken[colour]}'s"
            raise refusal(f"the colour of variant {name!r}", colour, allowed, "Or say none.")
        cls.variant, cls.title, cls.colour = name, attributes.get("title", name), colour
        cls.neutral = attributes.get("neutral", ())
        _CONFIGS[name] = cls
        return cls

    return add


def variant_configs() -> dict[str, type[VariantConfig]]:
    """The registered variants: name -> config class, in order of their names."""
    return dict(sorted(_CONFIGS.items()))


def variant_from_dict(saved: dict[str, Any]) -> VariantConfig:
    """The config that `{"variant": name, "settings": {...}}` describes."""
    name = saved.get("variant")
    if not isinstance(name, str) or name not in _CONFIGS:
        raise refusal(
            "the variant",
            name,
            ", ".join(variant_configs()),
            "If it comes from another package, import that package first.",
        )
    settings = saved.get("settings", {})
    if not isinstance(settings, dict):
        raise refusal(f"'settings' of variant {name!r}", settings, "an object of settings")
    return _CONFIGS[name].from_dict(settings)


def variant_to_dict(config: VariantConfig) -> dict[str, Any]:
    """The inverse of `variant_from_dict`, in JSON values."""
    return {"variant": config.variant, "settings": config.to_dict()}
