"""Tokenizer, configuration and model, of a checkpoint or untrained, with its labels, patched."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
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
from finetune.settings.schema import Settings
from hf_graphattn.loading.checkpoints import SAVE_ONE, is_made_up
from hf_graphattn.model.parallel import whole
from tasks import Task
from tasks.refusals import reason

logger = logging.getLogger(__name__)  # of other processes than the main one errors alone are shown
NAMED = 4  # modules that a line names
CLASSIFIERS = (
    "ForSequenceClassification",
    "ForImageClassification",
    "ForImageClassificationWithTeacher",
)


def pretrained(kind: Any, name: str | None, arguments: ModelSource, **options: Any) -> Any:
    """What an Auto class reads of this name: a configuration, a tokenizer, what makes images ...

    Where it is the model's own it is of the revision asked for, and may bring code of its own if
    that was allowed. It is kept in the cache asked for.

    Raises ``Refused`` if there is no such thing.
    """
    where = arguments.hub()
    is_own = name == arguments.origin
    if not is_own:
        where = {**where, "trust_remote_code": False}
        where.pop("revision", None)
    flag = next((each for each, value in vars(arguments).items() if value == name), "name")
    try:
        found = kind.from_pretrained(name, **where, **options)
    except (OSError, ValueError) as error:
        allowed = f"a hub id that can be reached, or a folder, that {kind.__name__} can read"
        remedy = f"{near(name or '') or 'Check it. '}transformers said: {reason(error)}"
        if "trust_remote_code" in str(error):
            own, others = "give --trust_remote_code to run that.", "only the model's own is run."
            remedy = f"It brings code of its own: {own if is_own else others}"
        raise refusal(flag, name, allowed, remedy) from error
    if isinstance(found, PreTrainedTokenizerBase) and is_made_up(found):
        allowed = "with a tokenizer, instead of which transformers makes up one without words"
        raise refusal(flag, name, allowed, f"{SAVE_ONE} Or name it: --tokenizer_name.")
    return found


def load_tokenizer(arguments: ModelArguments) -> PreTrainedTokenizerBase:
    """The model's tokenizer, with a padding token (GPT-2 has none: its end of text serves)."""
    name = arguments.tokenizer_name or arguments.model_name_or_path
    tokenizer = pretrained(AutoTokenizer, name, arguments)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_config(
    arguments: ModelArguments, task: Task, pad_token_id: int | None
) -> tuple[PreTrainedConfig, list[int]]:
    """The checkpoint's config with the task's labels, and the label order (`labelled`)."""
    config = pretrained(AutoConfig, arguments.model_name_or_path, arguments)
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = pad_token_id
    mismatched = arguments.ignore_mismatched_sizes
    return labelled(config, task, arguments.model_name_or_path, ignore_mismatched_sizes=mismatched)


def labelled(
    config: PreTrainedConfig, task: Task, path: str | None, *, ignore_mismatched_sizes: bool
) -> tuple[PreTrainedConfig, list[int]]:
    """The config with the task's labels, and the label order. ``path`` is the checkpoint, if any.

    ``label_order[i]`` is the model's number of the task's label i: a checkpoint that was trained on
    the same label names in another order keeps its own. The order is empty for scores.

    Raises ``ValueError`` if the checkpoint's head has another number of labels, unless
    ``ignore_mismatched_sizes``.
    """
    own_labels = [str(name) for _, name in sorted((config.id2label or {}).items())]
    has_head = path is not None and any(
        name.endswith(CLASSIFIERS) for name in config.architectures or []
    )
    count = len(task.label_names) or 1
    if has_head and len(own_labels) != count and not ignore_mismatched_sizes:
        raise refusal(
            "model_name_or_path",
            path,
            f"a model with {count} label(s) for task {task.name}; it has {len(own_labels)}: "
            f"{', '.join(own_labels)}",
            "Choose another, or give ignore_mismatched_sizes for a new head.",
        )
    if task.objective == "regress":
        config.num_labels, config.problem_type = 1, "regression"
        return config, []
    order = _label_order(task, own_labels) if has_head else list(range(count))
    config.id2label = {order[i]: name for i, name in enumerate(task.label_names)}
    config.label2id = {name: number for number, name in config.id2label.items()}
    config.problem_type = "single_label_classification"
    return config, order


def untrained_config(arguments: StartArguments, **known: Any) -> PreTrainedConfig:
    """The configuration of an untrained model: with what is known, then what overrides it.

    Raises ``ValueError`` for an unknown type or override, or a configuration that is patched.
    """
    if arguments.config_name is not None:
        config = pretrained(AutoConfig, arguments.config_name, arguments)
    elif arguments.model_type is not None and arguments.model_type in CONFIG_MAPPING:
        config = CONFIG_MAPPING[arguments.model_type]()
    else:
        raise refusal(
            "model_type",
            arguments.model_type,
            f"a type that transformers has: gpt2 ... ({len(CONFIG_MAPPING.keys())} of them)",
            "Choose one, or give config_name.",
        )
    if getattr(config, "graph_attn", None) is not None:
        raise refusal(
            "config_name",
            arguments.config_name,
            f"a plain configuration; this one is patched with {config.graph_attn.get('variant')}",
            "Give that folder as model_name_or_path, or a plain configuration and a variant.",
        )
    for name, value in known.items():
        setattr(config, name, value)
    if arguments.config_overrides is not None:
        _override(config, arguments.config_overrides)
    return config


def _override(config: PreTrainedConfig, overrides: str) -> None:
    changes = [change.partition("=") for change in overrides.split(",")]
    try:
        for name, sign, value in changes:
            if sign and getattr(config, name, "") is None:  # transformers' own cannot set these
                setattr(config, name, _scalar(value))
            else:
                config.update_from_string(name + sign + value)
    except (ValueError, TypeError, StrictDataclassError) as error:
        known = {
            name
            for name, value in config.to_dict().items()
            if value is None or isinstance(value, int | float | str)
        }
        raise refusal(
            "config_overrides",
            overrides,
            f"name=value, parted by commas, of {', '.join(sorted(known))}",
            f"transformers said: {reason(error)}.",
        ) from error


def _scalar(text: str) -> Any:
    """The number, the truth or the word that a text is; YAML alone takes 1e-5 for a word."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return {"true": True, "false": False}.get(text.lower(), text)


def _label_order(task: Task, own_labels: list[str]) -> list[int]:
    own, wanted = own_labels, list(task.label_names)
    if sorted(own) != sorted(wanted):
        own, wanted = ([name.lower() for name in names] for names in (own, wanted))
    if sorted(own) == sorted(wanted) and len(set(own)) == len(own):
        return [own.index(name) for name in wanted]
    if len(own) == len(wanted) and own != [f"label_{i}" for i in range(len(own))]:
        logger.warning(
            f"The model's labels are {', '.join(own_labels)}, those of task {task.name} "
            f"{', '.join(task.label_names)}: taken to be in the same order."
        )
    return list(range(len(wanted)))


def load_model(
    settings: Settings[Any, Any],
    config: PreTrainedConfig,
    auto_class: Any = AutoModelForSequenceClassification,
    **options: Any,
) -> PreTrainedModel:
    """The model with the head of ``auto_class``, in float32, patched with the chosen variant.

    Its weights are the checkpoint's, read with these options, or untrained where none is named. A
    folder that holds a patched model keeps its filter: ``variant`` must then be none.
    """
    path, backend = settings.model.model_name_or_path, settings.filter.backend
    # Master weights: transformers would keep the checkpoint's number format, and a small step on a
    # bfloat16 weight is lost.
    where = settings.model.hub()
    if settings.variant is not None:
        where["trust_remote_code"] = False  # it was given for metrics
    options = {} if path is None else options | where
    options |= {"config": config, "dtype": torch.float32}
    if getattr(config, "graph_attn", None) is not None:
        if settings.variant is not None:
            raise refusal(
                "variant",
                settings.filter.variant,
                f"none, since {path} is patched with {config.graph_attn.get('variant')} already",
                "Drop the flag, or start from a plain checkpoint.",
            )
        if options.pop("trust_remote_code") and not settings.hub_metrics():
            raise refusal(
                "trust_remote_code",
                True,
                f"False with {path}, which is patched: its class is transformers' own",
                "Drop the flag.",
            )
        return _read(ga.from_pretrained, path, auto_class=auto_class, backend=backend, **options)
    if settings.variant is None and backend != "auto":
        options["attn_implementation"] = backend
    if path is None:
        if hasattr(config, "auto_map"):  # it names code of the repository, of the same revision
            options |= {"trust_remote_code": where["trust_remote_code"]}
            options |= {"code_revision": where["revision"]} if "revision" in where else {}
        model = auto_class.from_config(**options)
    else:
        model = _read(auto_class.from_pretrained, path, **options)
    if settings.variant is None:
        return model
    return ga.patch_model(model, settings.variant, backend=backend, check=True)


def _read(load: Any, path: str, **options: Any) -> PreTrainedModel:
    """The model, with a line about its weights that the checkpoint lacks, and about the unused."""
    try:
        with _without_table():
            model, told = load(path, output_loading_info=True, **options)
    except OSError as error:
        allowed = "a hub id that can be reached, or a folder, with weights"
        said = f"{near(path) or 'Check it. '}transformers said: {reason(error)}"
        raise refusal("model_name_or_path", path, allowed, said) from error
    count = len(model.state_dict())
    kinds = {
        f"of {count} weights are new, since {path} lacks them": told["missing_keys"],
        f"of {count} weights are new, since {path} has them in other shapes": [
            name for name, *_ in told["mismatched_keys"]
        ],
        f"weights of {path} are not used": told["unexpected_keys"],
    }
    for what, names in kinds.items():
        if names:
            logger.info(f"{len(names)} {what}: {_some(names)}")
    return model


@contextmanager
def _without_table() -> Iterator[None]:
    """Without transformers' table of a checkpoint's weights, unless an error refers to it."""
    tables: list[logging.LogRecord] = []

    def is_no_table(record: logging.LogRecord) -> bool:
        is_table = "LOAD REPORT" in record.getMessage()
        tables.extend([record] * is_table)
        return not is_table

    theirs = logging.getLogger("transformers.modeling_utils")
    theirs.addFilter(is_no_table)
    try:
        yield
    except Exception:
        for table in tables:
            theirs.callHandlers(table)
        raise
    finally:
        theirs.removeFilter(is_no_table)


def _some(weights: Iterable[str]) -> str:
    """The modules that the weights are of, the first few by name."""
    names = list(dict.fromkeys(weight.rpartition(".")[0] or weight for weight in sorted(weights)))
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def trained_scalars(model: nn.Module) -> list[Tensor]:
    """A copy of every learned scalar of the filters, as it is now."""
    found = [parameter for _, parameter in ga.filter_parameters(model)]
    # Under LoRA each filter is there twice: as it was, frozen, and as it is trained.
    trained = [p for p in found if p.requires_grad] or found
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
