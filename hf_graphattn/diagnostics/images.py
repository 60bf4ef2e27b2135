"""Batches of a folder's images, as a saved model's image processor makes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import AutoImageProcessor

from hf_graphattn.errors import GraphAttentionError, refusal

from .extras import optional

MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # Pillow's, by the number of channels


def load_processor(path: str) -> Any:
    """The image processor of a folder or hub id, by Pillow, whatever else is installed."""
    try:
        return AutoImageProcessor.from_pretrained(path, backend="pil")
    except (OSError, ValueError, KeyError) as error:
        raise GraphAttentionError(
            f"--model {path!r} could not be loaded with its image processor: {error}"
        ) from error


def image_files(folder: str, count: int) -> list[Path]:
    """So many of the images in a folder and its folders, evenly over the order of their names."""
    known = optional("PIL.Image").registered_extensions()
    found = sorted(p for p in Path(folder).rglob("*") if p.suffix.lower() in known)
    if not found:
        raise refusal("--images", folder, "a folder with images", "Name another folder.")
    return found[:: -(-len(found) // count)]


def batches(
    model: Any, processor: Any, files: list[Path], size: int
) -> Iterator[dict[str, Tensor]]:
    """The images in the model's channels, as pixel values (B, channels, height, width)."""
    mode = MODES[getattr(model.config, "num_channels", 3)]
    for start in range(0, len(files), size):
        images = [_read(file, mode) for file in files[start : start + size]]
        yield {"pixel_values": processor(images, return_tensors="pt")["pixel_values"]}


def _read(file: Path, mode: str) -> Any:
    """The image, upright as its camera says, as training reads it."""
    try:
        with optional("PIL.Image").open(file) as image:
            return optional("PIL.ImageOps").exif_transpose(image).convert(mode)
    except Exception as error:  # of whichever of Pillow's readers finds the fault
        raise refusal("an image", str(file), f"one that Pillow can read ({error})") from error
