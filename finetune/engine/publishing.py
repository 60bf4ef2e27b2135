"""`--push_to_hub`: what a run saved, with a card that says where its metrics come from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from huggingface_hub import CommitOperationAdd, EvalResult, HfApi
from huggingface_hub.utils import DEFAULT_IGNORE_PATTERNS, filter_repo_objects
from torch import Tensor

import hf_graphattn as ga
from finetune.engine.results import RESULTS
from finetune.engine.trainer import Trainer
from finetune.errors import Refused
from finetune.settings.groups import FILTER_RATE
from finetune.settings.schema import Run
from hf_graphattn.model.filters import is_adapted
from hf_graphattn.model.save import hub_id
from hf_graphattn.sharing import EXAMPLE_FILES, license_of, plain_card, save_example
from tasks import Task

# The hub's names of what a model does; labels are of a text or of an image.
OF_OBJECTIVES = {"lm": "text-generation", "ctc": "automatic-speech-recognition"}
# What training leaves beside the model, and TensorBoard's files.
NOT_PUSHED = ["step_*", "*.part", "*.lock", "eval_predictions*", "logs/*", "*events.out.*"]
NOT_PUSHED += ["*hparams.yml"]
ADAPTER = "adapter_config.json"


def repository(settings: Run[Any, Any]) -> str:
    """The repository to push to, which is made if need be; its name with the owner's.

    Raises:
        Refused: nothing can be pushed there.
    """
    name = settings.train.hub_model_id or Path(settings.train.output_dir).resolve().name
    with _refused(f"The repository {name!r} cannot be pushed to; log in with `hf auth login`"):
        private = settings.train.hub_private_repo
        return HfApi().create_repo(name, exist_ok=True, private=private).repo_id


def push(trainer: Trainer, processor: Any, results: Mapping[str, Any]) -> str | None:
    """Upload the run's folder with its card in one commit; returns the address.

    All processes make the card, since a model may be spread over them; only one asks the hub.

    Raises:
        Refused: that fails; the folder is whole.
    """
    settings, is_main = trainer.settings, trainer.accelerator.is_main_process
    model = trainer.accelerator.unwrap_model(trainer.model)
    (facts,) = broadcast_object_list([_facts(trainer, results) if is_main else {}])
    example, card = trainer.example if settings.train.hub_example else None, None
    if isinstance(example, Tensor):
        example = processor.decode(example)
    if ga.is_patched(model):
        card = ga.model_card(model, tokenizer=processor, example=example, **facts)
    elif not is_adapted(model):  # of a plain adapter PEFT writes one
        example, card = None, plain_card(model, **facts)
    if not is_main:
        return None
    for name in EXAMPLE_FILES.values():  # of an earlier push
        (trainer.folder / name).unlink(missing_ok=True)
    if card is not None:
        save_example(example, trainer.folder)
        card.save(trainer.folder / "README.md")
    message = f"{trainer.task.name}: {settings.filter.variant}"
    return upload(trainer.folder, facts["repo_id"], message)


def upload(folder: str | Path, repo_id: str, message: str = "A run") -> str:
    """Upload what a run saved, as it is, in one commit; returns its address.

    Raises:
        Refused: that fails.
    """
    code = f"from finetune.engine.publishing import upload; upload({str(folder)!r}, {repo_id!r})"
    with _refused(f'{folder} is whole, but could not be pushed (`python -c "{code}"` will)'):
        return HfApi().create_commit(repo_id, additions(Path(folder)), commit_message=message)


def additions(folder: Path) -> list[CommitOperationAdd]:
    """The files to push; of a path on this machine they have only its end: ``.../name``."""
    names = (p.relative_to(folder).as_posix() for p in sorted(folder.rglob("*")) if p.is_file())
    pushed = filter_repo_objects(names, ignore_patterns=[*NOT_PUSHED, *DEFAULT_IGNORE_PATTERNS])
    contents: dict[str, Path | bytes] = {name: folder / name for name in pushed}
    for name in {RESULTS, ADAPTER} & set(contents):
        values = json.loads((folder / name).read_text("utf-8"))
        contents[name] = (json.dumps(_without_paths(values), indent=2) + "\n").encode()
        base = values.get("base_model_name_or_path")
        if base and "README.md" in contents:  # PEFT's card names it too
            card = (folder / "README.md").read_text("utf-8")
            contents["README.md"] = card.replace(base, _without_paths(base)).encode()
    return [CommitOperationAdd(name, content) for name, content in contents.items()]


def evaluations(
    task: Task, settings: Run[Any, Any], results: Mapping[str, Any]
) -> Iterator[EvalResult]:
    """One for each number of the run's final evaluation, with the split that it was measured on."""
    labelled = "image-classification" if task.image_column else "text-classification"
    # Longer suffixes first, since every key ends in an empty one.
    splits = sorted(task.validation_splits, key=lambda split: -len(split.key_suffix))
    for key in results["greater_is_better"]:  # a metric each; times are none
        split = next(split for split in splits if key.endswith(split.key_suffix))
        if isinstance(results.get(key), float):
            yield EvalResult(
                task_type=OF_OBJECTIVES.get(task.objective, labelled),
                dataset_type=_dataset(settings, task) or task.name,
                dataset_name=task.name,
                dataset_config=task.dataset_config,
                dataset_split=split.name,
                metric_type=key.removeprefix("eval_").removesuffix(split.key_suffix),
                metric_value=results[key],
            )


def _facts(trainer: Trainer, results: Mapping[str, Any]) -> dict[str, Any]:
    """What a card states of the run: its repository, license, data, metrics and settings."""
    settings, task, train = trainer.settings, trainer.task, trainer.settings.train
    base, data = settings.model.model_name_or_path, _dataset(settings, task)
    training = {f.name: getattr(train, f.name) for f in fields(train) if f.compare}
    if train.max_train_steps is not None:  # instead of epochs
        training["num_train_epochs"] = None
    training |= {"peft": settings.filter.peft, FILTER_RATE: results["settings"][FILTER_RATE]}
    training |= {"rows": results.get("train_samples"), "updates": results.get("steps")}
    return {
        "repo_id": repository(settings),
        "license": train.license or (base and license_of(base, fetch=True)) or None,
        "base_model": hub_id(base),
        "datasets": [] if data is None else [data],
        "results": list(evaluations(task, settings, results)),
        "training": {name: value for name, value in training.items() if value is not None},
    }


def _dataset(settings: Run[Any, Any], task: Task) -> str | None:
    return hub_id(settings.data.dataset_name or task.dataset_name)


def _without_paths(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_paths(item) for item in value]
    if isinstance(value, dict):
        hidden: dict[str, Any] = {}
        for key, item in value.items():
            name = _without_paths(key)
            # Two files of different folders may have one name.
            name = f"{name} ({len(hidden) + 1})" if name in hidden else name
            hidden[name] = _without_paths(item)
        return hidden
    if not isinstance(value, str) or "/" not in value:
        return value
    is_here = value.startswith(("/", ".", "~")) or os.path.lexists(value)
    return f".../{Path(value).name}" if is_here else value


@contextmanager
def _refused(sentence: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of whichever client huggingface_hub has
        raise Refused(f"{sentence}: {error}") from error
