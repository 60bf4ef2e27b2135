"""Graph-filter attention for pretrained Hugging Face models.

    import hf_graphattn as ga
    ga.patch_model(model, ga.GFSAConfig(order=4, w_0=-0.01))

The public names are those of `__init__.pyi`, and the config class of every registered variant
(`ga.variant_configs()` lists them). The module behind a name, and with it torch and transformers'
models, is imported when the name is first used, since that takes seconds.
"""

import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

import lazy_loader

_listed, _, _names = lazy_loader.attach_stub(__name__, __file__)
# What `from hf_graphattn import *` imports: the name left out needs PEFT, an extra.
__all__ = [name for name in _names if name != "GraphFilterConfig"]


def __getattr__(name: str) -> Any:
    if name[:1].isupper() and name not in _names:
        for config in _configs():
            if config.__name__ == name:
                return config
    return _listed(name)


def __dir__() -> list[str]:
    return sorted([*_names, *(config.__name__ for config in _configs())])


def _configs() -> list[type]:
    return list(import_module(".variants", __name__).variant_configs().values())


class _WithPeft:
    """Finds PEFT as Python does, and has its import register `GraphFilterConfig` at the end.

    So an adapter of graph filters is known to PEFT, whichever of the two is imported first, and a
    process without PEFT imports nothing.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "peft":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (execute(module), _add_peft_method())
        return spec


def _add_peft_method() -> None:
    with suppress(ImportError):  # of an older PEFT, whose own import is not to fail
        import_module(".loading.peft_method", __name__)


if "peft" in sys.modules:
    _add_peft_method()
else:
    sys.meta_path.insert(0, _WithPeft())
