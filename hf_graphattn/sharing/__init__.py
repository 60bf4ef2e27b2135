"""A patched model as a repository that explains itself: weights, card, and a loading module.

`card_template.md` has all of the card's text: what was changed, and code that loads and uses the
model. This module computes the values in it. `save_pretrained` writes the other files. All of them
go up in one commit: an interrupted push leaves the repository as it was.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
import yaml
from huggingface_hub import (
    EvalResult,
    HfApi,
    ModelCard,
    ModelCardData,
    hf_hub_download,
    metadata_load,
)
from transformers import PreTrainedModel
from transformers.models.auto import modeling_auto

from hf_graphattn.errors import GraphAttentionError, refusal
from hf_graphattn.model.configs import ENTRY
from hf_graphattn.model.filters import base_model as base_of
from hf_graphattn.model.filters import is_adapted, read_config, refuse_adapted
from hf_graphattn.model.parallel import own_class
from hf_graphattn.model.report import report
from hf_graphattn.model.save import auto_classes, checked_id, hub_id
from hf_graphattn.variants import VariantConfig
from hf_graphattn.variants.base import is_integer, is_sequence
from hf_graphattn.version import __version__, how_to_install

TAGS = ("hf_graphattn", "graph-filter-attention")
EXAMPLE_FILES = {"image": "example.png", "sound": "example.wav"}  # in the repository
EXAMPLES = {
    "text": "a text, or a pair of texts",
    "image": "an image of Pillow's",
    "sound": "a pair: samples, and how many there are in a second",
}
NEW_TOKENS = 20
# By the hub's name of a task: the kind of its input, the class of transformers that
# makes the input, and which of the template's outputs is printed.
TASKS = {
    "text-classification": ("text", "AutoTokenizer", "label"),
    "token-classification": ("text", "AutoTokenizer", "labels"),
    "fill-mask": ("text", "AutoTokenizer", "masked"),
    "text-generation": ("text", "AutoTokenizer", "generated"),
    "text2text-generation": ("text", "AutoTokenizer", "generated"),
    "image-classification": ("image", "AutoImageProcessor", "label"),
    "audio-classification": ("sound", "AutoFeatureExtractor", "label"),
    "automatic-speech-recognition": ("sound", "AutoProcessor", "transcribed"),
}


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
        tokenizer: what lies beside the model and makes its inputs, a processor too. Without one
            the card's code loads that of the base model.
        example: an input for the card's code: a text, a pair of texts, an image of Pillow's, or a
            sound as (samples, samples a second). The code reads an image or a sound from a file,
            which `save_repository` and `push_to_hub` write.
        training: settings of the training, by name.

    Raises:
        GraphAttentionError: the model is not patched, or only a part of it; or an argument is bad.
    """
    config, origin = read_config(model), _entry(model).get("base_model")
    repo_id = checked_id("repo_id", repo_id)
    base_model = hub_id(origin) if base_model is None else checked_id("base_model", base_model)
    data = {
        "base_model": base_model,
        "datasets": list(_texts(datasets)) or None,
        "eval_results": list(results) or None,
        "language": language,
        "license": license or (base_model and license_of(base_model)) or None,
        "tags": list(dict.fromkeys([*TAGS, config.variant, *_texts(tags)])),
    }
    source = base_model if tokenizer is None else repo_id
    sections = _filter(model, config) | _usage(model, source, example)
    return _card(model, repo_id, data, training=dict(training or {}), **sections)


def plain_card(
    model: PreTrainedModel, repo_id: str, *, training: Mapping[str, object], **about: Any
) -> ModelCard:
    """The card of a model with plain attention, which a patched one is compared with.

    Args:
        model: a plain model.
        repo_id: as in `model_card`.
        training: as in `model_card`.
        about: base_model, datasets, results and license, as in `model_card`.
    """
    results = about.pop("results")
    data = about | {"eval_results": list(results) or None, "tags": [TAGS[0]]}
    data["datasets"] = list(_texts(about["datasets"])) or None
    name = _auto_class(model) or own_class(model).__name__
    sections = {
        "plain_class": name if hasattr(transformers, name) else None,
        "has_code": getattr(model.config, "auto_map", None),
    }
    return _card(model, repo_id, data, training=training, **sections)


def _card(model: Any, repo_id: str, data: dict[str, Any], **sections: Any) -> ModelCard:
    """The template, filled in: `data` is for the hub to read, `sections` for people."""
    adapted, name = is_adapted(model), repo_id.split("/")[-1]
    if data["base_model"]:
        data["base_model_relation"] = "adapter" if adapted else "finetune"
    head = ModelCardData(
        library_name="peft" if adapted else "transformers",
        model_name=name,
        pipeline_tag=_task(model),
        **data,
    )
    return ModelCard.from_template(
        head,
        template_path=str(Path(__file__).with_name("card_template.md")),
        name=name,
        repo_id=repo_id,
        class_name=own_class(base_of(model)).__name__,
        installation=how_to_install(),
        versions=(__version__, transformers.__version__, torch.__version__),
        results=data["eval_results"],
        **sections,
    )


def _usage(model: Any, source: str | None, example: Any) -> dict[str, Any]:
    """The values in the code of a patched model's card, which loads its processor from `source`.

    Raises:
        GraphAttentionError: the example does not fit the model.
    """
    base, task = base_of(model), _task(model)
    auto_class = _auto_class(base) or ("AutoModel" if is_adapted(model) else None)
    labels = base.config.id2label if (task or "").endswith("classification") else {}
    sections = {"auto_class": auto_class, "labels": labels}
    if task not in TASKS:
        return sections
    kind, processor, output = TASKS[task]
    if example is not None and _kind(example) != kind:
        raise refusal("example", type(example).__name__, f"for {task} {EXAMPLES[kind]}")
    if source is None:
        return sections
    if task == "text-classification" and base.config.num_labels == 1:
        output = "score"
    if task == "automatic-speech-recognition" and base.can_generate():
        output = "generated"
    texts = _texts(example or ()) if kind == "text" else []
    # An example may fill the other half of what the model can read.
    most = getattr(base.config, "max_position_embeddings", None) or 2 * NEW_TOKENS
    return sections | {
        "kind": kind,
        "output": output,
        "processor": processor,
        "source": source,
        "example": example is not None,
        "texts": ", ".join(json.dumps(text, ensure_ascii=False) for text in texts),
        "file": EXAMPLE_FILES.get(kind),
        "image_mode": "L" if getattr(base.config, "num_channels", 3) == 1 else "RGB",
        "new_tokens": min(NEW_TOKENS, most // 2),
    }


def _kind(example: Any) -> str:
    """The kind of input that an example is, by its type."""
    if hasattr(example, "save"):
        return "image"
    if isinstance(example, tuple) and is_integer(example[-1]):
        return "sound"
    texts = _texts(example)
    is_text = is_sequence(texts) and 1 <= len(texts) <= 2
    return "text" if is_text and all(isinstance(text, str) and text for text in texts) else ""


def save_example(example: Any, folder: Path) -> None:
    """Write an image or a sound to the file from which the card's code reads it."""
    kind = _kind(example)
    if kind == "image":
        example.save(folder / EXAMPLE_FILES[kind])
    elif kind == "sound":
        import soundfile  # of the extra "speech"

        soundfile.write(folder / EXAMPLE_FILES[kind], *example)


def _texts(value: Any) -> Any:
    """The texts of a field that may be one text."""
    return [value] if isinstance(value, str) else value


def _filter(model: Any, config: VariantConfig) -> dict[str, Any]:
    """The filter's settings, and its learned scalars as they are now."""
    settings = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in config.trainable:
            value = "learned, as below"
        elif value is None:
            value = "the default"
        elif isinstance(value, tuple):
            value = ", ".join(map(str, value))
        settings.append((field.name, value, field.metadata["help"]))
    summary = inspect.cleandoc(type(config).__doc__ or "").split("\n\n")[0].replace("\n", " ")
    learned = list(_learned(model))
    return {"config": config, "summary": summary, "settings": settings, "learned": learned}


def _learned(model: Any) -> Iterator[tuple[str, str, float, float, float]]:
    """(layer, scalar, least, median, most of the heads); several values a head are several rows."""
    for row in report(model).rows:
        layer = row.module if row.layer is None else str(row.layer)
        for name in row.learned:
            values = row.scalars[name]
            several = isinstance(values[0], list)
            for index, column in enumerate(zip(*values, strict=True) if several else [values]):
                scalar = f"{name}[{index}]" if several else name
                yield layer, scalar, min(column), median(column), max(column)


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
        license = (metadata_load(path) or {}).get("license")
        return license if isinstance(license, str) else None
    return None


def _task(model: PreTrainedModel) -> str | None:
    """The hub's name of the task of the model's class, from transformers; None for a base model."""
    from transformers.modelcard import TASK_MAPPING  # brings all of training: most of a second

    name, mapping = own_class(base_of(model)).__name__, dict[str, Any](TASK_MAPPING)
    tasks: list[str | None] = [
        task
        for task, classes in mapping.items()
        if any(name in ([entry] if isinstance(entry, str) else entry) for entry in classes.values())
    ]
    # BART's and T5's class fills masks too, and writes first of all.
    return next((task for task in tasks if task != "fill-mask"), *tasks[:1] or [None])


def _auto_class(model: Any) -> str | None:
    """The Auto class of transformers that makes a model of this class from its config."""
    for name in auto_classes(model):
        classes = getattr(modeling_auto, name)._model_mapping[type(model.config)]
        if own_class(model) in (classes if isinstance(classes, (list, tuple)) else [classes]):
            return name
    return None


def _entry(model: PreTrainedModel) -> dict[str, Any]:
    """The entry of a patched model's config."""
    entry = getattr(base_of(model).config, ENTRY, None)
    if entry is None:
        raise GraphAttentionError(
            f"only a part of {type(model).__name__} is patched, so that its config.json would not "
            f"say so. Unpatch the part, and patch the whole model."
        )
    return entry


def save_repository(
    model: PreTrainedModel,
    folder: str | os.PathLike[str],
    repo_id: str,
    *,
    tokenizer: Any = None,
    max_shard_size: int | str = "50GB",
    **about: Any,
) -> Path:
    """Write what `push_to_hub` uploads: weights, `config.json`, README.md, the loading module.

    An example that is an image or a sound is written too: the card's code reads it.

    Args:
        repo_id: the name by which the card shows how to load it.
        tokenizer: it is saved beside the model, if given. It may be a processor too.
        about: the card's arguments, as in `model_card`: base_model, datasets, results, license,
            example ...

    Raises:
        GraphAttentionError: the model is not patched, or only a part of it; or an argument is bad.
    """
    folder = Path(folder)
    # Refuse before anything is written.
    card = _own_card(model, repo_id, tokenizer=tokenizer, **about)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    save_example(about.get("example"), folder)
    card.save(folder / "README.md")
    return folder


def push_to_hub(
    model: PreTrainedModel,
    repo_id: str,
    *,
    private: bool | None = None,
    token: bool | str | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    commit_message: str | None = None,
    commit_description: str | None = None,
    tokenizer: Any = None,
    max_shard_size: int | str = "50GB",
    **about: Any,
) -> str:
    """Upload a patched model with its card and loading module; returns the commit's address.

    A patched model's own `model.push_to_hub(...)` is this function. The card replaces the
    repository's. The card's arguments are those of `model_card`; `tokenizer` and `max_shard_size`
    are those of `save_repository`; the others are those of transformers.
    """
    # Refuse before the repository is made.
    data: Any = _own_card(model, repo_id, tokenizer=tokenizer, **about).data
    if data.license is None and data.base_model is not None:
        about["license"] = license_of(data.base_model, fetch=True)
    api = HfApi(token=token)
    repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
    if revision is not None and not revision.startswith("refs/pr"):
        api.create_branch(repo_id, branch=revision, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        files = {"tokenizer": tokenizer, "max_shard_size": max_shard_size}
        save_repository(model, folder, repo_id, **files, **about)
        commit = api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            revision=revision,
            create_pr=create_pr,
            commit_message=commit_message or f"Upload {type(model).__name__}",
            commit_description=commit_description,
        )
    return commit


def _own_card(model: PreTrainedModel, repo_id: str, **about: Any) -> ModelCard:
    remedy = "Call merge_and_unload() first; or save the adapter and, beside it, save_filters."
    refuse_adapted(model, remedy)
    return model_card(model, repo_id, **about)
