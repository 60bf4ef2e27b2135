"""Graph-filter attention for pretrained Hugging Face models.

    import hf_graphattn as ga
    ga.patch_model(model, ga.GFSAConfig(order=4, w_0=-0.01))

The configs of the registered variants are public names too: GFSAConfig, PLaTConfig,
LaplacianConfig.
"""

from . import attention as _attention
from .card import model_card
from .errors import GraphAttentionError
from .filter_files import FILTERS_NAME, load_filters, save_filters
from .hub import from_pretrained
from .patching import (
    filter_parameters,
    graph_filters,
    is_patched,
    patch_model,
    unpatch_model,
)
from .peft import load_peft, peft_modules
from .reporting import report
from .repository import push_to_hub, save_repository
from .training import freeze_base, optimizer_groups
from .variants import GraphFilter, VariantConfig, register, setting, variant_configs
from .version import __version__

_attention.register()

__all__ = [
    "FILTERS_NAME",
    "GraphAttentionError",
    "GraphFilter",
    "VariantConfig",
    "__version__",
    "filter_parameters",
    "freeze_base",
    "from_pretrained",
    "graph_filters",
    "is_patched",
    "load_filters",
    "load_peft",
    "model_card",
    "optimizer_groups",
    "patch_model",
    "peft_modules",
    "push_to_hub",
    "register",
    "report",
    "save_filters",
    "save_repository",
    "setting",
    "unpatch_model",
    "variant_configs",
]


def __getattr__(name: str) -> type[VariantConfig]:
    for config in variant_configs().values():
        if config.__name__ == name:
            return config
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *(config.__name__ for config in variant_configs().values())])
