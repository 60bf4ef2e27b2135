"""Graph-filter attention for pretrained Hugging Face models.

    import hf_graphattn as ga
    ga.patch_model(model, ga.GFSAConfig(order=4, w_0=-0.01))

The configs of the registered variants are public names too: GFSAConfig, PLaTConfig,
LaplacianConfig.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import registration as _registration
from .errors import GraphAttentionError as GraphAttentionError
from .version import __version__ as __version__

_HERE = ["GraphAttentionError", "__version__"]
# Where the other public names are. A module, and with it torch and transformers' models, is
# imported when one of its names is first used: that takes seconds.
_NAMES = {
    "card": ["model_card"],
    "diagnostics": ["diagnose"],
    "filter_files": ["FILTERS_NAME", "load_filters", "save_filters"],
    "hub": ["from_pretrained"],
    "patching": [
        "filter_parameters",
        "graph_filters",
        "is_patched",
        "patch_model",
        "unpatch_model",
    ],
    "peft": ["load_peft", "peft_modules"],
    "reporting": ["report"],
    "repository": ["push_to_hub", "save_repository"],
    "training": ["freeze_base", "optimizer_groups"],
    "variants": ["GraphFilter", "VariantConfig", "register", "setting", "variant_configs"],
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

if TYPE_CHECKING:  # the same again for type checkers; a test compares
    from .card import model_card as model_card
    from .diagnostics import diagnose as diagnose
    from .filter_files import FILTERS_NAME as FILTERS_NAME
    from .filter_files import load_filters as load_filters
    from .filter_files import save_filters as save_filters
    from .hub import from_pretrained as from_pretrained
    from .patching import filter_parameters as filter_parameters
    from .patching import graph_filters as graph_filters
    from .patching import is_patched as is_patched
    from .patching import patch_model as patch_model
    from .patching import unpatch_model as unpatch_model
    from .peft import load_peft as load_peft
    from .peft import peft_modules as peft_modules
    from .reporting import report as report
    from .repository import push_to_hub as push_to_hub
    from .repository import save_repository as save_repository
    from .training import freeze_base as freeze_base
    from .training import optimizer_groups as optimizer_groups
    from .variants import GraphFilter as GraphFilter
    from .variants import VariantConfig as VariantConfig
    from .variants import register as register
    from .variants import setting as setting
    from .variants import variant_configs as variant_configs
else:  # of which they must not see what they cannot compute
    __all__ = sorted([*_HERE, *_MODULE_OF])

_registration.register()


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
        globals()[name] = value  # the next use does not come here
        return value
    if name[:1].isupper():  # a config class? Not of a lower-case name, such as a module's
        for config in import_module(".variants", __name__).variant_configs().values():
            if config.__name__ == name:
                return config
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    configs = import_module(".variants", __name__).variant_configs().values()
    return sorted([*_HERE, *_MODULE_OF, *(config.__name__ for config in configs)])
