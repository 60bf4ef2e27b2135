"""Tokenizer, configuration and model, of a checkpoint or untrained, with its labels, patched."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

import hf_graphattn as ga
from finetune.errors import near, refusal
from finetune.settings.groups import ModelArguments, ModelSource, StartArguments
from finetune.settings.schema import Run
from hf_graphattn.loading import SAVE_ONE, is_made_up
from hf_graphattn.model.parallel import whole
from tasks import Task
from tasks.refusals import reason

logger = logging.getLogger(__name__)
CLASSIFIERS = ("ForSequenceClassification", "ForImageClassification", "WithTeacher")


def pretrained(kind: Any, name: str | None, arguments: ModelSource, **options: Any) -> Any:
    """What an Auto class reads of this name: a configuration, a tokenizer, an image processor ...

    The model's own is read at the chosen revision, and may run the repository's code if that was
    allowed; that of another repository never runs code.

    Raises:
        Refused: there is no such thing.
    """
    where = arguments.hub()
    if name != arguments.origin:
        where = {**where, "trust_remote_code": False}
        where.pop("revision", None)
    flag = next((each for each, value in vars(arguments).items() if value == name), "name")
    try:
        loaded = kind.from_pretrained(name, **where, **options)
    except (OSError, ValueError) as error:
        allowed = f"a hub id that can be reached, or a folder, that {kind.__name__} can read"
        remedy = f"{near(name or '')}{reason(error)}"
        if "trust_remote_code" in str(error):
            remedy = "It has code of its own, which --trust_remote_code runs for the model alone."
        raise refusal(flag, name, allowed, remedy) from error
    if isinstance(loaded, PreTrainedTokenizerBase) and is_made_up(loaded):
        allowed = "with a tokenizer, instead of which transformers makes one without a vocabulary"
        raise refusal(flag, name, allowed, f"{SAVE_ONE} Or name it: --tokenizer_name.")
    return loaded


def load_tokenizer(arguments: ModelArguments) -> PreTrainedTokenizerBase:
    """The model's tokenizer, with a padding token (GPT-2 has none: its end of text serves)."""
    name = arguments.tokenizer_name or arguments.model_name_or_path
    tokenizer = pretrained(AutoTokenizer, name, arguments)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_config(
    arguments: ModelArguments, task: Task, tokenizer: PreTrainedTokenizerBase
) -> tuple[PreTrainedConfig, list[int]]:
    """The checkpoint's config with the task's labels, and the label order (`labelled`).

    Raises:
        ValueError: a head of an encoder-decoder is to read the end token of rows that have none.
    """
    name = arguments.model_name_or_path
    config = pretrained(AutoConfig, name, arguments)
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = tokenizer.pad_token_id
    end = getattr(config, "eos_token_id", None)
    if config.is_encoder_decoder and end not in tokenizer("")["input_ids"]:
        allowed = f"one that ends each text with token {end}, whose hidden state the head reads"
        name = arguments.tokenizer_name or name
        raise refusal("tokenizer_name", name, allowed, "Choose the model's own tokenizer.")
    return labelled(config, task, name)


def labelled(
    config: PreTrainedConfig, task: Task, path: str | None
) -> tuple[PreTrainedConfig, list[int]]:
    """The config with the task's labels, and the label order. ``path`` is the checkpoint, if any.

    ``label_order[i]`` is the model's number of the task's label i: a checkpoint that was trained on
    the same label names in another order keeps its own. The order is empty for scores.
    """
    if task.objective == "regress":
        config.num_labels, config.problem_type = 1, "regression"
        return config, []
    order = list(range(len(task.label_names)))
    if path is not None and any(x.endswith(CLASSIFIERS) for x in config.architectures or []):
        order = _label_order(task, [str(x) for _, x in sorted((config.id2label or {}).items())])
    config.id2label = {order[i]: name for i, name in enumerate(task.label_names)}
    config.label2id = {name: number for number, name in config.id2label.items()}
    config.problem_type = "single_label_classification"
    return config, order


def untrained_config(arguments: StartArguments, **known: Any) -> PreTrainedConfig:
    """The configuration of an untrained model: with what is known, then what overrides it.

    Raises:
        ValueError: an unknown type or override, or a configuration that is patched.
    """
    if arguments.config_name is not None:
        config = pretrained(AutoConfig, arguments.config_name, arguments)
    elif arguments.model_type is not None and arguments.model_type in CONFIG_MAPPING:
        config = CONFIG_MAPPING[arguments.model_type]()
    else:
        allowed = "a type that transformers has, such as gpt2"
        raise refusal("model_type", arguments.model_type, allowed, "Or give config_name.")
    if getattr(config, "graph_attn", None) is not None:
        allowed = f"a plain one; this one is patched with {config.graph_attn.get('variant')}"
        remedy = "Give that folder as model_name_or_path, or a plain configuration and a variant."
        raise refusal("config_name", arguments.config_name, allowed, remedy)
    for name, value in known.items():
        setattr(config, name, value)
    if arguments.config_overrides is not None:
        _override(config, arguments.config_overrides)
    return config


def _override(config: PreTrainedConfig, overrides: str) -> None:
    try:
        for change in overrides.split(","):
            name, value = change.split("=")
            getattr(config, name)
            with suppress(ValueError):  # else it is a text
                value = json.loads(value.lower())
            setattr(config, name, value)
    except (AttributeError, ValueError, TypeError, StrictDataclassError) as error:
        allowed = "name=value, parted by commas, of the configuration"
        raise refusal("config_overrides", overrides, allowed, reason(error)) from error


def _label_order(task: Task, labels: list[str]) -> list[int]:
    model, wanted = labels, list(task.label_names)
    if sorted(model) != sorted(wanted):
        model, wanted = ([name.lower() for name in names] for names in (model, wanted))
    if sorted(model) == sorted(wanted) and len(set(model)) == len(model):
        return [model.index(name) for name in wanted]
    if len(model) == len(wanted) and model != [f"label_{i}" for i in range(len(model))]:
        logger.warning(
            f"The model's labels are {', '.join(labels)}, those of task {task.name} "
            f"{', '.join(task.label_names)}: taken to be in the same order."
        )
    return list(range(len(wanted)))


def load_model(
    settings: Run[Any, Any],
    config: PreTrainedConfig,
    auto_class: Any = AutoModelForSequenceClassification,
    **options: Any,
) -> PreTrainedModel:
    """The model with the head of ``auto_class``, in float32, patched with the chosen variant.

    Its weights are the checkpoint's, read with these options, or untrained where none is named. A
    folder that holds a patched model keeps its filter: ``variant`` must then be none.
    """
    path, backend = settings.model.model_name_or_path, settings.filter.backend
    where = settings.model.hub()
    if path is not None and getattr(settings.model, "ignore_mismatched_sizes", False):
        options["ignore_mismatched_sizes"] = True
    if settings.variant is not None:
        where["trust_remote_code"] = False  # it was given for metrics
    # Master weights: transformers would keep the checkpoint's number format, and a small step on a
    # bfloat16 weight is lost.
    known = {"config": config, "dtype": torch.float32}
    if getattr(config, "graph_attn", None) is not None:
        if settings.variant is not None:
            allowed = f"none, since {path} is patched with {config.graph_attn.get('variant')}"
            remedy = "Drop the flag, or start from a plain checkpoint."
            raise refusal("variant", settings.filter.variant, allowed, remedy)
        where.pop("trust_remote_code")  # its class is transformers' own
        options |= known | where
        return _read(ga.from_pretrained, path, auto_class=auto_class, backend=backend, **options)
    if settings.variant is None and backend != "auto":
        known["attn_implementation"] = backend
    if path is not None:
        model = _read(auto_class.from_pretrained, path, **options | known | where)
    else:
        if hasattr(config, "auto_map"):  # it names code of the repository, of the same revision
            known["trust_remote_code"] = where["trust_remote_code"]
            known |= {"code_revision": where["revision"]} if "revision" in where else {}
        model = auto_class.from_config(**known)
    if settings.variant is None:
        return model
    return ga.patch_model(model, settings.variant, backend=backend, check=True)


def _read(load: Any, path: str, **options: Any) -> PreTrainedModel:
    try:
        return load(path, **options)
    except ga.GraphAttentionError:
        raise
    # RuntimeError: a head of another size; ValueError: a model of another kind.
    except (OSError, RuntimeError, ValueError) as error:
        allowed = "a hub id that can be reached, or a folder, with weights that fit"
        raise refusal("model_name_or_path", path, allowed, reason(error)) from error


def trained_scalars(model: nn.Module) -> list[Tensor]:
    """A copy of every learned scalar of the filters, as it is now."""
    scalars = [parameter for _, parameter in ga.filter_parameters(model)]
    # Under LoRA each filter is there twice: as it was, frozen, and as it is trained.
    trained = [p for p in scalars if p.requires_grad] or scalars
    return [whole(parameter.detach()).cpu().clone() for parameter in trained]


def filter_statistics(
    model: nn.Module, start: Sequence[Tensor] | None = None
) -> dict[str, int | float | None]:
    """Number of learned filter scalars, and the largest absolute value (None without any).

    With ``start``, where they were before training, also how far the nearest and the farthest have
    moved.
    """
    scalars = trained_scalars(model)
    moved = [(now - then).abs() for now, then in zip(scalars, start or (), strict=False)]
    return {
        "filter_scalars": sum(scalar.numel() for scalar in scalars),
        "filter_max_abs": max((float(scalar.abs().max()) for scalar in scalars), default=None),
        "filter_min_moved": min((float(each.min()) for each in moved), default=None),
        "filter_max_moved": max((float(each.max()) for each in moved), default=None),
    }
