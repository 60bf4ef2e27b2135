"""`graphattn diagnose`: models and a text, or images, in; one HTML page out."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoImageProcessor, AutoTokenizer

from hf_graphattn.diagnostics.collect import diagnose
from hf_graphattn.diagnostics.diagnosis import Diagnosis, save_html
from hf_graphattn.diagnostics.drawing import optional
from hf_graphattn.errors import refusal
from hf_graphattn.loading import SAVE_ONE, is_made_up, load_any, reading

TokenIds = list[list[int]]
MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # Pillow's, by the number of channels


def run(options: argparse.Namespace) -> None:
    """Measure each model, write the page and, with --json, the numbers.

    Raises:
        GraphAttentionError: an argument cannot be used; or matplotlib is missing.
    """
    if bool(options.text) == bool(options.images):
        raise refusal("--text, --images", (options.text, options.images), "one of them")
    optional("matplotlib")  # if it is missing, say so before minutes of measuring
    paths = _named(options.model)
    texts = _texts(options.text, whole=options.whole_text) if options.text else []
    files = image_files(options.images, options.max_sequences) if options.images else []
    page = Path(options.output or Path(options.output_dir or "", "diagnosis.html"))
    numbers = Path(options.json) if options.json else None
    for file in filter(None, (page, numbers)):
        file.parent.mkdir(parents=True, exist_ok=True)
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    diagnoses: dict[str, Diagnosis] = {}
    read: dict[str, TokenIds] = {}
    for name, path in paths.items():
        print(f"loading {name} from {path}", file=sys.stderr)
        model: Any = load_any(path)
        if files:
            length = sys.maxsize  # no image is cut
            data = image_batches(model, load_processor(path), files, options.batch_size)
        else:
            tokenizer = load_tokenizer(path)
            length = readable(options.max_length, model, tokenizer)
            read[name] = token_ids(tokenizer, texts, length, options.max_sequences)
            data = batches(model, tokenizer, read[name], options.batch_size)
        diagnoses[name] = diagnose(
            model.to(device), data, max_sequences=options.max_sequences, max_tokens=length
        )
    notes = _notes(read)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    save_html(diagnoses, page, notes)
    print(f"wrote {page}")
    if numbers:
        of_models = {name: diagnosis.to_dict() for name, diagnosis in diagnoses.items()}
        numbers.write_text(json.dumps(of_models, indent=1, allow_nan=False) + "\n", "utf-8")
        print(f"wrote {numbers}")


def _named(paths: Sequence[str]) -> dict[str, str]:
    """Name in the figures -> path: the folder's name, or the path where two share that."""
    names = [Path(path).resolve().name for path in paths]
    if len(set(names)) < len(names):
        names = list(paths)
    if len(set(names)) < len(names):
        raise refusal("--model", list(paths), "each model once", "Drop the repeated one.")
    return dict(zip(names, paths, strict=True))


def _texts(path: str, *, whole: bool) -> list[str]:
    text = Path(path).read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise refusal("--text", path, "a file with text; this one is empty", "Name another file.")
    return [text] if whole else lines


def _notes(read: Mapping[str, TokenIds]) -> list[str]:
    """What a reader of a comparison must know, as sentences."""
    if all(ids == next(iter(read.values())) for ids in read.values()):
        return []
    counts = ", ".join(f"{name}: {sum(map(len, ids))}" for name, ids in read.items())
    return [
        f"The models have different tokenizers or lengths: they read the same text as different "
        f"tokens ({counts}). Compare shapes of curves rather than values."
    ]


def load_tokenizer(path: str) -> Any:
    """The tokenizer of a folder or hub id, with a token to pad by.

    Raises:
        GraphAttentionError: there is none, or transformers invents one without a vocabulary.
    """
    with reading(path):
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
        GraphAttentionError: its file is damaged.
    """
    with reading(path):
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
    """At most `count` images of a folder and its folders, evenly over the order of their names."""
    endings = optional("PIL.Image").registered_extensions()
    files = sorted(p for p in Path(folder).rglob("*") if p.suffix.lower() in endings)
    if not files:
        raise refusal("--images", folder, "a folder with images", "Name another folder.")
    return files[:: -(-len(files) // count)]


def image_batches(
    model: Any, processor: Any, files: list[Path], size: int
) -> Iterator[dict[str, Tensor]]:
    """The images, upright as their camera recorded them, as pixel values (B, channels, h, w).

    Raises:
        OSError: Pillow cannot read a file.
    """
    mode = MODES[getattr(model.config, "num_channels", 3)]
    upright = optional("PIL.ImageOps").exif_transpose
    for start in range(0, len(files), size):
        images = []
        for file in files[start : start + size]:
            with reading(str(file)), optional("PIL.Image").open(file) as image:
                images.append(upright(image).convert(mode))
        yield {"pixel_values": processor(images, return_tensors="pt")["pixel_values"]}
