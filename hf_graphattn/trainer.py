"""transformers' Trainer, and those of TRL and sentence-transformers, for a patched model.

    class Trainer(ga.TrainerMixin, transformers.Trainer): ...

A Trainer by itself gives the filters' scalars the rate of the weights, at which they hardly move,
and decays them. Nothing here imports a Trainer: the mixin calls the methods of the class beside it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from torch import Tensor

from hf_graphattn.loading.filter_files import save_filters
from hf_graphattn.model.configs import ENTRY, model_configs
from hf_graphattn.model.filters import filter_parameters, is_patched
from hf_graphattn.model.parallel import whole
from hf_graphattn.model.training import check_rates
from hf_graphattn.sharing import model_card

# Of the arguments of a Trainer's training, those that the card shows.
ON_CARD = (
    "learning_rate",
    "lr_scheduler_type",
    "num_train_epochs",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "weight_decay",
    "seed",
)

logger = logging.getLogger("hf_graphattn")


class TrainerMixin:
    """The base class that trains the scalars of a patched model, before a Trainer's class.

    - The scalars have a rate of their own, and no weight decay.
    - The logs have how far each scalar has moved since the start, `filters/w_K_moved`: the largest
      of all layers and heads.
    - A checkpoint of an adapter has the base's filters beside it.
    - `push_to_hub` writes the library's model card.
    - After a training in which no scalar has moved, there is a warning.

    Args:
        filter_learning_rate: the scalars' learning rate. The schedule multiplies it as the others.
        args, kwargs: those of the Trainer.

    Raises:
        GraphAttentionError: `filter_learning_rate` is not a finite number of at least 0.
    """

    def __init__(self, *args: Any, filter_learning_rate: float = 1e-2, **kwargs: Any) -> None:
        check_rates(filter_learning_rate=filter_learning_rate)
        self.filter_learning_rate = filter_learning_rate
        self._start: dict[str, Tensor] = {}
        super().__init__(*args, **kwargs)

    def create_optimizer(self: Any, *args: Any, **kwargs: Any) -> Any:
        """The Trainer's optimizer, with the scalars in a group of their own.

        An optimizer that was passed to the Trainer stays as it is: `ga.optimizer_groups` makes its
        groups.
        """
        is_passed = self.optimizer is not None
        optimizer = super().create_optimizer(*args, **kwargs)  # type: ignore[misc]
        scalars = _trained(self.model)
        self._start = {name: _now(scalar) for name, scalar in scalars.items()}
        if is_passed or not scalars:
            return optimizer
        ids = {id(scalar) for scalar in scalars.values()}
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if id(p) not in ids]
        optimizer.param_groups[:] = [group for group in optimizer.param_groups if group["params"]]
        own = {"lr": self.filter_learning_rate, "weight_decay": 0.0}
        optimizer.add_param_group({"params": [*scalars.values()], **own})
        return optimizer

    def log(self: Any, logs: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Log what the Trainer logs, and in training how far each scalar has moved."""
        if "loss" in logs:
            logs |= {f"filters/{name}_moved": move for name, move in self._moves().items()}
        super().log(logs, *args, **kwargs)  # type: ignore[misc]

    def train(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Train as the Trainer does; warn if the filters learn scalars and none has moved."""
        output = super().train(*args, **kwargs)  # type: ignore[misc]
        if any(True for _ in filter_parameters(self.model)) and not any(self._moves().values()):
            logger.warning(
                f"no scalar of the filters of {type(self.model).__name__} has moved in this "
                f"training. They are frozen, or not in the optimizer that was passed: see "
                f"ga.optimizer_groups, and ga.peft_modules for LoRA."
            )
        return output

    def save_model(self: Any, output_dir: str | None = None, *args: Any, **kwargs: Any) -> None:
        """Save as the Trainer does, and beside an adapter the filters of its base."""
        super().save_model(output_dir, *args, **kwargs)  # type: ignore[misc]
        configs = getattr(self.model, "peft_config", {}).values()
        if is_patched(self.model) and not all(hasattr(config, ENTRY) for config in configs):
            save_filters(self.model, output_dir or self.args.output_dir)

    def create_model_card(self: Any, *args: Any, **kwargs: Any) -> None:
        """Write the library's card, with the tags, data and results of the Trainer's."""
        super().create_model_card(*args, **kwargs)  # type: ignore[misc]
        is_whole = any(hasattr(config, ENTRY) for config in model_configs(self.model))
        if not is_whole or not self.is_world_process_zero():
            return
        path = Path(self.args.output_dir) / "README.md"
        data = ModelCard.load(path, ignore_metadata_errors=True).data
        training = {name: str(getattr(self.args, name)) for name in ON_CARD}
        model_card(
            self.model,
            self.hub_model_id or path.parent.resolve().name,
            datasets=data.datasets or (),
            results=data.eval_results or (),
            tags=data.tags or (),
            license=data.license,
            tokenizer=self.processing_class,
            training=training | {"filter_learning_rate": self.filter_learning_rate},
        ).save(path)

    def _moves(self: Any) -> dict[str, float]:
        """The largest move of each scalar since the start of training, by the scalar's name."""
        moves: dict[str, float] = {}
        for name, scalar in _trained(self.model).items():
            if name in self._start:
                move = (_now(scalar) - self._start[name]).abs().max().item()
                short = name.rpartition(".")[2]
                moves[short] = max(move, moves.get(short, 0.0))
        return moves


def _trained(model: Any) -> dict[str, Any]:
    """The filters' scalars that are trained, by their names."""
    return {name: scalar for name, scalar in filter_parameters(model) if scalar.requires_grad}


def _now(scalar: Any) -> Tensor:
    """A copy of a scalar's values on the CPU; all processes that share it must call this."""
    return whole(scalar.detach()).float().cpu().clone()
