"""The model card of a patched model: what was changed, and how to load it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData, hf_hub_download, metadata_load
from huggingface_hub.utils import HFValidationError, validate_repo_id
from transformers import PreTrainedModel

from .adapters import base_model as base_of
from .adapters import is_adapted
from .card_text import (
    account,
    by_transformers,
    how_it_attends,
    introduction,
    plain_usage,
    the_filter,
)
from .configs import ENTRY
from .errors import GraphAttentionError, refusal
from .filters import read_config
from .parallel import own_class
from .usage import checked_example, usage
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
        introduction(model, repo_id, base_model, how_it_attends(config)),
        usage(model, task, repo_id, base_model, tokenizer, checked_example(task, example)),
        "" if is_adapted(model) else by_transformers(model, repo_id),
        the_filter(model, config),
        *account(results, training or {}, base_model, datasets, license),
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
    parts = [
        introduction(model, repo_id, base_model, "with plain attention."),
        plain_usage(model, repo_id),
        *account(results, training, base_model, datasets, license),
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
