"""`--push_to_hub`: what a run saved, with a card that says where its metrics come from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, EvalResult, HfApi, ModelCard, get_token
from huggingface_hub.utils import DEFAULT_IGNORE_PATTERNS, filter_repo_objects

import hf_graphattn as ga
import tasks
from finetune.engine.results import RESULTS
from finetune.errors import Refused, refusal
from finetune.settings.groups import FILTER_RATE
from finetune.settings.schema import Settings
from hf_graphattn.model.adapters import is_adapted
from hf_graphattn.model.save import checked_id, hub_id
from hf_graphattn.sharing.card import EXAMPLE_FILES, license_of, plain_card, save_example
from tasks import Task

# The hub's words for what a model does; labels are of a text or of an image.
OF_OBJECTIVES = {"lm": "text-generation", "ctc": "automatic-speech-recognition"}
# What training leaves beside the model, and what is of no use to those who load it.
NOT_PUSHED = ["step_*", "*.part", "*.lock", "eval_predictions*", "logs/*", "*events.out.*"]
NOT_PUSHED += ["*hparams.yml"]  # TensorBoard's, with all settings
ADAPTER = "adapter_config.json"


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


@dataclass(frozen=True)
class Target:
    """What only one process asks the hub for.

    Attributes:
        repo_id: the repository that is pushed to, with its owner's name.
        license: what the card states.
        shows_row: whether the card may show a row that was evaluated on.
    """

    repo_id: str
    license: str | None
    shows_row: bool


def target(settings: Settings[Any, Any], task: Task) -> Target:
    """Where a run is pushed to, and what the hub says of its model and data.

    Raises ``Refused`` if nothing can be pushed there.
    """
    base = settings.model.model_name_or_path
    license = settings.train.license or (base and license_of(base, fetch=True)) or None
    return Target(repository(settings), license, shows_row(settings, task))


def shows_row(settings: Settings[Any, Any], task: Task) -> bool:
    """Whether a row may be shown: as ``hub_example`` says, else if anyone may read the data."""
    if settings.train.hub_example is not None:
        return settings.train.hub_example
    values, names = settings.flat(), {f.name for f in fields(settings.data)} & settings.paths()
    paths = (values[name] for name in names)
    if any(isinstance(path, str) and os.path.exists(path) for path in paths):
        return False
    name = settings.data.dataset_name or task.dataset_name
    if name is None:  # rows that code makes: the project's own
        return getattr(task.builder, "__module__", "").partition(".")[0] == tasks.__name__
    with suppress(Exception):  # of whichever client: private, gone, or out of reach
        return not HfApi().dataset_info(name, token=False).gated
    return False


def card_of(
    model: Any,
    to: Target,
    task: Task,
    settings: Settings[Any, Any],
    results: Mapping[str, Any],
    processor: Any = None,
    example: Any = None,
) -> ModelCard | None:
    """A model's card; None of a plain adapter, of which PEFT writes one.

    Where the model is spread over processes, each of them must call this. ``example`` is an input
    for a patched model's card, and ``processor`` makes the model's inputs.
    """
    data = hub_id(settings.data.dataset_name or task.dataset_name)
    told: dict[str, Any] = {
        "base_model": hub_id(settings.model.model_name_or_path),
        "datasets": [] if data is None else [data],
        "results": list(evaluations(task, settings, results)),
        "license": to.license,
        "training": training(settings, results),
    }
    if ga.is_patched(model):
        return ga.model_card(model, to.repo_id, tokenizer=processor, example=example, **told)
    return None if is_adapted(model) else plain_card(model, to.repo_id, **told)


def push(
    folder: Path,
    repo_id: str,
    message: str,
    card: ModelCard | None = None,
    example: Any = None,
) -> str:
    """Upload ``folder`` in one commit with this message; returns its address.

    The card, if any, is put there before, instead of PEFT's, with the file of its example; that
    of an earlier push is removed.

    Raises ``Refused`` if that fails; the folder is whole.
    """
    for name in EXAMPLE_FILES.values():
        (folder / name).unlink(missing_ok=True)
    if card is not None:
        save_example(example, folder)
        card.save(folder / "README.md")
    return upload(folder, repo_id, message)


def upload(folder: str | Path, repo_id: str, message: str = "A run") -> str:
    """Upload what a run saved, as it is, in one commit; returns its address.

    Raises ``Refused`` if that fails.
    """
    code = f"from finetune.engine.publishing import upload; upload({str(folder)!r}, {repo_id!r})"
    with _told(f'{folder} is whole, but could not be pushed (`python -c "{code}"` will)'):
        return HfApi().create_commit(repo_id, additions(Path(folder)), commit_message=message)


def additions(folder: Path) -> list[CommitOperationAdd]:
    """The files to push; of a path on this machine they tell only how it ends: ``.../name``."""
    names = (p.relative_to(folder).as_posix() for p in sorted(folder.rglob("*")) if p.is_file())
    pushed = filter_repo_objects(names, ignore_patterns=[*NOT_PUSHED, *DEFAULT_IGNORE_PATTERNS])
    found: dict[str, Path | bytes] = {name: folder / name for name in pushed}
    for name in {RESULTS, ADAPTER} & set(found):
        values = json.loads((folder / name).read_text("utf-8"))
        found[name] = (json.dumps(_without_paths(values), indent=2) + "\n").encode()
        base = values.get("base_model_name_or_path")
        if base and "README.md" in found:  # PEFT's card names it too
            card = (folder / "README.md").read_text("utf-8")
            found["README.md"] = card.replace(base, _without_paths(base)).encode()
    return [CommitOperationAdd(name, content) for name, content in found.items()]


def _without_paths(value: Any) -> Any:
    if isinstance(value, dict):
        found: dict[str, Any] = {}
        for key, item in value.items():
            shown = _without_paths(key)
            # Two files of different folders may have one name.
            shown = f"{shown} ({len(found) + 1})" if shown in found else shown
            found[shown] = _without_paths(item)
        return found
    if isinstance(value, list):
        return [_without_paths(item) for item in value]
    if not isinstance(value, str) or not {"/", os.sep} & set(value):
        return value
    path = Path(value).expanduser()
    is_here = path.is_absolute() or value.startswith(".") or os.path.lexists(path)
    return f".../{path.name}" if is_here else value


@contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of whichever client huggingface_hub has
        raise Refused(f"{what}: {error}") from error


def training(settings: Settings[Any, Any], results: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that training depended on, with how many rows and updates, for the card."""
    train = settings.train
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
