"""What a model card says in its sections."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from statistics import median

import torch
import transformers
from huggingface_hub import EvalResult
from transformers import PreTrainedModel

from .adapters import base_model as base_of
from .adapters import is_adapted
from .parallel import own_class
from .reporting import report
from .usage import fenced, own_auto_class
from .variants import VariantConfig
from .version import __version__

Scalars = dict[tuple[str, str], list[float]]  # by layer and name; a value a head


def introduction(model: PreTrainedModel, repo_id: str, base_model: str | None, how: str) -> str:
    """What it is, what it was made from and with."""
    origin = f", made from `{base_model}`" if base_model else ""
    adapter = "An adapter, PEFT's, of a " if is_adapted(model) else ""
    versions = {
        "hf_graphattn": __version__,
        **{m.__name__: m.__version__ for m in (transformers, torch)},
    }
    made = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"# {repo_id.split('/')[-1]}\n\n"
        f"{adapter}`{own_class(base_of(model)).__name__}`{origin}, {how} Made with {made}."
    )


def how_it_attends(config: VariantConfig) -> str:
    """What its attention is."""
    if config.place:
        return "whose layers filter their tokens after self-attention."
    return (
        "whose self-attention is a graph filter: each head takes its attention matrix "
        "`A = softmax(QK^T / sqrt(d))` as a graph and filters the values `V` on it, so that its "
        "output is `H V` instead of `A V`."
    )


def by_transformers(model: PreTrainedModel, repo_id: str) -> str:
    """How a patched model is loaded without naming this library; empty where no class does it."""
    name = own_auto_class(model)
    if name is None:
        return ""
    return (
        f"Where hf_graphattn is installed, transformers' own class loads it too:\n\n"
        f"{_loading(name, repo_id, ', trust_remote_code=True')}\n\nWithout either, transformers "
        f"refuses this checkpoint: with plain attention it would be another model."
    )


def _loading(name: str, repo_id: str, more: str = "") -> str:
    """Code that loads it by a class of transformers."""
    code = f'from transformers import {name}\n\nmodel = {name}.from_pretrained("{repo_id}"{more})'
    return fenced(code, "python")


def plain_usage(model: PreTrainedModel, repo_id: str) -> str:
    """Code that loads a model with plain attention; empty where no class of transformers does."""
    name, more = own_auto_class(model) or own_class(model).__name__, ""
    if getattr(model.config, "auto_map", None):  # it brings code of its own
        more = ", trust_remote_code=True"
    return f"## Usage\n\n{_loading(name, repo_id, more)}" if hasattr(transformers, name) else ""


def the_filter(model: PreTrainedModel, config: VariantConfig) -> str:
    """Its settings; of a learned scalar not where it started, but what has become of it."""
    scalars = _learned(model)
    summary = inspect.cleandoc(type(config).__doc__ or "").split("\n\n")[0].replace("\n", " ")
    rows = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in config.trainable:
            value = "learned, as below"
        elif value is None:
            value = "the default"
        elif isinstance(value, tuple):
            value = ", ".join(map(str, value))
        rows.append(f"| `{field.name}` | {value} | {field.metadata['help']} |")
    heading = ["| setting | value | meaning |", "|---|---|---|"]
    parts = [f"## The filter: {config.title}", summary, "\n".join([*heading, *rows])]
    if scalars:
        of = "channels" if config.place else "heads"
        heading = [
            f"| layer | scalar | least of its {of} | median | most |",
            "|---|---|---|---|---|",
        ]
        rows = [
            f"| {layer} | `{name}` | {min(found):.4g} | {median(found):.4g} | {max(found):.4g} |"
            for (layer, name), found in scalars.items()
        ]
        parts += [f"What was learned, over each layer's {of}:", "\n".join([*heading, *rows])]
    return "\n\n".join(parts)


def _learned(model: PreTrainedModel) -> Scalars:
    """The learned scalars of each layer; of one that has several values a head, each by itself."""
    found = {}
    for row in report(model).rows:
        layer = row.module if row.layer is None else str(row.layer)
        for name in row.learned:
            values = row.scalars[name]
            if not isinstance(values[0], list):
                found[layer, name] = values
                continue
            for index, column in enumerate(zip(*values, strict=True)):
                found[layer, f"{name}[{index}]"] = list(column)
    return found


def account(
    results: Sequence[EvalResult],
    training: Mapping[str, object],
    base_model: str | None,
    datasets: Sequence[str],
    license: str | None,
) -> list[str]:
    """How it was trained, what was measured, and what is known of its use."""
    measured = _results(results) if results else ""
    return [measured, _training(training), _known(base_model, datasets, license)]


def _results(results: Sequence[EvalResult]) -> str:
    rows = [
        f"| {r.task_name or r.task_type} | {r.dataset_name} | {r.dataset_split or ''} | "
        f"{r.metric_name or r.metric_type} | {_number(r.metric_value)} |"
        for r in results
    ]
    heading = "| task | data | split | metric | value |\n|---|---|---|---|---|"
    return "## Results\n\n" + "\n".join([heading, *rows])


def _number(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _training(settings: Mapping[str, object]) -> str:
    rows = [f"| {name} | {value} |" for name, value in settings.items()]
    table = "\n".join(["| setting | value |", "|---|---|", *rows])
    return f"## Training\n\n{table}" if rows else ""


def _known(base_model: str | None, datasets: Sequence[str], license: str | None) -> str:
    """What can be said of its use and limits without guessing."""
    lines = []
    if datasets:
        lines.append(f"It was trained on {', '.join(f'`{name}`' for name in datasets)}.")
    if base_model:
        lines.append(f"What limits `{base_model}` limits it too.")
    if license is None:
        bound = "; the base model's terms bind it" if base_model else ""
        lines.append(
            f"No license is stated. Whoever publishes this adds one, as `license:` at the head of "
            f"this file{bound}."
        )
    lines.append("What else it may be used for, nobody has examined.")
    return "## Use and limits\n\n" + "\n".join(f"- {line}" for line in lines)
