"""What `graphattn diagnose` reads: a saved model, and batches of a text or of images for it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, AutoImageProcessor, AutoModel, AutoTokenizer

from hf_graphattn.diagnostics.drawing import optional
from hf_graphattn.errors import GraphAttentionError, refusal
from hf_graphattn.loading.load import from_pretrained
from hf_graphattn.model.adapters import is_adapter_folder
from hf_graphattn.sharing.checkpoints import SAVE_ONE, is_made_up

TokenIds = list[list[int]]
MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # Pillow's, by the number of channels


@contextmanager
def _loading(path: str, what: str = "") -> Iterator[None]:
    """In this context, what transformers raises is a `GraphAttentionError` that names the path."""
    try:
        yield
    except GraphAttentionError:
        raise
    except (OSError, ValueError, KeyError) as error:
        message = f"--model {path!r} could not be loaded{what}: {error}"
        raise GraphAttentionError(message) from error


def load_model(path: str) -> Any:
    """The model of a folder or hub id, of the class that it was saved as.

    Raises:
        GraphAttentionError: there is no such model.
    """
    folder = Path(path)
    local = folder.exists() or folder.is_absolute() or path.startswith(".") or path.count("/") > 1
    if local and not (folder / "config.json").is_file():
        raise refusal("--model", path, f"a model's folder or a hub id; {_lack(folder)}")
    with _loading(path):
        config = AutoConfig.from_pretrained(path)
        if getattr(config, "graph_attn", None) is not None:
            return from_pretrained(path)
        classes = [getattr(transformers, name, None) for name in config.architectures or []]
        return next(filter(None, classes), AutoModel).from_pretrained(path)


def _lack(folder: Path) -> str:
    """What the folder lacks to be a model's."""
    if is_adapter_folder(folder):
        return (
            "it holds a PEFT adapter alone: load it onto its base with hf_graphattn.load_peft, and "
            "save what merge_and_unload() returns with its tokenizer, or call "
            "hf_graphattn.diagnose on the loaded model"
        )
    return "it has no config.json" if folder.is_dir() else "there is no such folder"


def load_tokenizer(path: str) -> Any:
    """The tokenizer of a folder or hub id, with a token to pad by.

    Raises:
        GraphAttentionError: there is none, or transformers invents one without a vocabulary.
    """
    with _loading(path, " with its tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(path)
    if is_made_up(tokenizer):
        allowed = "a model beside its tokenizer; transformers makes up one without words there"
        raise refusal("--model", path, allowed, SAVE_ONE)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    return tokenizer


def load_processor(path: str) -> Any:
    """The image processor of a folder or hub id, by Pillow, whatever else is installed.

    Raises:
        GraphAttentionError: there is none.
    """
    with _loading(path, " with its image processor"):
        return AutoImageProcessor.from_pretrained(path, backend="pil")


def readable(length: int, model: Any, tokenizer: Any) -> int:
    """`length`, or fewer tokens if the model has positions for fewer."""
    positions = getattr(model.config, "max_position_embeddings", None) or math.inf
    return int(min(length, tokenizer.model_max_length, positions))


def token_ids(tokenizer: Any, texts: list[str], length: int, count: int) -> TokenIds:
    """The first `count` sequences of at most `length` tokens, which include the special tokens.

    A single text is cut into as many sequences as it needs; of several texts, each is cut off.
    """
    overflow = {"return_overflowing_tokens": True} if len(texts) == 1 else {}
    encoded = tokenizer(texts, truncation=True, max_length=length, **overflow)
    ids: TokenIds = encoded["input_ids"]
    return ids[:count]


def batches(model: Any, tokenizer: Any, ids: TokenIds, size: int) -> Iterator[dict[str, Tensor]]:
    """Padded batches. The decoder of an encoder-decoder model reads the same text, shifted."""
    for start in range(0, len(ids), size):
        rows = {"input_ids": ids[start : start + size]}
        padded = tokenizer.pad(rows, return_tensors="pt", padding_side="right")
        batch = {name: padded[name] for name in ("input_ids", "attention_mask")}
        if model.config.is_encoder_decoder:
            first = torch.full_like(batch["input_ids"][:, :1], model.config.decoder_start_token_id)
            batch["decoder_input_ids"] = torch.cat([first, batch["input_ids"][:, :-1]], dim=1)
            batch["decoder_attention_mask"] = batch["attention_mask"]
        yield batch


def image_files(folder: str, count: int) -> list[Path]:
    """So many of the images in a folder and its folders, evenly over the order of their names."""
    endings = optional("PIL.Image").registered_extensions()
    files = sorted(p for p in Path(folder).rglob("*") if p.suffix.lower() in endings)
    if not files:
        raise refusal("--images", folder, "a folder with images", "Name another folder.")
    return files[:: -(-len(files) // count)]


def image_batches(
    model: Any, processor: Any, files: list[Path], size: int
) -> Iterator[dict[str, Tensor]]:
    """The images in the model's channels, as pixel values (B, channels, height, width)."""
    mode = MODES[getattr(model.config, "num_channels", 3)]
    for start in range(0, len(files), size):
        images = [_read(file, mode) for file in files[start : start + size]]
        yield {"pixel_values": processor(images, return_tensors="pt")["pixel_values"]}


def _read(file: Path, mode: str) -> Any:
    """The image, upright as its camera recorded it, as training reads it."""
    try:
        with optional("PIL.Image").open(file) as image:
            return optional("PIL.ImageOps").exif_transpose(image).convert(mode)
    except Exception as error:  # of whichever of Pillow's readers finds the fault
        raise refusal("an image", str(file), f"one that Pillow can read ({error})") from error
