"""What of the model is trained: all of it, LoRA beside it, or the filters' scalars alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

import hf_graphattn as ga
from finetune.errors import refusal
from finetune.settings.groups import DEFAULT_FILTER_RATE, LORA, TuningArguments
from finetune.settings.schema import Run
from hf_graphattn.model.filters import is_adapted
from hf_graphattn.model.training import task_head

LOADING = """
## Graph filters

The base model's attention was a graph filter in training, and the adapter holds its scalars. PEFT
alone would drop them: load it with `hf_graphattn.load_peft(plain_base, "this repository")`, which
patches the base first.
"""


def tuned(model: PreTrainedModel, arguments: TuningArguments) -> Any:
    """The model with what is not to be trained frozen; with LoRA, a `PeftModel`.

    Raises:
        ValueError: ``peft filters`` with a model whose filters learn nothing.
    """
    if arguments.peft == "filters":
        model = _with_filters_alone(model)
    elif arguments.peft == "lora":
        model = _with_lora(model, arguments)
    return model


def counted(model: nn.Module) -> tuple[int, int]:
    """How many parameters are trained, and how many there are."""
    counts = [(p.numel(), p.requires_grad) for p in model.parameters()]
    return sum(n for n, is_trained in counts if is_trained), sum(n for n, _ in counts)


def optimizer(model: nn.Module, settings: Run[Any, Any]) -> torch.optim.Optimizer:
    """AdamW, with the filters' scalars at a rate of their own where any are trained."""
    train, rate = settings.train, settings.filter.filter_learning_rate
    if rate is None and any(True for _ in ga.filter_parameters(model)):
        rate = DEFAULT_FILTER_RATE
    groups = ga.optimizer_groups(
        model, train.learning_rate, weight_decay=train.weight_decay, filter_learning_rate=rate
    )
    betas = (train.adam_beta1, train.adam_beta2)
    # The groups have rates of their own; min_lr of a schedule is compared to this one.
    return torch.optim.AdamW(groups, train.learning_rate, betas, train.adam_epsilon, fused=True)


def _with_filters_alone(model: PreTrainedModel) -> PreTrainedModel:
    if not any(True for _ in ga.filter_parameters(model)):
        allowed = "with a graph filter that learns scalars"
        remedy = "Name one with --variant, and the scalars that it learns with --trainable."
        raise refusal("peft", "filters", allowed, remedy)
    return ga.freeze_base(model)


def _with_lora(model: PreTrainedModel, arguments: TuningArguments) -> Any:
    from peft import LoraConfig, get_peft_model

    chosen = {name: getattr(arguments, name) for name in LORA}
    chosen = {name: LORA[name] if value is None else value for name, value in chosen.items()}
    heads = list(task_head(model))
    filters = ga.peft_modules() if any(True for _ in ga.filter_parameters(model)) else []
    settings = LoraConfig(
        r=chosen["lora_r"],
        lora_alpha=chosen["lora_alpha"],
        lora_dropout=chosen["lora_dropout"],
        target_modules=arguments.lora_target_modules or "all-linear",
        exclude_modules=rf"({'|'.join(heads)})(\..*)?" if heads else None,
        modules_to_save=[*filters, *heads],
    )
    return get_peft_model(model, settings)


def save(model: Any, folder: Path, weights: dict[str, Any]) -> None:
    """As `save_pretrained`; beside an adapter, its base's filters, and how both are loaded."""
    # PEFT takes a head that is called lm_head for an embedding, and speech models have none.
    options = {"save_embedding_layers": False} if is_adapted(model) else {}
    model.save_pretrained(folder, state_dict=weights, **options)
    if is_adapted(model) and ga.is_patched(model):
        ga.save_filters(model, folder)
        with (folder / "README.md").open("a", encoding="utf-8") as card:  # PEFT's own card
            card.write(LOADING)
