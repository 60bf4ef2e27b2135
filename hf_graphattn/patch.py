"""Putting filters into a model, and taking them out again.

`patch_model` checks everything and builds every filter before it touches the model: after an
error the model is as it was. The model keeps its class, its modules and its parameters. Each
self-attention module gains a submodule `graph_filter` and a forward pre-hook. The modules get
copies of their configs, which say the name of the attention function and what was patched, in one
JSON object, `config.graph_attn`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any, TypeVar

from torch import nn
from transformers import PreTrainedModel

from .architectures.find import MULTIHEAD, own_attention, self_attention_modules, verified
from .architectures.own_attention import reason
from .architectures.verified import unverified
from .backends import DELEGATE
from .errors import GraphAttentionError, refusal
from .model.configs import is_marked
from .model.filters import graph_filters, is_patched, refuse_no_model
from .model.parallel import refuse_spread
from .patching.check import FILTERED, Check, compare, made_batch
from .patching.place import UNDO, passed, place, take_out
from .running import refuse_running
from .sharing.save import loads_alone
from .variants import VariantConfig, variant_configs

# Patching and unpatching are one at a time: of two threads that patch a model, one is refused.
_LOCK = threading.RLock()

Model = TypeVar("Model", bound=nn.Module)

logger = logging.getLogger("hf_graphattn")


def patch_model(
    model: Model,
    config: VariantConfig,
    *,
    backend: str = "auto",
    check: Mapping[str, Any] | bool = False,
) -> Model:
    """Turn the self-attention of `model` into the graph filter of `config`, in place.

    Args:
        model: a transformers model, with or without a head, whose attention goes through
            transformers' `AttentionInterface`, or is of a class that `register_architecture` knows;
            or a plain torch model with `nn.MultiheadAttention`, or such a class. A transformers
            model must be the outermost, since a part's filters are not saved with the whole.
        config: `GFSAConfig(...)`, `PLaTConfig(...)`, `LaplacianConfig(...)` ...
        backend: how the attention is computed. "auto" chooses at each call; "eager" keeps A;
            "sdpa" makes fused passes, as do "flash_attention_2" (the flash_attn package) and
            "flex_attention" where they can run; p-LaT has "blockwise" (any device) and "triton"
            (CUDA), GFSA and polynomials "shared" (any device, A made once for all passes);
            "delegate" calls the architecture's own attention.
        check: a batch of the model's inputs, on which `check(model, **batch)` compares first; or
            True, on inputs made from its config, if an attention class is not verified. Without
            it such a model is refused.

    Returns:
        The model itself.

    Raises:
        GraphAttentionError: an argument is bad; or the model is patched already, has no
            attention that a filter can reach, is not verified and not checked, or fails the check;
            is running, or is spread over processes otherwise than by tensor parallelism. The model
            is as it was.
    """
    return patch(model, config, backend, check, None)


def patch(
    model: Model,
    config: VariantConfig,
    backend: str,
    check: Mapping[str, Any] | bool,
    checked: Mapping[str, str] | None,
) -> Model:
    """`patch_model`; `checked` is what a checkpoint says of the check that its model has passed."""
    with _LOCK:
        _check_arguments(model, config)
        refuse_running(model, "patching")
        _check_attention(model, config, backend, check, checked)
        place(model, config, backend)
        _tell_what_stays_plain(model)
        try:
            refuse_running(model, "patching")  # a forward may have begun meanwhile
        except GraphAttentionError:
            take_out(model)
            raise
    return model


def check(
    model: PreTrainedModel,
    config: VariantConfig = FILTERED,
    *,
    backend: str = "auto",
    **batch: Any,
) -> Check:
    """Compare filters on a plain model with the architecture's own attention; print what it found.

    It costs a copy of the model in float64 (in float32, where it cannot run in float64), six
    forwards of the batch (eight with a config of your own) and, where the model generates, four
    times three tokens. A batch that does not reach every filter does not pass.

    Args:
        model: a plain model; it is not touched. torch's random numbers are set back to where they
            were, so no other thread should draw them meanwhile.
        config, backend: as in `patch_model`.
        batch: what a forward of the model is called with. Rows with padding make it say more.

    Raises:
        GraphAttentionError: as `patch_model`; or the plain model does not run on the batch.
    """
    _check_arguments(model, config)
    _refuse_without_attention(model)
    return compare(model, config, backend, batch)


def unpatch_model(model: Model) -> Model:
    """Take the filters out again: the original model, bit for bit. Returns the model.

    A model without filters whose config is that of a patched model (it was built from that config,
    or loaded by transformers itself) becomes plain too.

    Raises:
        GraphAttentionError: the model is not patched, is a part of one that is, or is running; or
            it has filters of its own.
    """
    refuse_no_model(model)
    with _LOCK:
        if not is_patched(model) and not is_marked(model):
            raise GraphAttentionError(
                f"{type(model).__name__} is not patched, so there is nothing to take out. "
                f"is_patched(model) tells whether a model is."
            )
        within = any(UNDO in module.__dict__ for module in model.modules())
        if is_patched(model) and is_marked(model) and not within:
            raise GraphAttentionError(
                f"{type(model).__name__} is a part of a model that was patched as a whole, and "
                f"whose config would go on saying so. Call unpatch_model on the whole model."
            )
        refuse_running(model, "unpatching")
        take_out(model)
        if is_patched(model):
            raise GraphAttentionError(
                f"{', '.join(graph_filters(model))}: filters that patch_model did not put into "
                f"{type(model).__name__}, since they are part of its modules. They stay."
            )
    return model


def _check_arguments(model: object, config: object) -> None:
    if type(config) not in variant_configs().values():
        allowed = ", ".join(f"{cls.__name__}(...)" for cls in variant_configs().values())
        raise refusal("config", config, allowed, "A class of your own needs @register(name).")
    if not isinstance(model, nn.Module):
        remedy = "Load it with from_pretrained first."
        raise refusal("model", type(model).__name__, "a transformers model", remedy)
    cls = type(model)
    if is_patched(model):
        raise GraphAttentionError(
            f"{cls.__name__} is patched already. Call unpatch_model(model) first."
        )
    if not isinstance(model, PreTrainedModel):
        if any(isinstance(module, PreTrainedModel) for module in model.modules()):
            remedy = "Patch the transformers model before it is wrapped."
            raise refusal("model", cls.__name__, "the transformers model in it", remedy)
        if isinstance(model, MULTIHEAD):
            remedy = "Use hf_graphattn.MultiheadAttention(..., graph_attn=config) in its place."
            raise refusal("model", cls.__name__, "a model that has it as a part", remedy)
    if not loads_alone(model):
        raise refusal(
            "model",
            cls.__name__,
            "a model that can be saved and loaded by itself",
            "Its config would not be saved with the whole model's: patch the whole model, and "
            "choose with layers=(...) which layers are filtered.",
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        raise GraphAttentionError(
            f"{type(model).__name__} has parameters on the meta device, without values. Load the "
            f"weights first, then patch."
        )
    refuse_spread(model)


def _check_attention(
    model: nn.Module,
    config: VariantConfig,
    backend: str,
    check: Mapping[str, Any] | bool,
    checked: Mapping[str, str] | None,
) -> None:
    """Refuse a model whose attention is out of reach, or is not verified and fails the check."""
    if not isinstance(check, (Mapping, bool)):
        raise refusal("check", check, "a batch of the model's inputs (a dict), True or False")
    _refuse_without_attention(model)
    reached = self_attention_modules(model)
    if not isinstance(model, PreTrainedModel) and any(each.through_interface for each in reached):
        raise refusal(
            "model",
            type(model).__name__,
            "a transformers model that has it as a part: its config chooses the attention function",
            "Patch the whole model; layers=(...) chooses which of its layers are filtered.",
        )
    classes = unverified(model)
    if isinstance(check, Mapping):
        batch = check
    elif not classes or checked == passed(backend):
        return
    elif check:
        batch = made_batch(model)
    else:
        before = f" It was checked with {dict(checked)}, not {passed(backend)}." if checked else ""
        raise GraphAttentionError(
            f"{type(model).__name__} is not verified: {', '.join(classes)} is in no row of the "
            f"table ({verified()}), or not listed for a model of its type and this version of "
            f"transformers.{before} Pass a batch of its inputs, check=batch, or check=True for "
            f"inputs made from its config: what a filter computes is compared first with the "
            f"architecture's own attention, on a copy of the model in float64."
        )
    found = compare(model, config, backend, batch)
    if not found.passed:
        raise GraphAttentionError(
            f"{type(model).__name__} cannot be patched: the check found that a filter does not "
            f"compute what it should. {found}\n"
            f"backend={DELEGATE!r} calls the architecture's own attention: try it."
        )
    for row in found.rows:
        if row.error is None and row.says:
            logger.warning(f"{type(model).__name__}, generation with a cache: {row.says}")


def _refuse_without_attention(model: nn.Module) -> None:
    if not self_attention_modules(model):
        raise GraphAttentionError(
            f"{type(model).__name__} cannot be patched: {_why(model)}. A filter can be put where "
            f"attention goes through transformers' AttentionInterface, into classes that "
            f"register_architecture knows, and into torch's nn.MultiheadAttention of plain torch "
            f"models; verified architectures: {verified()}."
        )


def _tell_what_stays_plain(model: nn.Module) -> None:
    own = sorted({type(module).__name__ for _, module in own_attention(model)})
    if own:
        logger.warning(
            f"{type(model).__name__}: {', '.join(own)} computes attention by itself and has no "
            f"filter. supported(model) lists all modules, and why."
        )


def _why(model: nn.Module) -> str:
    own = sorted({type(module).__name__ for _, module in own_attention(model)})
    return "; ".join(f"{name}: {reason(name)}" for name in own) or "it has no attention"
