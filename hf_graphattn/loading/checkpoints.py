"""The files of a checkpoint: where they are, its processor, and the filters' tensors in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoProcessor, PreTrainedTokenizerBase
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.hub import cached_file

from hf_graphattn.errors import GraphAttentionError
from hf_graphattn.interface.graph_attn import is_filter_key

# The arguments of transformers' from_pretrained by which it finds the files.
HUB_ARGUMENTS = (
    "cache_dir",
    "force_download",
    "local_files_only",
    "proxies",
    "revision",
    "subfolder",
    "token",
)
PROCESSOR_FILES = ("tokenizer_config.json", "preprocessor_config.json", "processor_config.json")
MADE_UP = 2  # tokens at most: T5's, DeBERTa's and others' have a blank or an unknown one
SAVE_ONE = "Save the model's there: tokenizer.save_pretrained(folder)."


def hub_arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by which transformers finds the files."""
    return {name: kwargs[name] for name in HUB_ARGUMENTS if name in kwargs}


def find_file(path: str, name: str, where: dict[str, Any]) -> str | None:
    """The local path of a file in a folder or repository; None if it is not there."""
    return cached_file(path, name, _raise_exceptions_for_missing_entries=False, **where)


def processor_of(path: str) -> Any:
    """The tokenizer or processor that lies beside a model; None if there is none.

    Without a file of its own transformers would make one up from the model's type.
    """
    if any(find_file(path, name, {}) for name in PROCESSOR_FILES):
        return AutoProcessor.from_pretrained(path)
    return None


def is_made_up(tokenizer: Any) -> bool:
    """Whether it has hardly a token that is not special, as those that transformers makes up."""
    if not isinstance(tokenizer, PreTrainedTokenizerBase):  # several in one, of RAG
        return False
    return len(tokenizer) - len(set(tokenizer.all_special_ids)) <= MADE_UP


@contextmanager
def reading(path: str) -> Iterator[None]:
    """In this context an error in a checkpoint's files is a `GraphAttentionError` with `path`.

    Errors of the machine (no such file, no network, no memory, a package that is missing) stay.
    """
    try:
        yield
    except GraphAttentionError as error:
        if path not in str(error):
            error.args = (f"{path!r} cannot be loaded: {error}",)
        raise
    except (ImportError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and path in str(error):
            raise
        if isinstance(error, OSError) and not Path(path).exists():  # a repository out of reach
            raise OSError(f"{path!r} cannot be loaded: {error}") from error
        raise GraphAttentionError(
            f"{path!r} cannot be loaded: {type(error).__name__}: {error}. Its files are damaged, "
            f"were edited, or belong to another model; or an argument is wrong."
        ) from error


def read_filter_tensors(
    path: str, where: dict[str, Any], weights_variant: str | None, *, is_patched: bool
) -> dict[str, Tensor]:
    """The filters' tensors of a checkpoint, read from its safetensors file or shards.

    Raises:
        GraphAttentionError: a file is missing, or damaged.
    """

    def named(name: str) -> str:  # transformers' variant="fp16" is part of the files' names
        stem, _, end = name.rpartition(".")
        return f"{stem}.{weights_variant}.{end}" if weights_variant else name

    index = find_file(path, named(SAFE_WEIGHTS_INDEX_NAME), where)
    names = [named(SAFE_WEIGHTS_NAME)] if index is None else _shards(index)
    tensors: dict[str, Tensor] = {}
    for name in names:
        shard = find_file(path, name, where)
        if shard is None and not is_patched:
            continue  # it is a plain checkpoint in another format
        if shard is None:
            raise GraphAttentionError(
                f"{path!r} has no {name}, and hf_graphattn reads safetensors only. Save the "
                f"patched model again with model.save_pretrained(folder)."
            )
        tensors |= _filters_in(shard)
    return tensors


def _shards(index: str) -> list[str]:
    """The files that hold filters, by an index."""
    weight_map = json.loads(Path(index).read_text("utf-8"))["weight_map"]
    return sorted({shard for key, shard in weight_map.items() if is_filter_key(key)})


def _filters_in(file: str) -> dict[str, Tensor]:
    with safe_open(file, framework="pt") as opened:
        keys = [key for key in opened.keys() if is_filter_key(key)]  # noqa: SIM118 (no dict)
        return {key: opened.get_tensor(key) for key in keys}
