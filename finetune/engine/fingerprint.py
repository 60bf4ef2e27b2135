"""What a run must have in common with the one it continues: settings, model, data, processes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator
from datasets import Dataset

from finetune.settings.groups import DEFAULT_FILTER_RATE, FILTER_RATE
from finetune.settings.schema import Run

DIGITS = 16
CHUNK = 1000  # rows hashed at a time
# The versions that wrote a model's configuration, and the folder that it was read from.
NO_CONTENT = ("_name_or_path", "transformers_version")


def fingerprint(
    settings: Run[Any, Any],
    model_config: Any,
    data: Mapping[str, Any],
    accelerator: Accelerator,
) -> dict[str, Any]:
    """All that decides the numbers of a run, by name, as JSON has it.

    ``data`` are the data sets by the name of their use; of each its rows are hashed.
    """
    paths = settings.paths()
    values = {
        name: _absolute(value) if name in paths else value
        for name, value in settings.deciding().items()
    }
    values |= {f"{name} data": data_digest(dataset) for name, dataset in data.items()}
    return _plain(
        values
        | {
            "model configuration": _config_digest(model_config.to_dict()),
            "processes": accelerator.num_processes,
            "mixed_precision": accelerator.mixed_precision,
        }
    )


def differences(
    before: Mapping[str, Any], now: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> list[str]:
    """One line ``name: before -> now`` for each value that differs.

    ``defaults`` are the values of flags that the earlier version did not have.
    """
    known = {name: value for name, value in _plain(defaults or {}).items() if name in now}
    before = {**known, **before}
    return [
        f"{name}: {before.get(name)!r} -> {now.get(name)!r}"
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]


def faults(
    results: Mapping[str, Any], settings: Mapping[str, Any], defaults: Mapping[str, Any]
) -> list[str]:
    """The differences between an earlier run's settings and those of a new one, (then -> now).

    Settings that only one of the two has are left out: they came with another version.

    Args:
        results: of the earlier run.
        settings: those that decide the new run's numbers.
        defaults: of flags that an earlier version may have lacked.
    """
    before = {**_plain(defaults), **results["settings"]}
    now = {name: value for name, value in _plain(settings).items() if name in before}
    if results.get("filter_scalars") and FILTER_RATE in now and now[FILTER_RATE] is None:
        now[FILTER_RATE] = DEFAULT_FILTER_RATE  # as results have it where no flag is given
    return differences({name: before[name] for name in now}, now)


def data_digest(dataset: Any) -> str:
    """Number of rows and a hash of their content, which a data set may know itself."""
    if isinstance(digest := getattr(dataset, "digest", None), str):
        return f"{len(dataset)} rows, {digest}"
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


def _digest(parts: Iterable[bytes]) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()[:DIGITS]


def _config_digest(config: Mapping[str, Any]) -> str:
    content = {name: value for name, value in config.items() if name not in NO_CONTENT}
    if filters := content.get("graph_attn"):
        content["graph_attn"] = {n: filters[n] for n in filters if n != "hf_graphattn"}
        content["attn_implementation"] = "graph_attn"  # the name of its function may change
    return _digest([json.dumps(content, sort_keys=True, default=str).encode()])


def _absolute(value: Any) -> Any:
    """An existing path made absolute: the same run may be continued from another folder."""
    if isinstance(value, list):
        return [_absolute(item) for item in value]
    if isinstance(value, str) and value and Path(value).exists():
        return str(Path(value).resolve())
    return value


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(values, default=str))
