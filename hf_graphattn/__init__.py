"""Graph-filter attention for pretrained Hugging Face models.

    import hf_graphattn as ga
    ga.patch_model(model, ga.GFSAConfig(order=4, w_0=-0.01))

The public names are those of `__init__.pyi`, and the config class of every registered variant
(`ga.variant_configs()` lists them). The module behind a name, and with it torch and transformers'
models, is imported when the name is first used, since that takes seconds.
"""

from importlib import import_module
from typing import Any

import lazy_loader

_listed, _, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name[:1].isupper() and name not in __all__:
        for config in _configs():
            if config.__name__ == name:
                return config
    return _listed(name)


def __dir__() -> list[str]:
    return sorted([*__all__, *(config.__name__ for config in _configs())])


def _configs() -> list[type]:
    return list(import_module(".variants", __name__).variant_configs().values())
