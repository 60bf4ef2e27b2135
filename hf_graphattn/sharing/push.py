"""A patched model as a repository that explains itself: weights, card, and a loading module.

`save_pretrained` writes the folder; what is added is the card. All of it goes up in one commit: an
interrupted push leaves the repository as it was.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, ModelCard
from transformers import PreTrainedModel

from hf_graphattn.errors import path_text
from hf_graphattn.model.adapters import refuse_adapted

from .card import license_of, model_card, save_example


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
    folder = Path(path_text("folder", folder))
    # Refuse before anything is written.
    card = _card(model, repo_id, tokenizer=tokenizer, **about)
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
    data: Any = _card(model, repo_id, tokenizer=tokenizer, **about).data
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


def _card(model: PreTrainedModel, repo_id: str, **about: Any) -> ModelCard:
    remedy = "Call merge_and_unload() first; or save the adapter and, beside it, save_filters."
    refuse_adapted(model, remedy)
    return model_card(model, repo_id, **about)
