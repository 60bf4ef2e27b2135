"""Loading a patched model from a folder or the hub, and the outline of one without its weights.

Saving needs no function of ours: `model.save_pretrained` writes the filters with the weights, and
`config.json` has what was patched. Loading makes the plain model, patches it, and then copies the
filter tensors, strictly: none may be missing or left over, and every shape must be right.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from hf_graphattn.errors import GraphAttentionError, path_text, refusal
from hf_graphattn.interface.graph_attn import FILTER
from hf_graphattn.model.adapters import CONFIG_NAME
from hf_graphattn.model.configs import ENTRY, IMPLEMENTATION, read_entry
from hf_graphattn.model.filters import filter_parameters, read_config
from hf_graphattn.model.parallel import shared_as
from hf_graphattn.model.save import ASKS, CHECKSUM, checksum
from hf_graphattn.patching import CHECKED
from hf_graphattn.patching.patch import patch, warn_if_not_plain
from hf_graphattn.variants import VariantConfig

from .checkpoints import find_file, hub_arguments, read_filter_tensors, reading


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
    path = path_text("path_or_repo", path_or_repo)
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


def outline(
    path: str, *, revision: str = "main", trust_remote_code: bool = False
) -> tuple[PreTrainedModel, VariantConfig | None]:
    """(The plain model, on the meta device; the filters that a patched checkpoint has, or None.)

    Only config.json is read. A config that names no class of transformers gets `AutoModel`'s.

    Args:
        path: a folder, or the name of a hub repository.
        revision: of the repository, as in transformers' `from_pretrained`.
        trust_remote_code: whether the repository's own code may run.

    Raises:
        GraphAttentionError: there is no such folder, or the config makes no model.
    """
    _refuse_missing(path)
    with reading(path):
        config = AutoConfig.from_pretrained(
            path, revision=revision, trust_remote_code=trust_remote_code
        )
        entry = getattr(config, ENTRY, None)
        config._attn_implementation = None  # a patched model's names one that nothing has
        has_code = trust_remote_code and not entry
        auto_map = getattr(config, "auto_map", {}) if has_code else {}
        with torch.device("meta"):
            model = _from_repository_code(config, auto_map, revision)
            if model is None:
                cls = _named_class(config)
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


def _from_repository_code(
    config: Any, auto_map: dict[str, str], revision: str
) -> PreTrainedModel | None:
    """The model of the repository's own code, of the class that the config names; None without."""
    names = [name for name in auto_map if name.startswith("AutoModel")]
    if not names:
        return None
    named = config.architectures or ()
    best = max(names, key=lambda n: (auto_map[n].split(".")[-1] in named, n == "AutoModel"))
    cls = getattr(transformers, best)
    return cls.from_config(config, trust_remote_code=True, code_revision=revision)


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
    if getattr(config, "num_attention_heads", 1) == 0:
        raise refusal(f"'num_attention_heads' in the config of {path!r}", 0, "at least 1")
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
            f"call patch_model(model, config)."
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
