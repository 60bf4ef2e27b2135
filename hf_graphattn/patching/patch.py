"""Which models may be patched: `patch_model`, `check` and `unpatch_model`.

`patch_model` checks everything and builds every filter before it touches the model: after an
error the model is as it was. The model keeps its class, its modules and its parameters.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, TypeVar

from torch import nn
from transformers import PreTrainedModel

from hf_graphattn.architectures import ARCHITECTURES, MULTIHEAD, Plan, find
from hf_graphattn.backends import DELEGATE
from hf_graphattn.errors import GraphAttentionError, refusal
from hf_graphattn.model.configs import UNDO, is_marked
from hf_graphattn.model.filters import graph_filters, is_patched
from hf_graphattn.model.parallel import refuse_spread
from hf_graphattn.model.save import attach, detach, loads_alone
from hf_graphattn.variants import VariantConfig, variant_configs
from hf_graphattn.variants.base import is_sequence

from . import insert_filters, passed, remove_filters
from .check import FILTERED, Check, compare, made_batch

Model = TypeVar("Model", bound=nn.Module)

# A scalar so near to its value at plain attention hardly changes a model: the papers start at 0.01.
NEAR = 0.05

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
            "delegate" calls the architecture's eager function.
        check: a batch of the model's inputs, on which `check(model, **batch)` compares first; or
            True, on inputs made from its config, if an attention class is not verified. Without
            it such a model is refused.

    Returns:
        The model itself.

    Raises:
        GraphAttentionError: an argument is bad; or the model is patched already, has no
            attention that a filter can reach, is not verified and not checked, or fails the check;
            or is spread over processes otherwise than by tensor parallelism. The model is as it
            was.
    """
    patch(model, config, backend, check, None)
    warn_if_not_plain(model, config)
    return model


def warn_if_not_plain(model: nn.Module, config: VariantConfig) -> None:
    """Warn where the filters of `config` change a pretrained model far before any training."""
    is_pretrained = hasattr(model, "_weight_conversions")  # transformers' from_pretrained sets it
    plain = config.at_neutral()
    if not is_pretrained or (plain is None and config.scalars):  # where it is plain is not known
        return
    pairs = zip(_numbers(config), _numbers(plain or config), strict=True)
    if plain is not None and all(abs(value - neutral) <= NEAR for value, neutral in pairs):
        return
    names = ", ".join(f"{name}={getattr(plain, name)}" for name in config.scalars)
    remedy = (
        f"Start at {names}, with trainable={config.trainable or config.scalars}."
        if config.scalars
        else "No setting of it is plain attention: train the model's weights too."
    )
    logger.warning(
        f"{type(model).__name__} is pretrained, and {config} does not start as plain attention: "
        f"its outputs change at once. {remedy}"
    )


def _numbers(config: VariantConfig) -> list[float]:
    """The values of a config's scalars."""
    values = (getattr(config, name) for name in config.scalars)
    return [number for value in values for number in (value if is_sequence(value) else [value])]


def patch(
    model: Model,
    config: VariantConfig,
    backend: str,
    check: Mapping[str, Any] | bool,
    checked: Mapping[str, str] | None,
) -> Model:
    """`patch_model`; `checked` is the check that a checkpoint's model has passed, as saved."""
    _check_arguments(model, config)
    plan = find(model)
    _check_attention(plan, config, backend, check, checked)
    insert_filters(plan, config, backend)
    if isinstance(model, PreTrainedModel):
        attach(model)
    if plan.why_plain:
        logger.warning(
            f"{type(model).__name__}: {', '.join(plan.why_plain)} computes attention by itself and "
            f"has no filter. supported(model) lists all modules, and why."
        )
    return model


def check(
    model: PreTrainedModel,
    config: VariantConfig = FILTERED,
    *,
    backend: str = "auto",
    **batch: Any,
) -> Check:
    """Compare filters on a plain model with the architecture's eager attention.

    It costs a copy of the model in float64 (in float32, where it cannot run in float64), six
    forwards of the batch (eight with a config of your own) and, where the model generates, four
    times three tokens. A batch that does not reach every filter does not pass.

    Args:
        model: a plain model; it is not touched. torch's random numbers are set back to where they
            were, so no other thread should draw them meanwhile.
        config: as in `patch_model`.
        backend: as in `patch_model`.
        batch: the inputs of a forward of the model. Rows with padding check more.

    Returns:
        The comparisons; printed, a line for each.

    Raises:
        GraphAttentionError: as `patch_model`; or the plain model does not run on the batch.
    """
    _check_arguments(model, config)
    _refuse_without_attention(find(model))
    return compare(model, config, backend, batch)


def unpatch_model(model: Model) -> Model:
    """Take the filters out again: the original model, bit for bit.

    A model without filters whose config is that of a patched model (it was built from that config,
    or loaded by transformers itself) becomes plain too.

    Args:
        model: a patched model.

    Returns:
        The model itself.

    Raises:
        GraphAttentionError: the model is not patched, or is a part of one that is; or modules of
            it define filters, by `ga.attention`.
    """
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
    remove_filters(model)
    detach(model)
    if is_patched(model):
        raise GraphAttentionError(
            f"{', '.join(graph_filters(model))}: filters that patch_model did not put into "
            f"{type(model).__name__}, since they are part of its modules. They stay."
        )
    return model


def _check_arguments(model: nn.Module, config: object) -> None:
    if type(config) not in variant_configs().values():
        allowed = ", ".join(f"{cls.__name__}(...)" for cls in variant_configs().values())
        raise refusal("config", config, allowed, "A class of your own needs @register(name).")
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
            f"{cls.__name__} has parameters on the meta device, without values. Load the "
            f"weights first, then patch."
        )
    refuse_spread(model)


def _check_attention(
    plan: Plan,
    config: VariantConfig,
    backend: str,
    check: Mapping[str, Any] | bool,
    checked: Mapping[str, str] | None,
) -> None:
    """Refuse a model whose attention is out of reach, or is not verified and fails the check."""
    model = plan.model
    name = type(model).__name__
    if not isinstance(check, (Mapping, bool)):
        raise refusal("check", check, "a batch of the model's inputs (a dict), True or False")
    _refuse_without_attention(plan)
    if not isinstance(model, PreTrainedModel) and any(
        layer.through_interface for layer in plan.self_attention
    ):
        raise refusal(
            "model",
            name,
            "a transformers model that has it as a part: its config chooses the attention function",
            "Patch the whole model; layers=(...) chooses which of its layers are filtered.",
        )
    classes = plan.needs_check
    if not isinstance(check, Mapping) and (not classes or checked == passed(backend)):
        return
    if check is False:
        before = f" It was checked with {checked}, not {passed(backend)}." if checked else ""
        raise GraphAttentionError(
            f"{name} is not verified: {', '.join(classes)} is in no row of the table "
            f"({_in_table()}), or not listed for a model of its type and this version of "
            f"transformers.{before} Pass a batch of its inputs, check=batch, or check=True for "
            f"inputs made from its config: what a filter computes is compared first with the "
            f"architecture's eager attention, on a copy of the model in float64."
        )
    batch = made_batch(model) if check is True else check
    comparison = compare(model, config, backend, batch)
    if not comparison.passed:
        raise GraphAttentionError(
            f"{name} cannot be patched: the check found that a filter does not compute what it "
            f"should. {comparison}\n"
            f"backend={DELEGATE!r} calls the architecture's eager attention: try it."
        )
    for row in comparison.rows:
        if row.error is None and row.note:
            logger.warning(f"{name}, generation with a cache: {row.note}")


def _refuse_without_attention(plan: Plan) -> None:
    if not plan.self_attention:
        why = "; ".join(f"{name}: {cause}" for name, cause in plan.why_plain.items())
        raise GraphAttentionError(
            f"{type(plan.model).__name__} cannot be patched: {why or 'it has no attention'}. A "
            f"filter can be put where attention goes through transformers' AttentionInterface, "
            f"into classes that register_architecture knows, and into torch's "
            f"nn.MultiheadAttention of plain torch models; verified architectures: {_in_table()}."
        )


def _in_table() -> str:
    return ", ".join(row.name for row in ARCHITECTURES)
