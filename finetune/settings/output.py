"""The flags of what a run leaves behind: its folder, its logs, its repository."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import ClassVar

from finetune.errors import refusal
from finetune.settings.flags import at_least, flag

NOWHERE, EVERY = "none", "all"  # of trackers, as transformers says it


@dataclass(kw_only=True)
class OutputArguments:
    """Where results go, and who is told."""

    TITLE: ClassVar[str] = "output"
    output_dir: str = field(
        compare=False,
        metadata={"help": "Folder for results, predictions and the model.", "metavar": "FOLDER"},
    )
    overwrite_output_dir: bool = flag(
        "Replace another run that is in output_dir: what it left there is removed.",
        False,
        free=True,
    )
    do_predict: bool = flag("Write predictions for the test splits.", False, free=True)
    logging_steps: int | None = flag(
        "Log the loss every so many updates; default: once a minute where no bar is shown.",
        free=True,
    )
    with_tracking: bool = flag("Log to trackers: all that are installed.", False, free=True)
    report_to: str | None = flag(
        "Log to this tracker, such as tensorboard; 'all' is each installed one, 'none' no one.",
        free=True,
    )
    push_to_hub: bool = flag(
        "Upload the trained model, its card and results; log in with `hf auth login` before.",
        False,
        free=True,
    )
    hub_model_id: str | None = flag("Repository to push to; default: output_dir's name.", free=True)
    hub_private_repo: bool | None = flag("Whether a new repository is private.", free=True)
    hub_example: bool | None = flag(
        "Show an evaluation row in the code of the pushed card, which is then public.",
        free=True,
    )
    license: str | None = flag(
        "License for the card of what is pushed, by its id on the hub, such as apache-2.0; "
        "default: the base model's, where its own card says one.",
        free=True,
    )

    def __post_init__(self) -> None:
        at_least(self, 1, "logging_steps")
        if self.output_dir == "":
            raise refusal("output_dir", "", "a folder", "Name the folder that results go to.")
        self.output_dir = os.path.expanduser(self.output_dir)

    @property
    def tracker(self) -> str | None:
        """Where to log beside the files; None is nowhere."""
        asked = self.report_to or (EVERY if self.with_tracking else NOWHERE)
        return None if asked == NOWHERE else asked
