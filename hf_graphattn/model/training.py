"""Training a patched model: its groups of parameters, and which of them are frozen."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from hf_graphattn.architectures import find
from hf_graphattn.errors import GraphAttentionError, refusal
from hf_graphattn.variants.base import finite_number

from .filters import base_model, filter_parameters, refuse_adapted, refuse_no_model, refuse_plain


def optimizer_groups(
    model: nn.Module,
    learning_rate: float,
    *,
    weight_decay: float = 0.0,
    filter_learning_rate: float | None = None,
) -> list[dict[str, Any]]:
    """Parameter groups for a torch optimizer: `AdamW(ga.optimizer_groups(model, 2e-5))`.

    The parameters that require gradients are in three groups: matrices, with `weight_decay`; biases
    and norms, without; and the filters' scalars, without, at `filter_learning_rate` (default:
    `learning_rate`). A group without parameters is left out.

    Raises:
        GraphAttentionError: `filter_learning_rate` is given, but no filter scalar is trained; or a
            rate is not a finite number of at least 0.
    """
    refuse_no_model(model)
    rate = learning_rate if filter_learning_rate is None else filter_learning_rate
    check_rates(learning_rate=learning_rate, weight_decay=weight_decay, filter_learning_rate=rate)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    scalars = {id(parameter) for _, parameter in filter_parameters(model)}
    of_filters = [parameter for parameter in trained if id(parameter) in scalars]
    others = [parameter for parameter in trained if id(parameter) not in scalars]
    if filter_learning_rate is not None and not of_filters:
        allowed = "None for a model that trains no filter scalar"
        remedy = "Leave it out, or name scalars in the config's trainable."
        raise refusal("filter_learning_rate", filter_learning_rate, allowed, remedy)
    groups = (
        ([p for p in others if p.ndim > 1], learning_rate, weight_decay),
        ([p for p in others if p.ndim <= 1], learning_rate, 0.0),
        (of_filters, rate, 0.0),
    )
    return [
        {"params": parameters, "lr": lr, "weight_decay": decay}
        for parameters, lr, decay in groups
        if parameters
    ]


def check_rates(**rates: Any) -> None:
    """Raise `GraphAttentionError` for a rate that is not a finite number of at least 0."""
    for name, value in rates.items():
        if finite_number(name, value) < 0:
            raise refusal(name, value, "a finite number of at least 0")


def freeze_base(model: PreTrainedModel) -> PreTrainedModel:
    """Leave only the filters' learned scalars and the task's head trainable; returns the model.

    The head is what a model has around its base model: a classifier and its pooler, or BERT's
    `cls`. A language model's output embeddings are pretrained, so they are frozen with the base. Of
    a plain torch model the scalars alone stay trainable, since its head is not known.
    `model.requires_grad_(True)` undoes it.

    Raises:
        GraphAttentionError: the model is not patched, or its filters learn no scalar.
    """
    refuse_adapted(
        model, "PEFT freezes the base itself: give its config modules_to_save=peft_modules()."
    )
    refuse_plain(model)
    scalars = [parameter for _, parameter in filter_parameters(model)]
    if not scalars:
        raise GraphAttentionError(
            f"the filters of {type(model).__name__} learn no scalar, so only its head would be "
            f"trained. Name scalars in the config's trainable."
        )
    base = base_model(model)
    head = list(_head(base)) if isinstance(base, PreTrainedModel) else []
    model.requires_grad_(False)
    for parameter in (*scalars, *head):
        parameter.requires_grad_(True)
    return model


def task_head(model: PreTrainedModel) -> dict[str, nn.Module]:
    """The modules that a model has around its base for a task, by name. A base model has none.

    A language model's head does not count, since its output embeddings are pretrained.
    """
    base, output = model.base_model, model.get_output_embeddings()
    if base is model and "For" not in type(model).__name__:
        return {}
    attention = {layer.module for layer in find(model).attention}
    known = [base, output]
    with contextlib.suppress(NotImplementedError):  # of a model that reads samples
        known.append(model.get_input_embeddings())
    return {
        name: child
        for name, child in model.named_children()
        if not any(child is module for module in known)
        and attention.isdisjoint(child.modules())
        and any(True for _ in child.parameters())
    }


def _head(model: PreTrainedModel) -> Iterator[nn.Parameter]:
    for module in task_head(model).values():
        yield from module.parameters()
    # BERT's pooler is as new as the classifier, so it counts as part of the head.
    pooler = getattr(model.base_model, "pooler", None)
    if model.base_model is not model and isinstance(pooler, nn.Module):
        yield from pooler.parameters()
