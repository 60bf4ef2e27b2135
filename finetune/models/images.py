"""Configuration and image processor of a model of images, from a checkpoint or from nothing."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from PIL import Image
from torch import nn
from transformers import AutoConfig, AutoImageProcessor, PreTrainedConfig
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES

from finetune.errors import refusal
from finetune.models.loading import labelled, pretrained, untrained_config
from finetune.settings.images import ImageModelArguments
from tasks import Task
from tasks.refusals import reason

logger = logging.getLogger(__name__)

# Numbers must not depend on whether torchvision is installed, whose processors round otherwise.
BACKEND = "pil"
MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # Pillow's, by the number of a model's channels


def load_config(arguments: ImageModelArguments, task: Task) -> tuple[PreTrainedConfig, list[int]]:
    """The config with the task's labels, and the label order (`loading.labelled`).

    Raises:
        ValueError: the model takes images of other channels than `MODES`.
    """
    path = arguments.model_name_or_path
    config = (
        untrained_config(arguments) if path is None else pretrained(AutoConfig, path, arguments)
    )
    if channels(config) not in MODES:
        allowed = ", ".join(f"{number} ({name})" for number, name in MODES.items())
        raise refusal("num_channels", channels(config), allowed, "Choose another model.")
    config.architectures = config.architectures or []  # transformers reads them as a list
    return labelled(config, task, path)


def channels(config: PreTrainedConfig) -> int:
    """How many channels the model's images have."""
    return int(getattr(config, "num_channels", 3))


def load_processor(arguments: ImageModelArguments, config: PreTrainedConfig) -> Any:
    """The model's image processor or the named one; of an untrained model its type's, as large.

    Raises:
        ValueError: there is none.
    """
    name = arguments.image_processor_name or arguments.model_name_or_path or arguments.config_name
    if name is None:
        processor = _of_type(config.model_type)
    else:
        processor = pretrained(AutoImageProcessor, name, arguments, backend=BACKEND)
    if arguments.model_name_or_path is None and arguments.image_processor_name is None:
        processor = _fitted(processor, config)
    return processor


def size_of(processor: Any, mode: str) -> tuple[int, int]:
    """Height and width of the images that it makes of square ones."""
    pixels = processor(Image.new(mode, (64, 64)), return_tensors="pt")["pixel_values"]
    return pixels.shape[-2], pixels.shape[-1]


def check_pixels(model: nn.Module, shape: Sequence[int]) -> None:
    """Warn of rows and columns of pixels on which no output depends, as at the edge of an image.

    ``shape`` is (channels, height, width). The model's error for a shape that it cannot read, as
    one that its patches do not divide, is raised before training.
    """
    noise = torch.randn((1, *shape), generator=torch.Generator().manual_seed(0))
    noise.requires_grad_()
    is_training = model.training
    with torch.enable_grad():
        logits = model.eval()(pixel_values=noise).logits
        (seen,) = torch.autograd.grad(logits.square().sum(), noise)
    model.train(is_training)
    unseen = [int((~seen.any(dim=each)).sum()) for each in ((0, 1, 3), (0, 1, 2))]
    if seen.any() and any(unseen):
        logger.warning(
            f"The model does not see {unseen[0]} rows and {unseen[1]} columns of pixels of images "
            f"of {shape[-2]} x {shape[-1]}: choose a size that is a multiple of its patches'."
        )


def _of_type(kind: str) -> Any:
    """The image processor of a type of models, as it is by default."""
    try:
        return getattr(transformers, str(IMAGE_PROCESSOR_MAPPING_NAMES[kind][BACKEND]))()
    except (ImportError, KeyError) as error:
        remedy = f"Choose another, or name one: --image_processor_name. {reason(error)}"
        raise refusal("model_type", kind, "a type with an image processor", remedy) from None


def _fitted(processor: Any, config: PreTrainedConfig) -> Any:
    """The processor for images of the size and with the channels that the configuration says."""
    settings = processor.to_dict()
    size: Any = getattr(config, "image_size", None)
    if size is not None:
        height, width = (size, size) if isinstance(size, int) else size
        if settings.get("do_center_crop"):
            margin = height / settings["crop_size"]["height"]
            settings["size"] = {n: round(x * margin) for n, x in settings["size"].items()}
            settings["crop_size"] = {"height": height, "width": width}
        else:
            sides = {"height": height, "width": width}
            settings["size"] = {n: sides.get(n, height) for n in settings["size"]}
    if channels(config) != 3:
        half = [0.5] * channels(config)
        settings |= {"image_mean": half, "image_std": half, "do_convert_rgb": False}
    return type(processor)(**settings)
