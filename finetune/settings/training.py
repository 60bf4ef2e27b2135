"""The flags of training and of what a run leaves: optimizer, length, checkpoints, its folder."""

from __future__ import annotations

import json
import math
import os
from dataclasses import MISSING, dataclass
from inspect import signature
from typing import Any, ClassVar, Literal

from finetune.errors import refusal
from finetune.settings.flags import at_least, flag, only, shares

Schedule = Literal[
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
    "cosine_with_min_lr",
]
EACH_EPOCH, LAST = "epoch", "last"
NOWHERE, EVERY = "none", "all"  # of trackers, as transformers names them


@dataclass(kw_only=True)
class OutputArguments:
    """Where results go."""

    TITLE: ClassVar[str] = "output"

    output_dir: str = flag("For results and the model.", MISSING, free=True, metavar="FOLDER")
    overwrite_output_dir: bool = flag("Remove another run from it.", False, free=True)
    do_predict: bool = flag("Write predictions for the test splits.", False, free=True)
    logging_steps: int | None = flag(free=True, rare=True)  # default: once a minute, or a bar
    report_to: str | None = flag("Log to a tracker: tensorboard, all, none ...", free=True)
    with_tracking: bool = flag(default=False, free=True, rare=True)  # to all trackers
    push_to_hub: bool = flag("Upload the model, its card and results.", False, free=True)
    hub_model_id: str | None = flag("Repository to push to; default: output_dir's name.", free=True)
    hub_private_repo: bool | None = flag(free=True, rare=True)
    hub_example: bool | None = flag(free=True, rare=True)  # whether the card shows a row
    license: str | None = flag(free=True, rare=True)  # default: the base model's

    def __post_init__(self) -> None:
        at_least(self, 1, "logging_steps")
        if self.output_dir == "":
            raise refusal("output_dir", "", "a folder", "Name the folder that results go to.")
        self.output_dir = os.path.expanduser(self.output_dir)

    @property
    def tracker(self) -> str | None:
        """Where to log beside the files; None is nowhere."""
        name = self.report_to or (EVERY if self.with_tracking else NOWHERE)
        return None if name == NOWHERE else name


@dataclass(kw_only=True)
class CheckpointArguments(OutputArguments):
    """When a run is saved, continued and stopped, and what it reports meanwhile."""

    TITLE: ClassVar[str] = "checkpoints and evaluation"

    recipe: str | None = flag("YAML file of `flag: value`; flags given here win.", free=True)
    checkpointing_steps: str | None = flag(
        f"Save a checkpoint every so many updates, or each '{EACH_EPOCH}'.",
        free=True,
        aliases=["save_steps", "save_strategy"],
    )
    resume_from_checkpoint: str | None = flag(
        f"Checkpoint to continue from, or '{LAST}': the newest in output_dir.", free=True
    )
    checkpoints_total_limit: int | None = flag(
        "Keep the newest so many, and the best.", free=True, aliases=["save_total_limit"]
    )
    eval_steps: int | None = flag("Evaluate every so many updates, not at epochs' ends.")
    eval_strategy: Literal["epoch", "steps"] | None = flag(free=True, rare=True)
    early_stopping_patience: int | None = flag("Stop after so many evaluations without a best.")
    metric_for_best_model: str | None = flag(rare=True)  # default: the task's main one
    greater_is_better: bool | None = flag(rare=True)  # default: as the metric says
    load_best_model_at_end: bool | None = flag(
        "Test and save the best evaluation's weights; default: with early_stopping_patience."
    )
    do_eval_only: bool = flag("Evaluate the model as it is.", False, free=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "checkpoints_total_limit", "eval_steps", "early_stopping_patience")
        only(
            self, "False with do_eval_only: no model is saved", not self.do_eval_only, "push_to_hub"
        )
        strategy = "steps" if self.eval_steps else EACH_EPOCH
        only(self, f"{strategy} here", self.eval_strategy == strategy, "eval_strategy")
        steps = self.checkpointing_steps
        if steps == "no":  # transformers' save_strategy
            self.checkpointing_steps = None
        elif steps not in (None, EACH_EPOCH) and not (steps.isdecimal() and int(steps) > 0):
            allowed = f"a whole number from 1 on, or {EACH_EPOCH}"
            remedy = "Give --checkpointing_steps one of the two, or drop it."
            raise refusal("checkpointing_steps", steps, allowed, remedy)

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
    learning_rate: float = flag("Highest learning rate.", 5e-5)
    weight_decay: float = flag("AdamW's; of biases, norms and scalars of filters none.", 0.0)
    adam_beta1: float = flag(default=0.9, rare=True)
    adam_beta2: float = flag(default=0.999, rare=True)
    adam_epsilon: float = flag(default=1e-8, rare=True)
    num_train_epochs: int = flag("Passes over the training rows.", 3)
    max_train_steps: int | None = flag("Updates, not epochs.", aliases=["max_steps"])
    gradient_accumulation_steps: int = flag("Batches an update.", 1)
    lr_scheduler_type: Schedule = flag("linear, cosine, constant ...", "linear", metavar="NAME")
    lr_scheduler_kwargs: str | None = flag(rare=True)  # JSON: '{"min_lr_rate": 0.1}'
    num_warmup_steps: int = flag("Updates of warm-up.", 0, aliases=["warmup_steps"])
    warmup_ratio: float = flag("The same, as a share of all updates.", 0.0)
    max_grad_norm: float = flag(default=1.0, rare=True)  # gradients are clipped to it; 0: never
    mixed_precision: Literal["no", "fp16", "bf16"] | None = flag("Default: the launcher's.")
    seed: int = flag("Seed of weights, order and dropout.", 42)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "per_device_train_batch_size", "per_device_eval_batch_size")
        at_least(self, 1, "num_train_epochs", "max_train_steps", "gradient_accumulation_steps")
        at_least(self, 0, "learning_rate", "weight_decay", "num_warmup_steps", "max_grad_norm")
        at_least(self, 0, "seed")
        shares(self, "warmup_ratio")
        only(self, "0 beside warmup_ratio", not self.warmup_ratio, "num_warmup_steps")

    @property
    def schedule_settings(self) -> dict[str, Any]:
        """`lr_scheduler_kwargs` as a dict."""
        return dict(json.loads(self.lr_scheduler_kwargs or "{}"))


def check_schedule(train: TrainArguments) -> None:
    """Raise ``Refused`` if the schedule would ignore a setting, or take it for another number."""
    # Imported once all other flags are right: this takes seconds.
    from transformers import SchedulerType
    from transformers.optimization import TYPE_TO_SCHEDULER_FUNCTION

    everywhere = {"optimizer", "num_warmup_steps", "num_training_steps", "last_epoch"}
    function: Any = TYPE_TO_SCHEDULER_FUNCTION[SchedulerType(train.lr_scheduler_type)]
    names = sorted(set(signature(function).parameters) - everywhere)
    try:
        settings = train.schedule_settings
        if set(settings) - set(names):
            raise ValueError("Others would be ignored")
        if not all(math.isfinite(value) and value >= 0 for value in settings.values()):
            raise ValueError("Another number would be taken for 0")
    except (TypeError, ValueError) as error:
        numbers = f"{', '.join(names)}, each a number of at least 0" if names else "nothing"
        name = f"lr_scheduler_kwargs of {train.lr_scheduler_type}"
        allowed = f"a JSON object with {numbers}"
        raise refusal(name, train.lr_scheduler_kwargs, allowed, f"{error}.") from error
