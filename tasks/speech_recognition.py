"""These are recordings of speech against what is said, and a demo task of Morse code.

Texts are scored as they stand: the error rates count every character and every word.
"""

from __future__ import annotations

from typing import Any

from datasets import DatasetDict

from tasks import Split, Task, morse
from tasks.metrics import CER, WER

FAMILY = "speech_recognition"


def speech_task(name: str, **others: Any) -> Task:
    """Return a task of this family, with the columns and the metrics that all of them have."""
    columns = {"audio_column": "audio", "label_column": "text"}
    return Task(
        name=name,
        family=FAMILY,
        objective="ctc",
        metrics=(WER, CER),
        main_metric=WER.name,
        **(columns | others),
    )


TASKS = (
    # LibriSpeech (Panayotov et al. 2015), trained on its 100 hours of clean speech. The hub has
    # these splits together only with the other 860 hours: 62 GB.
    speech_task(
        "librispeech100",
        dataset_name="openslr/librispeech_asr",
        dataset_config="all",
        train_split="train.clean.100",
        validation_splits=(Split("validation.clean"), Split("validation.other", "_other")),
        test_splits=(
            Split("test.clean", "", "test_clean.tsv"),
            Split("test.other", "_other", "test_other.tsv"),
        ),
    ),
    speech_task("morse", builder=morse.build),
)


def own_task(rows: DatasetDict | None = None, **others: Any) -> Task:
    """Return a task of someone's own rows, or of another source given in ``others``."""
    builder = None if rows is None else lambda: rows
    return speech_task("own_speech", builder=builder, **others)
