"""What the scripts that measure the demo checkpoints share: two starts, fine-tuning, the report."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from rich.console import Console
from rich.table import Table
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, set_seed

from finetune.engine.results import origin, write_json

Script = Callable[[Sequence[str]], dict[str, Any]]


def starts(checkpoint: str, architecture: type[PreTrainedModel], seed: int) -> Iterator[str]:
    """The checkpoint's folder, then one with untrained weights of the same shape."""
    yield checkpoint
    with tempfile.TemporaryDirectory() as folder:
        set_seed(seed)
        architecture(AutoConfig.from_pretrained(checkpoint)).save_pretrained(folder)
        AutoTokenizer.from_pretrained(checkpoint).save_pretrained(folder)
        yield folder


def fine_tuned(script: Script, model: str, seed: int, recipe: Sequence[str]) -> dict[str, Any]:
    """What a script's run on its task `demo` measured, with plain attention."""
    with tempfile.TemporaryDirectory() as folder:
        where = ("--model_name_or_path", model, "--output_dir", folder)
        return script((*where, "--task_name", "demo", "--seed", str(seed), *recipe))


def report(checkpoint: str, measured: dict[str, Any], settings: object, shown: Table) -> None:
    """Print the table, and write all to `measured.json` beside the checkpoint."""
    values = {**measured, "settings": vars(settings), "origin": origin(Accelerator())}
    write_json(Path(checkpoint) / "measured.json", values)
    Console(width=100).print(shown)
