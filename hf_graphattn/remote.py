"""What the module in a pushed repository imports, for `trust_remote_code=True`.

`from hf_graphattn.remote import AutoModelForMaskedLM` gives a loader that transformers'
`AutoModelForMaskedLM.from_pretrained(repo, trust_remote_code=True)` takes for a model class.
"""

from __future__ import annotations

from typing import Any

import transformers
from transformers import PreTrainedModel

from .errors import GraphAttentionError
from .loading import from_pretrained


class RemoteLoader:
    """Takes the place of the class that transformers expects from a repository's own code."""

    auto_class = ""

    @classmethod
    def from_pretrained(
        cls, path: str, *args: Any, _from_auto: bool = True, **kwargs: Any
    ) -> PreTrainedModel:
        """Load the repository with `hf_graphattn.from_pretrained`."""
        kwargs.pop("trust_remote_code", None)
        return from_pretrained(
            path, *args, auto_class=getattr(transformers, cls.auto_class), **kwargs
        )

    @classmethod
    def _from_config(cls, config: Any, **kwargs: Any) -> PreTrainedModel:
        raise GraphAttentionError(
            f"a config alone has no filters. Make the plain model with {cls.auto_class}."
            f"from_config(config), then call patch_model(model, config)."
        )

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = None) -> None:
        """transformers calls this; there is nothing to register."""


def __getattr__(name: str) -> type[RemoteLoader]:
    if name.startswith("AutoModel") and hasattr(transformers, name):
        return type(name, (RemoteLoader,), {"auto_class": name, "__module__": __name__})
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
