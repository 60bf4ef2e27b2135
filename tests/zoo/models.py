"""The class of a model type, and a model of it."""

from __future__ import annotations

import importlib
import inspect
import itertools
import pkgutil
import re

import torch
import transformers
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from zoo.batches import inputs
from zoo.sizes import SPECIAL, tiny

MOST = 8_000_000  # parameters; almost all have fewer than half a million
_FIRST = (
    "SEQ_TO_SEQ_CAUSAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "IMAGE_TEXT_TO_TEXT",
    "MULTIMODAL_LM",
    "MASKED_LM",
    "CAUSAL_LM",
    "SEQUENCE_CLASSIFICATION",
    "IMAGE_CLASSIFICATION",
    "CTC",
    "OBJECT_DETECTION",
)
_LAST = ("MODEL_MAPPING_NAMES", "MODEL_FOR_PRETRAINING_MAPPING_NAMES")
_NEVER = ("MODEL_FOR_IMAGE_MAPPING_NAMES", "MODEL_FOR_BACKBONE_MAPPING_NAMES")


class NotBuilt(Exception):
    """Why there is no tiny model of a type."""


def _mappings() -> list[dict[str, str | tuple[str, ...]]]:
    """Of the Auto classes, the heads that write or classify first."""
    names = [
        name
        for name in vars(modeling_auto)
        if name.startswith("MODEL_") and name.endswith("MAPPING_NAMES")
    ]
    first = [f"MODEL_FOR_{head}_MAPPING_NAMES" for head in _FIRST]
    rest = [name for name in names if name not in (*first, *_LAST, *_NEVER)]
    return [getattr(modeling_auto, name) for name in (*first, *rest, *_LAST, *_NEVER)]


def model_class(model_type: str) -> type[PreTrainedModel]:
    """The class of the first Auto mapping that has the type and takes its config (a head may take
    that of a part), else a class of the type's own files, else the first mapping's class."""
    config_class = CONFIG_MAPPING[model_type]
    names = [mapping[model_type] for mapping in _mappings() if model_type in mapping]
    names = [name if isinstance(name, str) else name[0] for name in names]
    mapped = [getattr(transformers, name) for name in names if hasattr(transformers, name)]
    exact = [each for each in mapped if issubclass(config_class, each.config_class or config_class)]
    classes = exact[:1] or _own(config_class)[-1:] or mapped[:1]
    if not classes:
        raise NotBuilt("no model class: its config is of a part, or of another type's model")
    if classes[0].forward is torch.nn.Module.forward:
        raise NotBuilt(f"{classes[0].__name__} has no forward")
    return classes[0]


def _own(config_class: type[PreTrainedConfig]) -> list[type[PreTrainedModel]]:
    """The classes of the files beside a config's that take it."""
    package = config_class.__module__.rpartition(".")[0]
    found = pkgutil.iter_modules(importlib.import_module(package).__path__)
    files = [f"{package}.{each.name}" for each in found if each.name.startswith("modeling_")]
    return [
        each
        for file in files
        for each in vars(importlib.import_module(file)).values()
        if inspect.isclass(each)
        and issubclass(each, PreTrainedModel)
        and each.__module__ == file
        and each.config_class is config_class
        and each.forward is not torch.nn.Module.forward
    ]


def build(name: str) -> PreTrainedModel:
    """A random tiny model of a type, or a second one of its, the same each time, in eval mode."""
    try:
        kind, config = model_class(name.partition(", ")[0]), tiny(name)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = kind(config)
            _spread(model)
    except ImportError as error:
        package = re.search(r"requires the (\S+) library", str(error))
        raise NotBuilt(f"needs {package[1]}" if package else str(error)) from None
    size = sum(each.numel() for each in model.parameters())
    if size > MOST:
        raise NotBuilt(f"{size / 1e6:.1f} million parameters")
    if model.can_generate():
        # It begins with one, and writes none: an image's token would stand for an image.
        model.generation_config.suppress_tokens = list(range(SPECIAL))
        model.generation_config.forced_bos_token_id = None
        model.generation_config.forced_eos_token_id = None
        model.generation_config.decoder_start_token_id = SPECIAL - 1
    return model.eval()


def _spread(model: PreTrainedModel) -> None:
    """Nothing begins at zero, as codebooks do, or narrow: where a projection begins at 0.02 the
    attention is nearly uniform, and so are right and wrong filters alike, and convolutions, one
    after another, should neither drown it nor fade."""
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if tensor.dim() < 2 or not tensor.numel() or not tensor.is_floating_point():
            continue
        width = 0.06 if tensor.dim() == 2 else (0.5 / tensor[0].numel()) ** 0.5
        if not tensor.abs().max() > 1e-6:  # which NaN, of memory that no one filled, is not either
            tensor.data.normal_(std=width)
        elif tensor.requires_grad and "embed" not in name and 0 < tensor.std() < width:
            tensor.data.mul_(width / tensor.std())


def run(model_type: str) -> str:
    """The word ok, where the model runs on its inputs, padded too if they are text."""
    model = build(model_type)
    for padding in ("none", "left", "right"):
        batch = inputs(model, padding)
        if padding == "none" or "attention_mask" in batch:
            with torch.no_grad():
                out = model(**batch)
            wrong = [name for name, each in tensors(out) if each.isnan().any()]
            if wrong:
                raise NotBuilt(f"padding {padding}: NaN in {', '.join(wrong)}")
    return "ok"


def tensors(out: object) -> list[tuple[str, torch.Tensor]]:
    """The tensors directly in a model's output, with their names."""
    named = out.items() if hasattr(out, "items") else [("output", out)]
    return [(name, each) for name, each in named if isinstance(each, torch.Tensor)]
