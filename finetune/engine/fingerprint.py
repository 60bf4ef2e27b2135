"""What a run must have in common with the one it continues: settings, model, data, processes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator
from datasets import Dataset

from finetune.settings.schema import Settings

DIGITS = 16
CHUNK = 1000  # rows hashed at a time


def fingerprint(
    settings: Settings[Any, Any],
    model_config: Any,
    data: Mapping[str, Any],
    accelerator: Accelerator,
) -> dict[str, Any]:
    """All that decides the numbers of a run, by name, as JSON has it.

    ``data`` are the data sets by the name of their use; of each its rows are hashed.
    """
    config = {n: v for n, v in model_config.to_dict().items() if n != "_name_or_path"}
    found = {name: _path(value) for name, value in settings.deciding().items()}
    found |= {f"{name} data": data_digest(dataset) for name, dataset in data.items()}
    found |= {
        "model configuration": _digest([json.dumps(config, sort_keys=True, default=str).encode()]),
        "processes": accelerator.num_processes,
        "mixed_precision": accelerator.mixed_precision,
    }
    return json.loads(json.dumps(found, default=str))


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One line ``name: before -> now`` for each value that differs."""
    names = [*before, *(name for name in now if name not in before)]
    return [
        f"{name}: {before.get(name)!r} -> {now.get(name)!r}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def data_digest(dataset: Any) -> str:
    """Number of rows and a hash of their content."""
    parts = _columns(dataset) if isinstance(dataset, Dataset) else _rows(dataset)
    return f"{len(dataset)} rows, {_digest(parts)}"


def _columns(dataset: Dataset) -> Iterator[bytes]:
    for batch in dataset.with_format("numpy").iter(CHUNK):
        for name in sorted(batch):
            rows = [np.atleast_1d(row) for row in batch[name]]
            yield name.encode()
            yield np.array([len(row) for row in rows]).tobytes()
            yield np.concatenate(rows).tobytes()


def _rows(dataset: Any) -> Iterator[bytes]:
    for i in range(len(dataset)):
        for name, value in sorted(dataset[i].items()):
            yield name.encode()
            yield np.asarray(value).tobytes()


def _digest(parts: Any) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()[:DIGITS]


def _path(value: Any) -> Any:
    """A path as it is from everywhere, so that another working folder is no other run."""
    if isinstance(value, str) and value and Path(value).exists():
        return str(Path(value).resolve())
    return value
