"""Configuration and image processor of a model of images, from a checkpoint or from nothing."""

from __future__ import annotations

from typing import Any

import transformers
from PIL import Image
from transformers import AutoConfig, AutoImageProcessor, PreTrainedConfig
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES as CLASSIFYING,
)

from finetune.errors import refusal
from finetune.models.loading import labelled, untrained_config
from finetune.settings.images import ImageModelArguments
from tasks import Task

# Numbers must not depend on whether torchvision is installed, whose processors round otherwise.
BACKEND = "pil"
MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # Pillow's, by the number of a model's channels


def load_config(arguments: ImageModelArguments, task: Task) -> tuple[PreTrainedConfig, list[int]]:
    """The config with the task's labels, and the label order (`loading.labelled`).

    Raises ``ValueError`` if the model's type cannot classify images, or takes other channels.
    """
    path = arguments.model_name_or_path
    config = untrained_config(arguments) if path is None else AutoConfig.from_pretrained(path)
    if config.model_type not in CLASSIFYING:
        raise refusal(
            "model_type" if path is None else "model_name_or_path",
            f"{arguments.source}, of type {config.model_type}",
            f"types that classify images: {', '.join(CLASSIFYING)}",
            "Choose one of these.",
        )
    if channels(config) not in MODES:
        known = ", ".join(f"{number} ({name})" for number, name in MODES.items())
        raise refusal("num_channels", channels(config), known, "Choose another model.")
    config.architectures = config.architectures or []  # transformers reads them as a list
    mismatched = arguments.ignore_mismatched_sizes
    return labelled(config, task, path, ignore_mismatched_sizes=mismatched)


def channels(config: PreTrainedConfig) -> int:
    """How many channels the model's images have."""
    return int(getattr(config, "num_channels", 3))


def load_processor(arguments: ImageModelArguments, config: PreTrainedConfig) -> Any:
    """The model's image processor or the named one; of an untrained model its type's, as large.

    Raises ``ValueError`` if there is none, or it makes images of other channels.
    """
    name = arguments.image_processor_name or arguments.model_name_or_path or arguments.config_name
    if name is None:
        kind = IMAGE_PROCESSOR_MAPPING_NAMES[config.model_type][BACKEND]
        processor = getattr(transformers, str(kind))()
    else:
        try:
            processor = AutoImageProcessor.from_pretrained(name, backend=BACKEND)
        except (OSError, ValueError) as error:
            raise refusal(
                "image_processor_name",
                arguments.image_processor_name,
                f"a hub id or folder with a preprocessor_config.json, as {name} has not",
                f"Name one. transformers said: {' '.join(str(error).split())[:300]}",
            ) from None
    if arguments.model_name_or_path is None and arguments.image_processor_name is None:
        processor = _fitted(processor, config)
    wanted, mean = channels(config), processor.image_mean
    if processor.do_normalize and len(mean) != wanted:
        raise refusal(
            "image_processor_name",
            f"{name}, with means of {len(mean)} channels",
            f"one of {wanted}, as the model has",
            "Choose the model's own.",
        )
    return processor


def size_of(processor: Any, mode: str) -> tuple[int, int]:
    """Height and width of the images that it makes of square ones."""
    pixels = processor(Image.new(mode, (64, 64)), return_tensors="pt")["pixel_values"]
    return pixels.shape[-2], pixels.shape[-1]


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
