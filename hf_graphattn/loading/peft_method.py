"""Graph filters as a method of PEFT, beside LoRA and the others.

    model = get_peft_model(model, ga.GraphFilterConfig(graph_attn=ga.GFSAConfig(order=4)))

PEFT patches the model, trains the filters' scalars alone and saves them with their settings, in
some kilobytes. `PeftModel.from_pretrained`, PEFT's Auto classes and transformers' `load_adapter`
put the filters into a plain base. PEFT looks a method up by its name in three dicts. This module,
which `import hf_graphattn` imports as soon as PEFT is there, adds ours.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

import torch
from peft import PeftConfig
from peft.mapping import (
    PEFT_TYPE_TO_CONFIG_MAPPING,
    PEFT_TYPE_TO_PREFIX_MAPPING,
    PEFT_TYPE_TO_TUNER_MAPPING,
)
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from torch import Tensor, nn

from hf_graphattn.errors import GraphAttentionError, refusal
from hf_graphattn.interface.graph_attn import FILTER
from hf_graphattn.model.configs import make_entry, read_entry
from hf_graphattn.model.filters import is_patched, read_config
from hf_graphattn.model.parallel import shared_as
from hf_graphattn.patching.patch import patch, unpatch_model, warn_if_not_plain
from hf_graphattn.variants import VariantConfig

from .filter_files import shape_of

COPIES = "graph_filters"  # the attribute that holds a filter for each adapter


class Method(StrEnum):
    """Our row beside `peft.PeftType`. A PEFT that lacks it raises a KeyError with this name."""

    HF_GRAPHATTN = "HF_GRAPHATTN"


@dataclass
class GraphFilterConfig(PeftConfig):
    """The config of an adapter of graph filters, for `peft.get_peft_model`.

    Args:
        graph_attn: `GFSAConfig(...)`, `PLaTConfig(...)` ... In the config it is an object of JSON.
        modules_to_save: other modules to train and save, as in every PEFT config: a new head.
        base_shape: the model type, the width and the heads of the base; PEFT fills it in.

    Raises:
        GraphAttentionError: `graph_attn` is not the config of a variant.
    """

    graph_attn: Any = field(default=None, metadata={"help": "the config of the filters"})
    modules_to_save: list[str] | None = field(
        default=None, metadata={"help": "other modules to train and to save"}
    )
    base_shape: dict[str, Any] | None = field(
        default=None, metadata={"help": "what a base must have to load the adapter"}
    )
    target_modules: ClassVar[tuple[str, ...]] = (FILTER,)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peft_type = Method.HF_GRAPHATTN
        if isinstance(self.graph_attn, VariantConfig):
            self.graph_attn = make_entry(self.graph_attn)
        elif not isinstance(self.graph_attn, dict):
            raise refusal("graph_attn", self.graph_attn, "a variant's config: GFSAConfig(...) ...")
        self.variant()

    def variant(self) -> VariantConfig:
        """The variant's config."""
        return read_entry(self.graph_attn, "adapter_config.json")


class GraphFilterLayer(nn.Module, BaseTunerLayer):
    """A filter of the base, and beside it one for each adapter, of which the active one computes.

    The base's filter computes while adapters are disabled. If PEFT patched the model, its scalars
    are those of plain attention.
    """

    adapter_layer_names = (COPIES,)

    def __init__(self, base_layer: Any, was_plain: bool) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.was_plain = was_plain
        self.graph_filters = nn.ModuleDict()
        if was_plain:
            neutral = base_layer.variant_config.at_neutral()
            self.has_plain = neutral is not None
            _set_scalars(base_layer, neutral or base_layer.variant_config)

    @property
    def original_module(self) -> nn.Module:
        """What `model.filters` reads of PEFT's own wrappers."""
        return self.base_layer

    @property
    def modules_to_save(self) -> nn.ModuleDict:
        """The same: the adapters' filters."""
        return self.graph_filters

    def update_layer(self, name: str, config: GraphFilterConfig) -> None:
        """Add an adapter's filter, which starts as the base's filter did."""
        added = copy.deepcopy(self.base_layer).requires_grad_(True)
        if self.was_plain:
            _set_scalars(added, added.variant_config)
        self.graph_filters[name] = added
        self.set_adapter(self.active_adapters, inference_mode=config.inference_mode)

    def set_adapter(self, adapter_names: str | list[str], inference_mode: bool = False) -> None:
        """PEFT's own, of one adapter.

        Raises:
            GraphAttentionError: there are several, whose filters cannot be added.
        """
        if not isinstance(adapter_names, str) and len(adapter_names) > 1:
            raise refusal("the active adapters", adapter_names, "one adapter of graph filters")
        super().set_adapter(adapter_names, inference_mode)

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Make the adapter's filter that of the base."""
        if adapter_names:
            self.set_adapter(adapter_names)
        self.base_layer = self._active()

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        active: Any = self._active()
        if active is self.base_layer and self.was_plain and not self.has_plain:
            raise GraphAttentionError(
                f"variant {active.variant_config.variant!r} has no known setting at which it is "
                f"plain attention, so the base cannot be computed while the adapter is disabled or "
                f"deleted. Call unload(), which returns the plain base."
            )
        return active(*args, **kwargs)

    def _active(self) -> nn.Module:
        name = next(iter(self.active_adapters), "")
        if self.disable_adapters or name not in self.graph_filters:
            return self.base_layer
        return self.graph_filters[name]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:  # backend, operands ...: what attention reads of a filter
            return getattr(self._active(), name)


class GraphFilterModel(BaseTuner):
    """What PEFT puts adapters of `GraphFilterConfig` into a model with."""

    prefix = COPIES
    tuner_layer_cls = GraphFilterLayer
    target_module_mapping: dict[str, list[str]] = {}  # noqa: RUF012 - declared so by PEFT
    _patched = False  # whether PEFT patched the model, so that its base is plain

    def _prepare_adapter_config(self, peft_config: Any, model_config: Any) -> Any:
        return peft_config  # its target modules are known

    def _prepare_model(self, peft_config: Any, model: Any) -> None:
        config, shape = peft_config.variant(), shape_of(model)
        is_new, saved = peft_config.base_shape is None, peft_config.base_shape or shape
        if saved != shape:
            others = [name for name in shape if saved.get(name) != shape[name]]
            differing = [f"{name} {saved.get(name)}, here {shape[name]}" for name in others]
            raise GraphAttentionError(
                f"the adapter does not fit {type(model).__name__}: it was trained on a model with "
                f"{'; '.join(differing)}. Load it onto that base model."
            )
        if not is_patched(model):
            patch(model, config, "auto", False, None)
            self._patched = True
            if is_new:
                warn_if_not_plain(model, config)
        elif read_config(model) != config:
            raise GraphAttentionError(
                f"the adapter's filters are {config}, and {type(model).__name__} is patched with "
                f"{read_config(model)}: all adapters of a model have filters of the same settings. "
                f"Load it onto a plain base of its own."
            )
        peft_config.base_shape = shape

    def _create_and_replace(
        self,
        peft_config: Any,
        adapter_name: str,
        target: Any,
        target_name: str,
        parent: Any,
        current_key: str,
        parameter_name: str | None = None,
    ) -> None:
        if not isinstance(target, GraphFilterLayer):
            target = GraphFilterLayer(target, self._patched)
            target.set_adapter(adapter_name)
            setattr(parent, target_name, target)
        target.update_layer(adapter_name, peft_config)

    def _replace_module(self, parent: Any, child_name: str, new_module: Any, child: Any) -> None:
        if isinstance(child, GraphFilterLayer):
            setattr(parent, child_name, new_module)
        else:
            super()._replace_module(parent, child_name, new_module, child)

    def unload(self) -> nn.Module:
        """The base as it was: plain again, if PEFT patched it."""
        was_plain = any(getattr(module, "was_plain", False) for module in self.model.modules())
        model = super().unload()
        return unpatch_model(model) if was_plain else model


def _set_scalars(graph_filter: Any, config: VariantConfig) -> None:
    """Give a filter the scalars of a config."""
    for name in config.scalars:
        value, now = getattr(config, name), getattr(graph_filter, name)
        if isinstance(now, Tensor):
            with torch.no_grad():
                now.copy_(shared_as(now, graph_filter._per_head(name, value)))
        else:
            setattr(graph_filter, name, value)


names: Any = Method.HF_GRAPHATTN
PEFT_TYPE_TO_CONFIG_MAPPING[names] = GraphFilterConfig
PEFT_TYPE_TO_TUNER_MAPPING[names] = GraphFilterModel
PEFT_TYPE_TO_PREFIX_MAPPING[names] = COPIES
