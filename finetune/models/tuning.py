"""What of the model is trained: all of it, LoRA beside it, or the filters' scalars alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accelerate.logging import get_logger
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

import hf_graphattn as ga
from finetune.settings.groups import LORA, TuningArguments
from hf_graphattn.adapters import is_adapted
from hf_graphattn.training import task_head

logger = get_logger(__name__)

LOADING = """
## Graph filters

The base model's attention was a graph filter in training, and the adapter holds its scalars. PEFT
alone would drop them: load it with `hf_graphattn.load_peft(plain_base, "this repository")`, which
patches the base first.
"""


def tuned(model: PreTrainedModel, arguments: TuningArguments) -> Any:
    """The model with what is not to be trained frozen; with LoRA, a `PeftModel`.

    Raises ``ValueError`` for ``peft filters`` on a model whose filters learn nothing.
    """
    if arguments.peft == "filters":
        model = ga.freeze_base(model)
    elif arguments.peft == "lora":
        model = _with_lora(model, arguments)
    if arguments.peft != "none":
        counts = [p.numel() for p in model.parameters() if p.requires_grad]
        total = sum(p.numel() for p in model.parameters())
        logger.info(f"{arguments.peft}: {sum(counts)} of {total} parameters are trained")
    return model


def _with_lora(model: PreTrainedModel, arguments: TuningArguments) -> Any:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ImportError("--peft lora needs PEFT: pip install peft") from error
    chosen = {name: getattr(arguments, name) for name in LORA}
    chosen = {name: LORA[name] if value is None else value for name, value in chosen.items()}
    heads = list(task_head(model))
    filters = ga.peft_modules() if any(True for _ in ga.filter_parameters(model)) else []
    settings = LoraConfig(
        r=chosen["lora_r"],
        lora_alpha=chosen["lora_alpha"],
        lora_dropout=chosen["lora_dropout"],
        target_modules=arguments.lora_target_modules or list(_linear_layers(model, heads)),
        modules_to_save=[*filters, *heads],
    )
    return get_peft_model(model, settings)


def _linear_layers(model: PreTrainedModel, heads: list[str]) -> Iterator[str]:
    output = model.get_output_embeddings()
    for name, module in model.named_modules():
        is_linear = isinstance(module, nn.Linear | Conv1D) and module is not output
        if is_linear and name.split(".")[0] not in heads:
            yield name


def save(model: Any, folder: Path, weights: dict[str, Any]) -> None:
    """As `save_pretrained`; beside an adapter, its base's filters, and how both are loaded."""
    model.save_pretrained(folder, state_dict=weights)
    if is_adapted(model) and ga.is_patched(model):
        ga.save_filters(model, folder)
        with (folder / "README.md").open("a", encoding="utf-8") as card:  # PEFT's own card
            card.write(LOADING)
