"""The model card of a patched model: what was changed, and how to load it."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch
import transformers
import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData, hf_hub_download, metadata_load
from huggingface_hub.utils import HFValidationError, validate_repo_id
from transformers import PreTrainedModel

from .adapters import base_model as base_of
from .adapters import is_adapted
from .configs import ENTRY
from .errors import GraphAttentionError, refusal
from .filters import read_config
from .parallel import own_class
from .reporting import report
from .usage import checked_example, fenced, own_auto_class, usage
from .variants import VariantConfig
from .variants.base import is_sequence
from .version import __version__

TAGS = ("hf_graphattn", "graph-filter-attention")
Scalars = dict[tuple[str, str], list[float]]  # by layer and name; a value a head


def model_card(
    model: PreTrainedModel,
    repo_id: str,
    *,
    base_model: str | None = None,
    datasets: Sequence[str] = (),
    results: Sequence[EvalResult] = (),
    tags: Sequence[str] = (),
    language: str | None = None,
    license: str | None = None,
    tokenizer: Any = None,
    example: Any = None,
    training: Mapping[str, object] | None = None,
) -> ModelCard:
    """The card of a patched model, PEFT's too; `results` become its model-index.

    Args:
        repo_id: the repository that the card is for; the card shows how to load it from there.
        base_model: hub id of the pretrained model (default: where the model was loaded from when
            it was patched, unless that was a folder).
        datasets: the hub ids of the training data.
        results: a `huggingface_hub.EvalResult` for each metric.
        license: its id on the hub (default: what the base model's own card says, where the hub's
            cache has it).
        tokenizer: what lies beside the model and makes its inputs, a processor too.
        example: an input for the card's code: a text, a pair of texts, an image of Pillow's, or a
            sound as (samples, samples a second). With a tokenizer the model computes what the code
            prints. Of an image and a sound the code reads a file, which `save_repository` and
            `push_to_hub` write.
        training: settings of the training, by name.

    Raises:
        GraphAttentionError: the model is not patched, or only a part of it; or an argument is bad.
    """
    config, came_from = read_config(model), _entry(model).get("base_model")
    repo_id = checked_id("repo_id", repo_id)
    base_model = hub_id(came_from) if base_model is None else checked_id("base_model", base_model)
    if not is_sequence(results) or not all(isinstance(each, EvalResult) for each in results):
        raise refusal("results", results, "a sequence of huggingface_hub.EvalResult")
    datasets, tags = _lines("datasets", datasets), _lines("tags", tags)
    for name, value in {"language": language, "license": license}.items():
        _lines(name, [] if value is None else [value])
    if training is not None and not isinstance(training, Mapping):
        raise refusal("training", training, "None, or values by their names")
    license = license or (base_model and license_of(base_model)) or None
    tags = list(dict.fromkeys([*TAGS, config.variant, *tags]))
    data = _head(model, repo_id, base_model, datasets, results, language, license, tags)
    task = data.pipeline_tag
    parts = [
        _introduction(model, repo_id, base_model, _how(config)),
        usage(model, task, repo_id, base_model, tokenizer, checked_example(task, example)),
        "" if is_adapted(model) else _by_transformers(model, repo_id),
        _filter(config, _learned(model)),
        *_account(results, training or {}, base_model, datasets, license),
    ]
    return _card(data, parts)


def plain_card(
    model: PreTrainedModel,
    repo_id: str,
    *,
    base_model: str | None,
    datasets: Sequence[str],
    results: Sequence[EvalResult],
    license: str | None,
    training: Mapping[str, object],
) -> ModelCard:
    """The card of a model with plain attention, which a patched one is compared with.

    The arguments are those of `model_card`.
    """
    data = _head(model, repo_id, base_model, datasets, results, None, license, TAGS[:1])
    code = _loading(own_auto_class(model) or own_class(model).__name__, repo_id)
    parts = [
        _introduction(model, repo_id, base_model, "with plain attention."),
        f"## Usage\n\n{code}",
        *_account(results, training, base_model, datasets, license),
    ]
    return _card(data, parts)


def _head(
    model: PreTrainedModel,
    repo_id: str,
    base_model: str | None,
    datasets: Sequence[str],
    results: Sequence[EvalResult],
    language: str | None,
    license: str | None,
    tags: Sequence[str],
) -> ModelCardData:
    """What the hub reads of a card."""
    adapted = is_adapted(model)
    relation: dict[str, Any] = {}  # no argument of ModelCardData's own
    if base_model:
        relation["base_model_relation"] = "adapter" if adapted else "finetune"
    return ModelCardData(
        base_model=base_model,
        datasets=list(datasets) or None,
        eval_results=list(results) or None,
        language=language,
        library_name="peft" if adapted else "transformers",
        license=license,
        model_name=repo_id.split("/")[-1],
        pipeline_tag=_task(model),
        tags=list(tags),
        **relation,
    )


def _card(data: ModelCardData, parts: Sequence[str]) -> ModelCard:
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(filter(None, parts)) + "\n")


def _account(
    results: Sequence[EvalResult],
    training: Mapping[str, object],
    base_model: str | None,
    datasets: Sequence[str],
    license: str | None,
) -> list[str]:
    """How it was trained, what was measured, and what is known of its use."""
    measured = _results(results) if results else ""
    return [measured, _training(training), _known(base_model, datasets, license)]


def license_of(model: str, *, fetch: bool = False) -> str | None:
    """The license that a model's own card states; None if none does, or no card is at hand.

    Args:
        model: a folder, or a hub id, of which the card is in the cache.
        fetch: whether a hub's card may be downloaded.
    """
    # No card; no such model; no hub in reach; a card whose head is no YAML.
    with contextlib.suppress(OSError, ValueError, yaml.YAMLError):
        path = os.path.join(model, "README.md")
        if not os.path.isdir(model):
            path = hf_hub_download(model, "README.md", local_files_only=not fetch)
        found = (metadata_load(path) or {}).get("license")
        return found if isinstance(found, str) else None
    return None


def _task(model: PreTrainedModel) -> str | None:
    """The hub's word for what the model's class is for, as transformers has it; None of a base."""
    from transformers.modelcard import TASK_MAPPING  # brings all of training: most of a second

    name, known = own_class(base_of(model)).__name__, dict[str, Any](TASK_MAPPING)
    found: list[str | None] = [
        task
        for task, classes in known.items()
        if any(name in ([each] if isinstance(each, str) else each) for each in classes.values())
    ]
    # BART's and T5's class fills masks too, and writes first of all.
    return next((task for task in found if task != "fill-mask"), *found[:1] or [None])


def _entry(model: PreTrainedModel) -> dict[str, Any]:
    """What the config of a patched model says of its filters."""
    entry = getattr(base_of(model).config, ENTRY, None)
    if entry is None:
        raise GraphAttentionError(
            f"only a part of {type(model).__name__} is patched, so that its config.json would not "
            f"say so. Unpatch the part, and patch the whole model."
        )
    return entry


def _introduction(model: PreTrainedModel, repo_id: str, base_model: str | None, how: str) -> str:
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


def _how(config: VariantConfig) -> str:
    """What its attention is."""
    if config.place:
        return "whose layers filter their tokens after self-attention."
    return (
        "whose self-attention is a graph filter: each head takes its attention matrix "
        "`A = softmax(QK^T / sqrt(d))` as a graph and filters the values `V` on it, so that its "
        "output is `H V` instead of `A V`."
    )


def _by_transformers(model: PreTrainedModel, repo_id: str) -> str:
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


def _filter(config: VariantConfig, scalars: Scalars) -> str:
    """The settings; of a learned scalar not where it started, but what has become of it."""
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


def hub_id(name: object) -> str | None:
    """`name`, if it can be a hub repository and is not a local path; else None."""
    try:
        found = checked_id("name", name)
    except GraphAttentionError:
        return None
    return None if os.path.exists(found) else found


def checked_id(what: str, name: object) -> str:
    """`name`, if it can be the name of a hub repository.

    Raises:
        GraphAttentionError: it cannot.
    """
    with contextlib.suppress(HFValidationError):
        if isinstance(name, str):
            validate_repo_id(name)
            return name
    allowed = "the name of a hub repository: user/name, or name, of letters, digits, '-', '_', '.'"
    raise refusal(what, name, allowed)


def _lines(what: str, given: Any) -> list[str]:
    """The text, or texts, that a field of the card has."""
    texts = [given] if isinstance(given, str) else given
    if is_sequence(texts) and all(isinstance(t, str) and t and t.isprintable() for t in texts):
        return list(texts)
    raise refusal(what, given, "a text of one line, or a sequence of such texts")
