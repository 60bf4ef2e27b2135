"""The model card of a patched model: what was changed, and how to load it."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Sequence

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.utils import HFValidationError, validate_repo_id
from transformers import PreTrainedModel

from .filters import read_config
from .reporting import report
from .variants import VariantConfig

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
        GraphAttentionError: the model is not patched.
    """
    config = read_config(model)
    base_model = base_model or hub_id(model.config.graph_attn.get("base_model"))
    datasets, tags = ([x] if isinstance(x, str) else x for x in (datasets, tags))
    data = ModelCardData(
        base_model=base_model,
        datasets=list(datasets) or None,
        eval_results=list(results) or None,
        language=language,
        library_name="transformers",
        license=license,
        model_name=repo_id.split("/")[-1],
        tags=list(dict.fromkeys([*TAGS, config.variant, *tags])),
    )
    parts = [_introduction(model, repo_id, base_model), _filter(config), _loading(model, repo_id)]
    if results:
        parts.append(_results(results))
    parts.append(f"## Scalars\n\n```\n{report(model)}\n```")
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(parts) + "\n")


def _introduction(model: PreTrainedModel, repo_id: str, base_model: str | None) -> str:
    origin = f", made from `{base_model}`" if base_model else ""
    return (
        f"# {repo_id.split('/')[-1]}\n\n"
        f"`{type(model).__name__}`{origin}, whose self-attention is a graph filter: each head "
        f"takes its attention matrix `A = softmax(QK^T / sqrt(d))` as a graph and filters the "
        f"values `V` on it, so that its output is `H V` instead of `A V`. Made with `hf_graphattn`."
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


def hub_id(name: str | None) -> str | None:
    """`name`, if it can be a hub repository and is not a local path; else None."""
    if not name or os.path.exists(name):
        return None
    try:
        validate_repo_id(name)
    except HFValidationError:
        return None
    return name
