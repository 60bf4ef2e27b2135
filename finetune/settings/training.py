"""The flags of training: optimizer, length, checkpoints, early stopping, logging."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, Literal

from finetune.errors import refusal
from finetune.settings.flags import at_least, flag

EACH_EPOCH, LAST = "epoch", "last"


@dataclass
class CheckpointArguments:
    """When a run is saved, continued and stopped, and what it reports meanwhile."""

    recipe: str | None = flag(
        "YAML file of `flag: value`; flags on the command line win.", free=True
    )
    checkpointing_steps: str | None = flag(
        f"Save a checkpoint after every so many updates, or '{EACH_EPOCH}'.", free=True
    )
    resume_from_checkpoint: str | None = flag(
        f"Checkpoint to continue from, or '{LAST}': the newest in output_dir.", free=True
    )
    checkpoints_total_limit: int | None = flag(
        "Keep the newest so many checkpoints, and the best; default: all.", free=True
    )
    eval_strategy: Literal["epoch", "steps"] | None = flag(
        "Evaluate at each epoch's end, or every eval_steps updates; default: steps where that is "
        "given, else epoch. The end of training is evaluated in any case.",
        free=True,  # eval_steps says the same
    )
    eval_steps: int | None = flag("Evaluate after every so many updates, not at epochs' ends.")
    logging_steps: int | None = flag(
        "Log the loss every so many updates; default: once a minute where no bar is shown.",
        free=True,
    )
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
    overwrite_output_dir: bool = flag(
        "Replace another run that is in output_dir: what it left there is removed.",
        False,
        free=True,
    )
    do_eval_only: bool = flag("Evaluate the model as it is, without training.", False, free=True)
    do_predict: bool = flag("Write predictions for the test splits.", False, free=True)
    with_tracking: bool = flag("Log to trackers: all that are installed.", False, free=True)
    report_to: str | None = flag(
        "Log to this tracker, such as tensorboard; 'all' is each installed one.", free=True
    )

    push_to_hub: bool = flag(
        "Upload the trained model, its card and results; log in with `hf auth login` before.",
        False,
        free=True,
    )
    hub_model_id: str | None = flag("Repository to push to; default: output_dir's name.", free=True)
    hub_private_repo: bool | None = flag("Whether a new repository is private.", free=True)

    def __post_init__(self) -> None:
        at_least(self, 1, "checkpoints_total_limit", "eval_steps", "early_stopping_patience")
        at_least(self, 1, "logging_steps")
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
    def tracker(self) -> str | None:
        """Where to log beside the files; None is nowhere."""
        return self.report_to or ("all" if self.with_tracking else None)

    @property
    def keeps_best(self) -> bool:
        """Whether the best evaluation's weights are kept and loaded at the end."""
        if self.load_best_model_at_end is None:
            return self.early_stopping_patience is not None
        return self.load_best_model_at_end


@dataclass(kw_only=True)
class TrainArguments(CheckpointArguments):
    """How to train, and where results go."""

    output_dir: str = field(
        compare=False, metadata={"help": "Folder for results, predictions and the model."}
    )
    per_device_train_batch_size: int = flag("Training batch of one process.", 8)
    per_device_eval_batch_size: int = flag("Evaluation batch of one process.", 8)
    learning_rate: float = flag("Highest learning rate.", 5e-5)
    weight_decay: float = flag("AdamW's; biases, norms and the filter's scalars have none.", 0.0)
    adam_beta1: float = flag("AdamW's, of the mean of the gradients.", 0.9)
    adam_beta2: float = flag("AdamW's, of the mean of their squares.", 0.999)
    adam_epsilon: float = flag("AdamW's, added to the root of that mean.", 1e-8)
    num_train_epochs: int = flag("Passes over the training rows.", 3)
    max_train_steps: int | None = flag("Updates, instead of num_train_epochs.")
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
    num_warmup_steps: int = flag("Updates until the highest learning rate.", 0)
    warmup_ratio: float = flag("The same, as a share of all updates.", 0.0)
    max_grad_norm: float = flag("Longer gradients are clipped to this norm; 0 is never.", 1.0)
    mixed_precision: Literal["no", "fp16", "bf16"] | None = flag(
        "Number format of the forward pass; default: the launcher's."
    )
    seed: int = flag("Seed of weights, order and dropout.", 42)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.output_dir == "":
            raise refusal("output_dir", "", "a folder", "Name the folder that results go to.")
        self.output_dir = os.path.expanduser(self.output_dir)
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
