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

from finetune.settings.groups import DEFAULT_FILTER_RATE, FILTER_RATE
from finetune.settings.schema import Settings

DIGITS = 16
CHUNK = 1000  # rows hashed at a time
MODEL = "model configuration"


def fingerprint(
    settings: Settings[Any, Any],
    model_config: Any,
    data: Mapping[str, Any],
    accelerator: Accelerator,
) -> dict[str, Any]:
    """All that decides the numbers of a run, by name, as JSON has it.

    ``data`` are the data sets by the name of their use; of each its rows are hashed.
    """
    paths = settings.paths()
    found = {
        name: _from_everywhere(value) if name in paths else value
        for name, value in settings.deciding().items()
    }
    found |= {f"{name} data": data_digest(dataset) for name, dataset in data.items()}
    found |= {
        MODEL: _config_digest(_without_versions(model_config.to_dict())),
        "processes": accelerator.num_processes,
        "mixed_precision": accelerator.mixed_precision,
    }
    return _plain(found)


def differences(
    before: Mapping[str, Any], now: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> list[str]:
    """One line ``name: before -> now`` for each value that differs.

    ``defaults`` are what flags were that the earlier version did not have.
    """
    known = {name: value for name, value in _plain(defaults or {}).items() if name in now}
    before = {**known, **before}
    names = [*before, *(name for name in now if name not in before)]
    return [
        f"{name}: {before.get(name)!r} -> {now.get(name)!r}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def faults(
    wrote: Mapping[str, Any], asked: Mapping[str, Any], defaults: Mapping[str, Any]
) -> list[str]:
    """How the settings of a run that is there differ from those asked for, (then -> now).

    Settings that only one of the two knows are left out: they came with another version.

    Args:
        wrote: what the run wrote.
        asked: the settings that decide a run's numbers.
        defaults: of flags that an earlier version may have lacked.
    """
    found = {**_plain(defaults), **wrote["settings"]}
    now = {name: value for name, value in _plain(asked).items() if name in found}
    if wrote.get("filter_scalars") and FILTER_RATE in now and now[FILTER_RATE] is None:
        now[FILTER_RATE] = DEFAULT_FILTER_RATE  # as results have it where no flag is given
    return differences({name: found[name] for name in now}, now)


def data_digest(dataset: Any) -> str:
    """Number of rows and a hash of their content, which a data set may know itself."""
    if isinstance(known := getattr(dataset, "digest", None), str):
        return f"{len(dataset)} rows, {known}"
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


def _config_digest(config: Mapping[str, Any]) -> str:
    kept = {name: value for name, value in config.items() if name != "_name_or_path"}
    if kept.get("graph_attn"):
        kept["attn_implementation"] = "graph_attn"  # whatever the function is called by now
    return _digest([json.dumps(kept, sort_keys=True, default=str).encode()])


def _without_versions(config: Mapping[str, Any]) -> dict[str, Any]:
    """A model's configuration without the versions that wrote it."""
    kept = {name: value for name, value in config.items() if name != "transformers_version"}
    if kept.get("graph_attn"):
        own = kept["graph_attn"]
        kept["graph_attn"] = {name: own[name] for name in own if name != "hf_graphattn"}
    return kept


def _from_everywhere(value: Any) -> Any:
    """A path as it is from every working folder, so that another one is no other run."""
    if isinstance(value, list):
        return [_from_everywhere(item) for item in value]
    if isinstance(value, str) and value and Path(value).exists():
        return str(Path(value).resolve())
    return value


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(values, default=str))
