"""Making "graph_attn" known to transformers without importing its models, which takes seconds.

The name must be known before anyone loads a patched checkpoint with plain transformers: the
attention function then says how to load it (`ga.from_pretrained`), where transformers would only
call the name unknown and offer "sdpa", which drops the filters. Nothing of ours runs between
`import hf_graphattn` and such a loading, except at an import: so a finder on `sys.meta_path`
(PEP 302) waits for `transformers.modeling_utils`, where attention functions are registered, has
`hf_graphattn.attention` imported right after it, and is gone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

AWAITED = "transformers.modeling_utils"


def register() -> None:
    """Have the attention function registered: now, or as soon as it can be without waiting."""
    if AWAITED in sys.modules:
        import_module("hf_graphattn.attention")  # which registers it
    elif not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())


class Finder(MetaPathFinder):
    """Finds what the other finders find, with a loader that registers afterwards."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != AWAITED:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        found = (f.find_spec(name, path, target) for f in others if hasattr(f, "find_spec"))
        spec = next((each for each in found if each is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = RegisteringLoader(spec.loader, self)
        return spec


class RegisteringLoader(Loader):
    """The module's own loader, and then ours."""

    def __init__(self, own: Loader, finder: Finder) -> None:
        self.own, self.finder = own, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.own
        self.own.exec_module(module)
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)
        import_module("hf_graphattn.attention")
