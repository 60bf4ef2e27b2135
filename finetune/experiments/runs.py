"""One run as data: what is asked of which script, and what is in its folder by now."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from finetune.engine import checkpoints
from finetune.engine.fingerprint import faults
from finetune.engine.output_folder import WEIGHTS
from finetune.engine.results import RESULTS, read_json
from finetune.settings import recipes
from finetune.settings.training import LAST

SETTINGS, RECORD, LOG = "settings.yaml", "run.json", "log.txt"
CLOSED = "wall_seconds"  # in the record, once the run has ended and its weights are dealt with
METRIC = "metric"  # the flag that has a run measure more than its task's metrics
TAIL = 12  # lines of a failed run's log that are shown


@dataclass(frozen=True)
class Run:
    """One call of a script.

    Attributes:
        name: tells it from the others: ``cola/gfsa/seed-3``.
        script: path of the script.
        folder: its ``output_dir``.
        flags: all of its flags by name but ``output_dir``, none of them None.
        settings: what decides its numbers, by name, as its results have them.
    """

    name: str
    script: Path
    folder: Path
    flags: Mapping[str, Any]
    settings: Mapping[str, Any]

    def command(self, launcher: Sequence[str] = (), *, in_full: bool = False) -> list[str]:
        """The words that start it from its file, or continue it from its last checkpoint.

        ``in_full`` names every flag, so that no file need be there.
        """
        flags = self._all_flags() if in_full else {"recipe": str(self.folder / SETTINGS)}
        resumed = {"resume_from_checkpoint": LAST} if self.can_resume() else {}
        words = recipes.words({**flags, **resumed})
        return [*(launcher or (sys.executable,)), str(self.script), *words]

    def write_settings(self) -> None:
        """Write the file that `command` names: a recipe with all of its flags."""
        text = yaml.safe_dump(self._all_flags(), sort_keys=False, allow_unicode=True)
        (self.folder / SETTINGS).write_text(text, "utf-8")

    def is_done(self) -> bool:
        """Whether its results are there; a script writes them last, and whole."""
        return (self.folder / RESULTS).is_file()

    def can_resume(self) -> bool:
        """Whether it was killed with a checkpoint."""
        return not self.is_done() and bool(checkpoints.listed(self.folder))

    def results(self) -> dict[str, Any]:
        """What the script wrote.

        Raises ``ValueError`` if the file is damaged.
        """
        return read_json(self.folder / RESULTS)

    def record(self) -> dict[str, Any] | None:
        """What was written down when it was started from here; None if it was not.

        Raises ``ValueError`` if the file is damaged.
        """
        path = self.folder / RECORD
        return read_json(path) if path.is_file() else None

    def faults(self) -> list[str]:
        """How what is in its folder differs from what is asked, a line each, (then -> now).

        Settings that only one of the two knows are left out: they came with another version. Of
        metrics a finished run may have measured more than is asked.
        """
        if not self.is_done() and not self.can_resume():
            return []
        wrote = self.results() if self.is_done() else self.record()
        if wrote is None:
            return []
        asked = dict(self.settings)
        measured = wrote["settings"].get(METRIC) or ()
        if self.is_done() and set(asked.get(METRIC) or ()) <= set(measured):
            asked.pop(METRIC, None)
        return faults(wrote, asked, {METRIC: None})

    def log_tail(self) -> str:
        """The last lines of its log; of lines that a progress bar rewrote, the last state."""
        text = (self.folder / LOG).read_bytes().decode("utf-8", "replace")
        lines = [line.rpartition("\r")[2].rstrip() for line in re.split(r"\r?\n", text)]
        return "\n".join([line for line in lines if line][-TAIL:])

    def has_weights(self) -> bool:
        """Whether a model is in its folder."""
        return any(self.folder.glob("*.safetensors"))

    def remove_weights(self) -> None:
        """Delete a finished run's weights and checkpoints, if it was started without keeping.

        Once: what is there later, somebody else has put there.
        """
        record = self.record()
        if not self.is_done() or record is None or record["keep_models"] or CLOSED in record:
            return
        for path in [p for pattern in WEIGHTS for p in self.folder.glob(pattern)]:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)  # another process may be at it, too
            else:
                path.unlink(missing_ok=True)

    def _all_flags(self) -> dict[str, Any]:
        return {**self.flags, "output_dir": str(self.folder)}
