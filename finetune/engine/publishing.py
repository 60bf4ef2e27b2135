"""`--push_to_hub`: what a run saved, with a card that says where its metrics come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, HfApi, ModelCard, get_token
from torch import Tensor

import hf_graphattn as ga
from finetune.errors import Refused, refusal
from finetune.settings.groups import FILTER_RATE
from finetune.settings.schema import Settings
from hf_graphattn.card import checked_id, hub_id, license_of, plain_card
from hf_graphattn.usage import save_example
from tasks import Task

# The hub's words for what a model does; labels are of a text or of an image.
OF_OBJECTIVES = {"lm": "text-generation", "ctc": "automatic-speech-recognition"}
# What training leaves beside the model, and what is of no use to those who load it.
NOT_PUSHED = ["step_*", "*.part", "*.lock", "eval_predictions*", "logs/*", "*events.out.*"]


def repository(settings: Settings[Any, Any]) -> str:
    """The repository to push to, which is made if need be; its name with the owner's.

    Raises ``Refused`` if nothing can be pushed there.
    """
    name = settings.train.hub_model_id or Path(settings.train.output_dir).resolve().name
    checked_id("hub_model_id" if settings.train.hub_model_id else "output_dir's name", name)
    if get_token() is None:
        remedy = "Log in with `hf auth login`, or set HF_TOKEN; or drop the flag."
        raise refusal("push_to_hub", True, "with a token of the hub; there is none here", remedy)
    with _told(f"The repository {name!r} cannot be pushed to"):
        private = settings.train.hub_private_repo
        return HfApi().create_repo(name, exist_ok=True, private=private).repo_id


def card_of(
    model: Any,
    repo_id: str,
    task: Task,
    settings: Settings[Any, Any],
    results: Mapping[str, Any],
    processor: Any = None,
    example: Any = None,
) -> ModelCard:
    """A model's card.

    Where the model is spread over processes, each of them must call this. ``example`` is an input
    for the card (`shown`), and ``processor`` makes the model's inputs.
    """
    base = settings.model.model_name_or_path
    data = hub_id(settings.data.dataset_name or task.dataset_name)
    told: dict[str, Any] = {
        "base_model": hub_id(base),
        "datasets": [] if data is None else [data],
        "results": list(evaluations(task, settings, results)),
        "license": settings.train.license or (base and license_of(base, fetch=True)) or None,
        "training": training(settings, results),
    }
    if not ga.is_patched(model):
        return plain_card(model, repo_id, **told)
    return ga.model_card(model, repo_id, tokenizer=processor, example=example, **told)


def shown(example: Any, settings: Settings[Any, Any], processor: Any) -> Any:
    """The input of an evaluation row (`Loaders`) that the card may show; else None.

    One's own files are for nobody else to see, unless ``hub_example`` says so.
    """
    values, names = settings.flat(), {f.name for f in fields(settings.data)} & settings.paths()
    paths = (values[name] for name in names)
    is_own = any(isinstance(path, str) and Path(path).exists() for path in paths)
    asked = settings.train.hub_example
    if not (not is_own if asked is None else asked):
        return None
    return processor.decode(example) if isinstance(example, Tensor) else example


def push(
    folder: Path,
    repo_id: str,
    message: str,
    card: ModelCard | None = None,
    example: Any = None,
) -> str:
    """Upload ``folder`` in one commit with this message; returns its address.

    The card, if any, is put there before, instead of PEFT's, with the file of its example.

    Raises ``Refused`` if that fails; the folder is whole.
    """
    if card is not None:
        save_example(example, folder)
        card.save(folder / "README.md")
    with _told(f"{folder} is whole, but could not be pushed (`hf upload {repo_id} {folder}` will)"):
        return HfApi().upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            ignore_patterns=NOT_PUSHED,
            commit_message=message,
        )


@contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of whichever client huggingface_hub has
        raise Refused(f"{what}: {error}") from error


def training(settings: Settings[Any, Any], results: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that training depended on, with how many rows and updates, for the card."""
    train = settings.train
    if train.do_eval_only:
        return {}
    values = {f.name: getattr(train, f.name) for f in fields(train) if f.compare}
    if train.max_train_steps is not None:  # instead of epochs
        values["num_train_epochs"] = None
    values |= {"peft": settings.filter.peft, FILTER_RATE: results["settings"][FILTER_RATE]}
    values |= {"rows": results.get("train_samples"), "updates": results.get("steps")}
    return {name: value for name, value in values.items() if value is not None}


def evaluations(
    task: Task, settings: Settings[Any, Any], results: Mapping[str, Any]
) -> list[EvalResult]:
    """One for each number of the run's final evaluation, with the split that it was measured on."""
    found = []
    labelled = "image-classification" if task.image_column else "text-classification"
    # Longer suffixes first, since every key ends in an empty one.
    splits = sorted(task.validation_splits, key=lambda split: -len(split.key_suffix))
    for key in results["greater_is_better"]:  # a metric each; times are none
        value = results.get(key)
        if not isinstance(value, float):
            continue
        split = next(split for split in splits if key.endswith(split.key_suffix))
        found.append(
            EvalResult(
                task_type=OF_OBJECTIVES.get(task.objective, labelled),
                dataset_type=hub_id(settings.data.dataset_name or task.dataset_name) or task.name,
                dataset_name=task.name,
                dataset_config=task.dataset_config,
                dataset_split=split.name,
                metric_type=key.removeprefix("eval_").removesuffix(split.key_suffix),
                metric_value=value,
            )
        )
    return found
