"""`graphattn diagnose`: models and a text, or images, in; one HTML page out."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from hf_graphattn.diagnostics.collect import diagnose
from hf_graphattn.diagnostics.diagnosis import Diagnosis
from hf_graphattn.diagnostics.drawing import optional
from hf_graphattn.diagnostics.page import save_html
from hf_graphattn.errors import refusal

from .inputs import (
    TokenIds,
    batches,
    image_batches,
    image_files,
    load_model,
    load_processor,
    load_tokenizer,
    readable,
    token_ids,
)


def run(options: argparse.Namespace) -> None:
    """Measure each model, write the page and, with --json, the numbers.

    Raises:
        GraphAttentionError: an argument cannot be used; or matplotlib is missing.
    """
    optional("matplotlib")  # if it is missing, say so before minutes of measuring
    names = _names(options.model)
    texts = _texts(options.text, whole=options.whole_text) if options.text else []
    files = image_files(options.images, options.max_sequences) if options.images else []
    page = options.output or os.path.join(options.output_dir or "", "diagnosis.html")
    if options.output_dir:
        os.makedirs(options.output_dir, exist_ok=True)
    for path in filter(None, (page, options.json)):
        _check_folder(path)
    name = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise refusal("--device", name, "a device of torch: cpu, cuda, cuda:1") from None
    diagnoses: dict[str, Diagnosis] = {}
    read: dict[str, TokenIds] = {}
    for name, path in names.items():
        print(f"loading {name} from {path}", file=sys.stderr)
        model = load_model(path)
        if files:
            processor, length = load_processor(path), sys.maxsize  # no image is cut
            data = image_batches(model, processor, files, options.batch_size)
        else:
            tokenizer = load_tokenizer(path)
            length = readable(options.max_length, model, tokenizer)
            if options.max_length > length:
                print(f"note: --max_length is {length}, all that {name} can read", file=sys.stderr)
            read[name] = token_ids(tokenizer, texts, length, options.max_sequences)
            data = batches(model, tokenizer, read[name], options.batch_size)
        diagnoses[name] = diagnose(
            model.to(device), data, max_sequences=options.max_sequences, max_tokens=length
        )
    notes = _notes(read) if read else []
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    save_html(diagnoses, page, notes)
    print(f"wrote {page}")
    if options.json:
        numbers = {name: diagnosis.to_dict() for name, diagnosis in diagnoses.items()}
        text = json.dumps(numbers, indent=1, allow_nan=False) + "\n"
        Path(options.json).write_text(text, encoding="utf-8")
        print(f"wrote {options.json}")


def _names(paths: Sequence[str]) -> dict[str, str]:
    """Name in the figures -> path. The name is the folder's, or, if two share it, what differs.

    `runs/none/seed-0` and `runs/gfsa/seed-0` are "none" and "gfsa".
    """
    parts = [(Path(p).resolve() if Path(p).exists() else Path(p)).parts for p in paths]
    if len(set(parts)) < len(parts):
        raise refusal("--model", list(paths), "each model once", "Drop the repeated one.")
    ends = [each[-1] for each in parts]
    if len(set(ends)) < len(ends):
        rest = [each[_shared(parts) :] for each in parts]
        last = _shared([each[::-1] for each in rest])
        ends = ["/".join(each[: len(each) - last]) for each in rest]
    return dict(zip(ends, paths, strict=True))


def _shared(sequences: Sequence[tuple[str, ...]]) -> int:
    """How many first items all of the sequences share, when each keeps at least one of its own."""
    columns = zip(*sequences, strict=False)  # as far as the shortest
    count = sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, columns))
    return min(count, min(map(len, sequences)) - 1)


def _texts(path: str, *, whole: bool) -> list[str]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise refusal("--text", path, f"a readable UTF-8 file ({error})") from error
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise refusal("--text", path, "a file with text; this one is empty", "Name another file.")
    return [text] if whole else lines


def _check_folder(path: str) -> None:
    if not Path(path).resolve().parent.is_dir():
        raise refusal("the file to write", path, "one in a folder that exists", "Make the folder.")


def _notes(read: Mapping[str, TokenIds]) -> list[str]:
    """What a reader of a comparison must know, as sentences."""
    first = next(iter(read.values()))
    if all(ids == first for ids in read.values()):
        return []
    counts = ", ".join(f"{name}: {sum(map(len, ids))}" for name, ids in read.items())
    return [
        f"The models have different tokenizers or lengths: they read the same text as different "
        f"tokens ({counts}). Compare shapes of curves rather than values."
    ]
