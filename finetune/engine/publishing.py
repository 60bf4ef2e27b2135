"""`--push_to_hub`: what a run saved, with a card that says where its metrics come from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, HfApi

import hf_graphattn as ga
from finetune.settings.schema import Settings
from hf_graphattn.adapters import is_adapted
from hf_graphattn.card import hub_id
from tasks import Task

# The hub's words for what a model does; labels are of a text or of an image.
OF_OBJECTIVES = {"lm": "text-generation", "ctc": "automatic-speech-recognition"}
# What training leaves beside the model, and what is of no use to those who load it.
NOT_PUSHED = ["step_*", "*.part", "*.lock", "eval_predictions*", "logs/*", "*events.out.*"]


def push(
    model: Any, folder: Path, task: Task, settings: Settings[Any, Any], results: Mapping
) -> str:
    """Upload ``folder`` in one commit; returns its address. The repository is made if need be.

    A patched model's folder gets its card first.
    """
    api = HfApi()
    name = settings.train.hub_model_id or folder.resolve().name
    repo_id = api.create_repo(name, exist_ok=True, private=settings.train.hub_private_repo).repo_id
    data = hub_id(settings.data.dataset_name or task.dataset_name)
    if ga.is_patched(model) and not is_adapted(model):  # an adapter has PEFT's card
        card = ga.model_card(
            model,
            repo_id,
            base_model=hub_id(settings.model.model_name_or_path),
            datasets=[] if data is None else [data],
            results=list(evaluations(task, settings, results)),
        )
        card.save(folder / "README.md")
    return api.upload_folder(
        repo_id=repo_id,
        folder_path=folder,
        ignore_patterns=NOT_PUSHED,
        commit_message=f"{task.name}: {settings.filter.variant}",
    )


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
                dataset_type=settings.data.dataset_name or task.dataset_name or task.name,
                dataset_name=task.name,
                dataset_config=task.dataset_config,
                dataset_split=split.name,
                metric_type=key.removeprefix("eval_").removesuffix(split.key_suffix),
                metric_value=value,
            )
        )
    return found
