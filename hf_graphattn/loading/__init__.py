"""Loading a patched model from a folder or the hub; the files of a checkpoint.

Saving needs no function of ours: `model.save_pretrained` writes the filters with the weights, and
`config.json` has what was patched. Loading makes the plain model, patches it, and then copies the
filter tensors, strictly: none may be missing or left over, and every shape must be right.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoProcessor,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.core_model_loading import revert_weight_conversion
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.hub import cached_file

from hf_graphattn.errors import GraphAttentionError, refusal
from hf_graphattn.interface.graph_attn import FILTER, is_filter_key
from hf_graphattn.model.configs import ENTRY, IMPLEMENTATION, read_entry
from hf_graphattn.model.filters import CONFIG_NAME, filter_parameters, read_config
from hf_graphattn.model.parallel import shared_as
from hf_graphattn.model.save import ASKS, CHECKSUM, checksum
from hf_graphattn.patching import CHECKED
from hf_graphattn.patching.patch import patch, warn_if_not_plain
from hf_graphattn.variants import VariantConfig

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


def from_pretrained(
    path_or_repo: str | os.PathLike[str],
    *,
    graph_attn: VariantConfig | None = None,
    auto_class: Any = None,
    backend: str = "auto",
    check: Mapping[str, Any] | bool = False,
    **kwargs: Any,
) -> PreTrainedModel:
    """A patched model as `save_pretrained` left it, from a folder or a hub repository.

    Args:
        path_or_repo: a folder, or "user/repository".
        graph_attn: for a plain checkpoint, the filters to put in. A patched one has its own.
        auto_class: the class to load, `AutoModelForSequenceClassification` or a model class; by
            default the class that the checkpoint names.
        backend: as in `patch_model`.
        check: as in `patch_model`; a checkpoint remembers with which version of transformers and
            which backend its model was checked, and needs none with these.
        kwargs: as transformers' `from_pretrained`: dtype, device_map, tp_plan, revision, token ...

    Raises:
        GraphAttentionError: the checkpoint is plain, of a newer format or of an unknown variant;
            a filter tensor is missing, misshapen or left over; a file is damaged, or not what was
            saved; `attn_implementation` is given; or `graph_attn` is given for a patched one.
    """
    if "attn_implementation" in kwargs:
        allowed = "nothing, since a patched model has its own; backend=... chooses how it computes"
        raise refusal("attn_implementation", kwargs["attn_implementation"], allowed)
    path = os.fspath(path_or_repo)
    with reading(path):
        _refuse_adapter(path, hub_arguments(kwargs))
        config, kwargs = _config(path, kwargs)
        saved = getattr(config, "graph_attn", None)
        tensors = read_filter_tensors(
            path, hub_arguments(kwargs), kwargs.get("variant"), is_patched=saved is not None
        )
        variant = _variant(path, saved, graph_attn, bool(tensors))
        records = kwargs.pop(ASKS, None)
        if records is None:
            records = config.output_attentions or (saved or {}).get(ASKS, False)
        _make_plain(config, bool(records))
        model, loaded = _load_plain(path, config, _class_of(config, auto_class, path), kwargs)
        checked = (saved or {}).get(CHECKED)
        if isinstance(checked, dict) and backend == "auto":
            backend = checked.get("backend", backend)
        patch(model, variant, backend, check, checked)
        if saved is None:
            warn_if_not_plain(model, variant)
        else:
            load_filter_tensors(model, tensors, path, saved)
            # The checkpoint that was loaded is not the base.
            model.config.graph_attn.pop("base_model", None)
            if "base_model" in saved:
                model.config.graph_attn["base_model"] = saved["base_model"]
    return loaded


def load_any(path: str) -> PreTrainedModel:
    """The model of a folder or hub repository, patched or plain, of the class that it names.

    Raises:
        GraphAttentionError: there is no such folder, or its files are damaged.
    """
    _refuse_missing(path)
    with reading(path):
        _refuse_adapter(path, {})
        config = AutoConfig.from_pretrained(path)
        patched = getattr(config, ENTRY, None) is not None
        return from_pretrained(path) if patched else _named_class(config).from_pretrained(path)


def outline(path: str, revision: str) -> tuple[PreTrainedModel, VariantConfig | None]:
    """(The plain model, on the meta device; the filters that a patched checkpoint has, or None.)

    Only config.json is read. A config that names no class of transformers gets `AutoModel`'s.

    Args:
        path: a folder, or the name of a hub repository.
        revision: of the repository, as in transformers' `from_pretrained`.

    Raises:
        GraphAttentionError: there is no such folder, or the config makes no model.
    """
    _refuse_missing(path)
    with reading(path):
        config = AutoConfig.from_pretrained(path, revision=revision, trust_remote_code=False)
        entry = getattr(config, ENTRY, None)
        config._attn_implementation = None  # a patched model's names one that nothing has
        cls = _named_class(config)
        with torch.device("meta"):
            model = cls.from_config(config) if cls is AutoModel else cls(config)
        return model, None if entry is None else read_entry(entry, path)


def _refuse_missing(path: str) -> None:
    """Raise `GraphAttentionError` for a folder that is not there: transformers asks the hub."""
    if path.startswith((".", os.sep, "~")) and not os.path.isdir(path):
        raise refusal("the model", path, "a folder that exists, or the name of a hub repository")


def _refuse_adapter(path: str, where: dict[str, Any]) -> None:
    if find_file(path, CONFIG_NAME, where) is not None:
        raise GraphAttentionError(
            f"{path!r} holds a PEFT adapter: transformers would load it with the model, and drop "
            f"its filters silently. Load the model from a folder without {CONFIG_NAME}, and then "
            f"the adapter with load_peft(model, adapter); merge_and_unload() makes one model of "
            f"both, which can be saved."
        )


def _named_class(config: PreTrainedConfig) -> Any:
    """The class of transformers that a config names; `AutoModel` if it names none."""
    classes = [getattr(transformers, str(name), None) for name in config.architectures or ()]
    models = [c for c in classes if isinstance(c, type) and issubclass(c, PreTrainedModel)]
    return models[0] if models else AutoModel


def _config(path: str, kwargs: dict[str, Any]) -> tuple[PreTrainedConfig, dict[str, Any]]:
    """The checkpoint's config, as a copy, and the arguments that are not settings of it."""
    kwargs = dict(kwargs)
    config = kwargs.pop("config", None)
    if isinstance(config, PreTrainedConfig):
        return copy.deepcopy(config), kwargs
    kept = hub_arguments(kwargs)
    # A dtype may be "auto", which a config would take for a dtype; a patched model's config.json
    # names an attention implementation beside which transformers refuses to ask for attentions.
    for name in ("dtype", "torch_dtype", ASKS):
        if name in kwargs:
            kept[name] = kwargs.pop(name)
    # The config takes those of the other arguments that are its settings (num_labels).
    config, kwargs = AutoConfig.from_pretrained(config or path, return_unused_kwargs=True, **kwargs)
    return config, kwargs | kept


def _variant(
    path: str, saved: object, graph_attn: VariantConfig | None, has_filters: bool
) -> VariantConfig:
    if saved is None and has_filters:
        raise GraphAttentionError(
            f"{path!r} holds filters, but its config.json has no 'graph_attn': it was edited, or "
            f"only a part of the model was patched. Patch the whole model and save it again."
        )
    if saved is not None and graph_attn is not None:
        remedy = "Leave it out; or load, unpatch_model(model), then patch_model(model, config)."
        allowed = f"nothing, since {path!r} is patched already"
        raise refusal("graph_attn", graph_attn, allowed, remedy)
    if saved is not None:
        return read_entry(saved, path)
    if graph_attn is None:
        raise GraphAttentionError(
            f"{path!r} is a plain checkpoint: its config.json has no 'graph_attn'. Pass the "
            f"filters to put in, graph_attn=GFSAConfig(...); or load it with transformers and "
            f"call patch_model(model, config). In a shell, `graphattn supported {path}` lists what "
            f"could have filters."
        )
    return graph_attn


def _class_of(config: PreTrainedConfig, auto_class: Any, path: str) -> Any:
    """The model class to load: the one that was asked for, or that the checkpoint names."""
    name, value, cls = "auto_class", auto_class, auto_class
    remedy = "Leave it out to load what the checkpoint names."
    if auto_class is None:
        name, value = f"'architectures' in the config.json of {path!r}", config.architectures
        remedy = "Pass auto_class=AutoModelFor... to choose one."
        named = str(value[0]) if isinstance(value, list) and value else ""
        cls = getattr(transformers, named, None)
    if hasattr(cls, "_model_mapping"):  # an Auto class: take the class that it would choose
        cls = cls._model_mapping.get(type(config), None)
    is_model = isinstance(cls, type) and issubclass(cls, PreTrainedModel)
    if not is_model or not isinstance(config, cls.config_class):
        allowed = f"a model class of transformers for {type(config).__name__}, or an Auto class"
        raise refusal(name, value, allowed, remedy)
    return cls


def _make_plain(config: PreTrainedConfig, records: bool) -> None:
    """Remove the marks of a patched model from a checkpoint's config."""
    for name in (ENTRY, IMPLEMENTATION, "auto_map"):
        config.__dict__.pop(name, None)
    config.output_attentions = False
    config._attn_implementation = None  # the plain class chooses its own, and is then patched
    if records:
        config.output_attentions = True  # transformers then chooses "eager"


def _load_plain(path: str, config: PreTrainedConfig, cls: Any, kwargs: dict[str, Any]) -> Any:
    """(The plain model, the value to return: a tuple with `output_loading_info=True`)."""
    # The plain class does not expect the filter tensors, and only a subclass can keep transformers
    # from reporting them. The model gets its own class back at once.
    ignored = [*(cls._keys_to_ignore_on_load_unexpected or ()), rf"\.{FILTER}\."]
    quiet: Any = type(
        cls.__name__,
        (cls,),
        {"_keys_to_ignore_on_load_unexpected": ignored, "__module__": cls.__module__},
    )
    try:
        loaded = quiet.from_pretrained(path, config=config, **kwargs)
    except (ValueError, RuntimeError, NotImplementedError) as error:
        if isinstance(error, (GraphAttentionError, torch.OutOfMemoryError)):
            raise
        raise GraphAttentionError(f"{type(error).__name__}: {error}") from error
    model = loaded[0] if isinstance(loaded, tuple) else loaded
    model.__class__ = cls
    return model, loaded


def load_filter_tensors(
    model: nn.Module, tensors: dict[str, Tensor], path: str, entry: dict[str, Any]
) -> None:
    """Copy a checkpoint's filter tensors into a patched model's scalars.

    entry: the checkpoint's "graph_attn".

    Raises:
        GraphAttentionError: a tensor is missing, misshapen, left over, not of finite numbers, or
            not what was saved.
    """
    parameters = dict(filter_parameters(model))
    names = {saved: name for name in parameters for saved in _saved_names(name, model)}
    tensors = {names.get(key, key): tensor for key, tensor in tensors.items()}
    differing = differing_shapes(parameters, tensors)
    if differing:
        raise GraphAttentionError(
            f"the filters of {path!r} do not fit their config. Missing, left over or misshapen: "
            f"{differing}. The checkpoint is damaged or was edited: save the model again."
        )
    refuse_damaged(tensors, path)
    digest = checksum(read_config(model), (tensors[name] for name in parameters))
    if entry.get(CHECKSUM, digest) != digest:
        raise GraphAttentionError(
            f"the filters of {path!r} are not those that were saved: the checksum of their "
            f"settings and tensors is {digest!r}, and {entry[CHECKSUM]!r} was written beside them. "
            f"The folder is damaged or was edited: save the model again. (Who edited it on purpose "
            f"removes {CHECKSUM!r} from the entry 'graph_attn'.)"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(shared_as(parameter, tensors[name]))


def differing_shapes(some: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> str:
    """The first four names whose tensors differ in shape or are missing; "" if none do."""
    shapes = [{name: tensor.shape for name, tensor in each.items()} for each in (some, others)]
    names = sorted(some.keys() | others.keys())
    return ", ".join([n for n in names if shapes[0].get(n) != shapes[1].get(n)][:4])


def refuse_damaged(tensors: Mapping[str, Tensor], path: str) -> None:
    """Raise `GraphAttentionError` for a tensor that no filter can have saved."""
    for name, tensor in tensors.items():
        if not (tensor.is_floating_point() and tensor.float().isfinite().all()):
            raise GraphAttentionError(
                f"the filter tensor {name} of {path!r} is {tensor.dtype} and not finite "
                f"floating-point numbers. The file is damaged or was edited, or its training "
                f"diverged: save it again."
            )


def _saved_names(name: str, model: nn.Module) -> Iterator[str]:
    """The names that one of the model's tensors may have in a checkpoint.

    A model with a head puts a prefix before its base's names. And files keep the names of a model's
    first release (ViT's encoder.layer), whatever transformers calls the modules today.
    """
    if not isinstance(model, PreTrainedModel):
        yield name
        return
    prefix = f"{model.base_model_prefix}."
    for saved in (prefix + name, name.removeprefix(prefix), name):
        yield saved
        yield from revert_weight_conversion(model, {saved: torch.empty(0)})


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
