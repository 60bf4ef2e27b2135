"""What training wants to know of a patched model: which parameters, at which rate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from .errors import GraphAttentionError, refusal
from .patching import filter_parameters, is_patched


def optimizer_groups(
    model: nn.Module,
    learning_rate: float,
    *,
    weight_decay: float = 0.0,
    filter_learning_rate: float | None = None,
) -> list[dict[str, Any]]:
    """Parameter groups for a torch optimizer: `AdamW(ga.optimizer_groups(model, 2e-5))`.

    Three groups of the parameters that require gradients, those that are empty left out: matrices
    with `weight_decay`; biases and norms without; the filters' scalars without, at
    `filter_learning_rate` (default: `learning_rate`).

    Raises:
        GraphAttentionError: `filter_learning_rate` is given and no filter scalar is trained.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    scalars = {id(parameter) for _, parameter in filter_parameters(model)}
    of_filters = [parameter for parameter in trained if id(parameter) in scalars]
    others = [parameter for parameter in trained if id(parameter) not in scalars]
    if filter_learning_rate is not None and not of_filters:
        raise refusal(
            "filter_learning_rate",
            filter_learning_rate,
            "None for a model that trains no filter scalar",
            "Drop it, or name scalars in the config's trainable.",
        )
    rate = learning_rate if filter_learning_rate is None else filter_learning_rate
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


def freeze_base(model: PreTrainedModel) -> PreTrainedModel:
    """Leave only the filters' learned scalars and the task's head trainable; returns the model.

    The head is what a model has around its base model: a classifier and its pooler, BERT's
    `cls`. Output embeddings are pretrained (a language model's head), so they are frozen with the
    base. Undone by `model.requires_grad_(True)`.

    Raises:
        GraphAttentionError: the model is not patched, or its filters learn no scalar.
    """
    if not is_patched(model):
        raise GraphAttentionError(
            f"{type(model).__name__} is not patched, so nothing of it would be trained but its "
            f"head. Call patch_model(model, config) first."
        )
    scalars = [parameter for _, parameter in filter_parameters(model)]
    if not scalars:
        raise GraphAttentionError(
            f"the filters of {type(model).__name__} learn no scalar: nothing would be trained but "
            f"its head. Name scalars in the config's trainable."
        )
    head = list(_head(model))
    model.requires_grad_(False)
    for parameter in (*scalars, *head):
        parameter.requires_grad_(True)
    return model


def _head(model: PreTrainedModel) -> Iterator[nn.Parameter]:
    base = model.base_model
    pretrained = {id(parameter) for parameter in base.parameters()}
    output = model.get_output_embeddings()
    if output is not None:
        pretrained |= {id(parameter) for parameter in output.parameters()}
    yield from (parameter for parameter in model.parameters() if id(parameter) not in pretrained)
    # BERT's pooler is new in a fresh head's checkpoint, and belongs to the head in all but name.
    pooler = getattr(base, "pooler", None)
    if base is not model and isinstance(pooler, nn.Module):
        yield from pooler.parameters()
