"""What is computed: one file for each variant, found by looking at the files in this folder.

A variant is a frozen dataclass, registered under a lower-case name, and the filter module that it
builds. Its public name (`ga.GFSAConfig`), its command line flags, its loading from `config.json`
and its place in the docs follow from the registration.

Axes are named as in `backends`.
"""

from importlib import import_module
from pkgutil import iter_modules

from .base import (
    Attend,
    GraphFilter,
    VariantConfig,
    register,
    setting,
    variant_configs,
    variant_from_dict,
    variant_to_dict,
)

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Attend",
    "GraphFilter",
    "VariantConfig",
    "register",
    "setting",
    "variant_configs",
    "variant_from_dict",
    "variant_to_dict",
]
