"""What a call of a script asks for, before it runs: its settings, checked as it checks them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import hf_graphattn as ga
from finetune import arguments, code_classification, code_models, lm_arguments
from finetune.arguments import Settings
from finetune.flags import refusal
from finetune.train_arguments import TrainArguments

# The groups of flags that each script gives to `arguments.parse`, by its family's name.
GROUPS: dict[str, dict[str, Any]] = {
    "glue": {},
    "lm": {
        "data_group": lm_arguments.LanguageDataArguments,
        "model_group": lm_arguments.LanguageModelArguments,
    },
    "code_classification": {
        "model_group": code_models.CodeModelArguments,
        "max_length": code_classification.MAX_LENGTH,
    },
}


@dataclass(frozen=True)
class Script:
    """A script of this folder.

    Raises ``ValueError`` if there is no such file, or it is none of those whose flags are known.
    """

    path: Path

    def __post_init__(self) -> None:
        if not self.path.is_file() or self.path.stem not in GROUPS:
            allowed = ", ".join(f"finetune/{family}.py" for family in GROUPS)
            raise refusal("script", str(self.path), allowed, "Give the path of one of these.")

    def flags(self) -> dict[str, Any]:
        """Each flag's type by its name: of one value, where it takes several."""
        given = GROUPS[self.family]
        groups = (
            given.get("data_group", arguments.DataArguments),
            given.get("model_group", arguments.ModelArguments),
            TrainArguments,
            arguments.FilterArguments,
            arguments.variant_arguments(ga.variant_configs()),
        )
        hints = {name: kind for group in groups for name, kind in get_type_hints(group).items()}
        return {name: arguments.flag_kind(kind)[0] for name, kind in hints.items()}

    @property
    def family(self) -> str:
        """Its name, which is that of its tasks' family."""
        return self.path.stem

    def settings(self, flags: Sequence[str]) -> Settings:
        """What these flags ask for, the recipe's among them; ``output_dir`` may be missing.

        Raises ``ValueError`` for flags that the script would refuse before it loads anything, and
        for a learning rate of scalars that are not learned.
        """
        try:
            found = arguments.parse(["--output_dir", ".", *flags], **GROUPS[self.family])
        except SystemExit as error:  # argparse has said why
            raise ValueError(f"{self.path} does not take the flags {' '.join(flags)}") from error
        rate = found.filter.filter_learning_rate
        if rate is not None and found.variant is not None and not learns_scalars(found):
            raise refusal(
                f"filter_learning_rate with variant {found.filter.variant}",
                rate,
                "with a variant that learns scalars",
                "Drop it, or name scalars with --trainable.",
            )
        return found


def learns_scalars(settings: Settings) -> bool:
    """Whether the filter has scalars that are trained."""
    return bool(getattr(settings.variant, "trainable", ()))


def deciding(settings: Settings) -> dict[str, Any]:
    """The settings that decide a run's numbers, as ``all_results.json`` has them."""
    free = settings.free()
    kept = {name: value for name, value in settings.flat().items() if name not in free}
    return json.loads(json.dumps(kept))
