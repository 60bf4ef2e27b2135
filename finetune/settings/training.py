"""The flags of training: optimizer, length, checkpoints, early stopping."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from inspect import signature
from typing import Any, ClassVar, Literal

from finetune.errors import refusal
from finetune.settings.flags import Aliases, also, at_least, flag
from finetune.settings.output import OutputArguments

EACH_EPOCH, LAST = "epoch", "last"


def _saving(save_strategy: str | None = None, save_steps: str | None = None) -> str | None:
    """`checkpointing_steps`, as transformers' flags say it."""
    if save_strategy in (None, "steps"):
        if save_steps is None:
            remedy = "Say after how many updates."
            raise refusal("save_strategy", save_strategy, "with save_steps", remedy)
        return save_steps
    if save_steps is not None:
        beside = f"None beside save_strategy {save_strategy}"
        raise refusal("save_steps", save_steps, beside, "Drop one of the two.")
    return EACH_EPOCH if save_strategy == EACH_EPOCH else None


def _only_evaluates(do_train: bool | None = None, do_eval: bool | None = None) -> bool | None:
    """`do_eval_only`, as transformers' flags say it: what is trained is evaluated in any case."""
    if do_eval is False:
        remedy = "Drop the flag; --max_eval_samples makes evaluations short."
        raise refusal("do_eval", do_eval, "True, since every run evaluates", remedy)
    return None if do_train else True


def _precision(fp16: bool | None = None, bf16: bool | None = None) -> str:
    """`mixed_precision`, as transformers' flags say it."""
    if fp16 and bf16:
        raise refusal("fp16, bf16", (True, True), "one of them", "Drop one of the two.")
    return "fp16" if fp16 else "bf16" if bf16 else "no"


@dataclass(kw_only=True)
class CheckpointArguments(OutputArguments):
    """When a run is saved, continued and stopped, and what it reports meanwhile."""

    TITLE: ClassVar[str] = "checkpoints and evaluation"

    recipe: str | None = flag(
        "YAML file of `flag: value`; flags on the command line win.", free=True
    )
    checkpointing_steps: str | None = flag(
        f"Save a checkpoint after every so many updates, or '{EACH_EPOCH}'.",
        free=True,
        aliases=Aliases(
            {"save_strategy": Literal["no", "steps", "epoch"], "save_steps": None}, _saving
        ),
    )
    resume_from_checkpoint: str | None = flag(
        f"Checkpoint to continue from, or '{LAST}': the newest in output_dir.", free=True
    )
    checkpoints_total_limit: int | None = flag(
        "Keep the newest so many checkpoints, and the best; default: all.",
        free=True,
        aliases=also("save_total_limit"),
    )
    eval_strategy: Literal["epoch", "steps"] | None = flag(
        "Evaluate at each epoch's end, or every eval_steps updates; default: steps where that is "
        "given, else epoch. The end of training is evaluated in any case.",
        free=True,  # eval_steps says the same
        aliases=also("evaluation_strategy"),
    )
    eval_steps: int | None = flag("Evaluate after every so many updates, not at epochs' ends.")
    early_stopping_patience: int | None = flag(
        "Stop after so many evaluations in a row without a better metric_for_best_model."
    )
    metric_for_best_model: str | None = flag("Which metric is best; default: the task's main one.")
    greater_is_better: bool | None = flag(
        "Whether more of that metric is better; default: as the metric itself says."
    )
    load_best_model_at_end: bool | None = flag(
        "Test and save the best evaluation's weights; default: with early_stopping_patience."
    )
    do_eval_only: bool = flag(
        "Evaluate the model as it is, without training; as do_eval without do_train.",
        False,
        free=True,
        aliases=Aliases({"do_train": bool, "do_eval": bool}, _only_evaluates),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "checkpoints_total_limit", "eval_steps", "early_stopping_patience")
        if self.do_eval_only and self.push_to_hub:
            remedy = "Push the run that trained the model: its card has its metrics already."
            raise refusal("push_to_hub", True, "False with do_eval_only: no model is saved", remedy)
        if self.eval_strategy not in (None, "steps" if self.eval_steps else "epoch"):
            raise refusal(
                "eval_strategy",
                self.eval_strategy,
                f"steps with eval_steps, {EACH_EPOCH} without",
                "Give --eval_steps how many updates, or drop one of the two.",
            )
        steps = self.checkpointing_steps
        if steps not in (None, EACH_EPOCH) and not (steps.isdecimal() and int(steps) > 0):
            raise refusal(
                "checkpointing_steps",
                steps,
                f"a whole number from 1 on, or {EACH_EPOCH}",
                "Give --checkpointing_steps one of the two, or drop it.",
            )
        if self.resume_from_checkpoint == "":
            raise refusal("resume_from_checkpoint", "", f"a folder, or {LAST}", "Drop the flag.")
        if self.resume_from_checkpoint is not None:
            self.resume_from_checkpoint = os.path.expanduser(self.resume_from_checkpoint)

    @property
    def keeps_best(self) -> bool:
        """Whether the best evaluation's weights are kept and loaded at the end."""
        if self.load_best_model_at_end is None:
            return self.early_stopping_patience is not None
        return self.load_best_model_at_end


@dataclass(kw_only=True)
class TrainArguments(CheckpointArguments):
    """How to train, and where results go."""

    TITLE: ClassVar[str] = "training"

    per_device_train_batch_size: int = flag("Training batch of one process.", 8)
    per_device_eval_batch_size: int = flag("Evaluation batch of one process.", 8)
    learning_rate: float = flag("Highest learning rate.", 5e-5, aliases=also("lr"))
    weight_decay: float = flag("AdamW's; biases, norms and the filter's scalars have none.", 0.0)
    adam_beta1: float = flag("AdamW's, of the mean of the gradients.", 0.9)
    adam_beta2: float = flag("AdamW's, of the mean of their squares.", 0.999)
    adam_epsilon: float = flag("AdamW's, added to the root of that mean.", 1e-8)
    num_train_epochs: int = flag("Passes over the training rows.", 3)
    max_train_steps: int | None = flag(
        "Updates, instead of num_train_epochs.", aliases=also("max_steps")
    )
    gradient_accumulation_steps: int = flag("Batches an update.", 1)
    lr_scheduler_type: Literal[
        "linear",
        "cosine",
        "cosine_with_restarts",
        "polynomial",
        "constant",
        "constant_with_warmup",
        "inverse_sqrt",
        "cosine_with_min_lr",
    ] = flag("Schedule of the learning rate.", "linear")
    lr_scheduler_kwargs: str | None = flag(
        "Settings of that schedule, as JSON: '{\"min_lr_rate\": 0.1}' with cosine_with_min_lr."
    )
    num_warmup_steps: int = flag(
        "Updates until the highest learning rate.", 0, aliases=also("warmup_steps")
    )
    warmup_ratio: float = flag("The same, as a share of all updates.", 0.0)
    max_grad_norm: float = flag("Longer gradients are clipped to this norm; 0 is never.", 1.0)
    mixed_precision: Literal["no", "fp16", "bf16"] | None = flag(
        "Number format of the forward pass; default: the launcher's.",
        aliases=Aliases({"fp16": bool, "bf16": bool}, _precision),
    )
    seed: int = flag("Seed of weights, order and dropout.", 42)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "per_device_train_batch_size", "per_device_eval_batch_size")
        at_least(self, 1, "num_train_epochs", "max_train_steps", "gradient_accumulation_steps")
        at_least(self, 0, "learning_rate", "weight_decay", "num_warmup_steps", "max_grad_norm")
        at_least(self, 0, "seed", "warmup_ratio", "adam_beta1", "adam_beta2", "adam_epsilon")
        for name in ("adam_beta1", "adam_beta2"):
            if getattr(self, name) >= 1:
                raise refusal(name, getattr(self, name), "0 to below 1", "Give such a number.")
        if self.warmup_ratio > 1:
            remedy = "Give the warm-up's share of the run."
            raise refusal("warmup_ratio", self.warmup_ratio, "0 to 1", remedy)
        if self.warmup_ratio and self.num_warmup_steps:
            raise refusal(
                "warmup_ratio",
                self.warmup_ratio,
                f"0 beside num_warmup_steps {self.num_warmup_steps}",
                "Give only one of the two.",
            )

    @property
    def schedule_settings(self) -> dict[str, Any]:
        """What `lr_scheduler_kwargs` says."""
        found: dict[str, Any] = json.loads(self.lr_scheduler_kwargs or "{}")
        return found


def check_schedule(train: TrainArguments) -> None:
    """Raise ``ValueError`` if the schedule does not take its settings, or needs others."""
    # Imported once all other flags are right: this takes seconds.
    import torch
    from transformers import SchedulerType, get_scheduler
    from transformers.optimization import TYPE_TO_SCHEDULER_FUNCTION

    kind, given = train.lr_scheduler_type, train.lr_scheduler_kwargs
    everywhere = {"optimizer", "num_warmup_steps", "num_training_steps", "last_epoch"}
    function: Any = TYPE_TO_SCHEDULER_FUNCTION[SchedulerType(kind)]
    own = sorted(set(signature(function).parameters) - everywhere)
    numbers = f"{', '.join(own)}, each a number of at least 0"
    allowed = f"a JSON object with {numbers if own else 'nothing'}"
    try:
        settings = json.loads(given or "{}")
        if not (isinstance(settings, dict) and set(settings) <= set(own)):
            raise TypeError("Other settings would be passed over")
        if not all(math.isfinite(value) and value >= 0 for value in settings.values()):
            raise ValueError("Another number would be taken for 0")
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=train.learning_rate)
        get_scheduler(kind, optimizer, 0, 2, settings)
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise refusal(f"lr_scheduler_kwargs of {kind}", given, allowed, f"{error}.") from error
