"""The model card of a patched model: what was changed, and how to load it."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
from collections.abc import Sequence
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.utils import HFValidationError, validate_repo_id
from transformers import PreTrainedModel

from .adapters import base_model as base_of
from .configs import ENTRY
from .errors import GraphAttentionError, refusal
from .filters import read_config
from .reporting import report
from .variants import VariantConfig
from .variants.base import is_sequence

TAGS = ("hf_graphattn", "graph-filter-attention")


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
) -> ModelCard:
    """The card of a patched model; `results` become its model-index.

    Args:
        repo_id: the repository that the card is for; the card shows how to load it from there.
        base_model: hub id of the pretrained model (default: where the model was loaded from when
            it was patched, unless that was a folder).
        datasets: the hub ids of the training data.
        results: a `huggingface_hub.EvalResult` for each metric.

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
    data = ModelCardData(
        base_model=base_model,
        datasets=datasets or None,
        eval_results=list(results) or None,
        language=language,
        library_name="transformers",
        license=license,
        model_name=repo_id.split("/")[-1],
        pipeline_tag=_task(model),
        tags=list(dict.fromkeys([*TAGS, config.variant, *tags])),
    )
    parts = [_introduction(model, repo_id, base_model), _filter(config), _loading(model, repo_id)]
    if results:
        parts.append(_results(results))
    parts.append(f"## Scalars\n\n```\n{report(model)}\n```")
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(parts) + "\n")


def _task(model: PreTrainedModel) -> str | None:
    """The hub's word for what the model's class is for, as transformers has it; None of a base."""
    from transformers.modelcard import TASK_MAPPING  # brings all of training: most of a second

    name, known = type(base_of(model)).__name__, dict[str, Any](TASK_MAPPING)
    for task, classes in known.items():
        if any(name in ([each] if isinstance(each, str) else each) for each in classes.values()):
            return task
    return None


def _entry(model: PreTrainedModel) -> dict[str, Any]:
    """What the config of a patched model says of its filters."""
    entry = getattr(base_of(model).config, ENTRY, None)
    if entry is None:
        raise GraphAttentionError(
            f"only a part of {type(model).__name__} is patched, so that its config.json would not "
            f"say so. Unpatch the part, and patch the whole model."
        )
    return entry


def _introduction(model: PreTrainedModel, repo_id: str, base_model: str | None) -> str:
    origin = f", made from `{base_model}`" if base_model else ""
    what = (
        "whose layers filter their tokens after self-attention."
        if read_config(model).place
        else "whose self-attention is a graph filter: each head takes its attention matrix "
        "`A = softmax(QK^T / sqrt(d))` as a graph and filters the values `V` on it, so that its "
        "output is `H V` instead of `A V`."
    )
    return (
        f"# {repo_id.split('/')[-1]}\n\n"
        f"`{type(model).__name__}`{origin}, {what} Made with `hf_graphattn`."
    )


def _filter(config: VariantConfig) -> str:
    summary = inspect.cleandoc(type(config).__doc__ or "").split("\n\n")[0].replace("\n", " ")
    rows = [
        f"| `{field.name}` | {getattr(config, field.name)} | {field.metadata['help']} |"
        for field in dataclasses.fields(config)
    ]
    table = "\n".join(["| setting | value | meaning |", "|---|---|---|", *rows])
    return f"## The filter: {config.variant}\n\n{summary}\n\n{table}"


def _loading(model: PreTrainedModel, repo_id: str) -> str:
    return f"""## Loading

```python
import hf_graphattn as ga  # pip install hf_graphattn

model = ga.from_pretrained("{repo_id}")  # {type(model).__name__}
```

Or, where hf_graphattn is installed, with transformers alone:
`AutoModel....from_pretrained("{repo_id}", trust_remote_code=True)`. Without either, transformers
refuses this checkpoint: with plain attention it would be another model."""


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
