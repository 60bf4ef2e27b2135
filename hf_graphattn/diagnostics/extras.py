"""The packages of the extra `plots`, which the library works without."""

from __future__ import annotations

import importlib
from typing import Any

from hf_graphattn.errors import GraphAttentionError


def optional(module: str) -> Any:
    """A module of an optional package, imported when it is used.

    Raises:
        GraphAttentionError: it is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise GraphAttentionError(
            f"this needs {module.split('.')[0]}, which is not installed. "
            f"pip install 'hf_graphattn[plots]'"
        ) from error
