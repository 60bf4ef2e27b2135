"""Recordings and transcripts as rows: where they come from, and what each row must have."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from datasets import Audio, Dataset, DatasetDict, Value

from finetune.data import columns, local, sounds, sources
from finetune.data import rows as row_checks
from finetune.data.wording import Words, listed, reason, refusal
from finetune.errors import Refused
from finetune.settings.speech import SpeechDataArguments
from tasks import Split, Task
from tasks.speech_recognition import FAMILY, own_task

DIGITS = 16  # of a digest
# What a split's columns are called once they are checked.
AUDIO, TEXT, CONTENT = "audio", "text", "content"
STORED = {"bytes": Value("binary"), "path": Value("string")}  # as `Audio` stores a recording
AUDIO_NAMES = ("audio", "file_name", "path", "file")
TEXT_NAMES = ("text", "sentence", "transcription", "transcript")
TABLES = tuple(f"metadata{suffix}" for suffix in (".csv", ".jsonl", ".parquet"))


def load(arguments: SpeechDataArguments, predict: bool) -> tuple[Task, DatasetDict]:
    """The task, and the needed splits' rows, checked and cut to their limits (`checked`).

    A folder may have a table of its recordings in it, metadata.csv.

    Raises ``Refused`` if the source, a split or a column is missing, or a row has no recording or
    no transcript.
    """
    arguments = _with_table(arguments)
    task, rows = sources.read(
        arguments,
        FAMILY,
        infer=own_task,
        named=lambda name: own_task(dataset_name=name),
        adapt=partial(_with_flags, arguments),
    )
    if arguments.task_name is None:
        task = _with_columns(arguments, task, rows)
    rows = DatasetDict({name: _numbered(split) for name, split in rows.items()})
    rows = row_checks.with_validation(task, rows, arguments.validation_split_percentage)
    return task, checked(task, rows, arguments, predict)


def checked(
    task: Task, rows: DatasetDict, arguments: SpeechDataArguments, predict: bool
) -> DatasetDict:
    """The needed splits, cut to their limits.

    Their columns are ``audio`` (bytes or a path), ``content`` (a digest of its file), ``text`` (the
    transcript as the flags want it) unless hidden, and each row's number where it was read.
    """
    needed = row_checks.needed_splits(task, predict)
    row_checks.check_splits(task, rows, needed)
    limits = row_checks.sample_limits(arguments, task)
    used = {name: row_checks.first_rows(rows[name], limits[name]) for name in needed}
    return DatasetDict({n: _checked(task, n, split, arguments) for n, split in used.items()})


def texts(rows: Mapping[str, Dataset]) -> dict[str, list[str]]:
    """The transcripts of each split that has them."""
    return {name: split[TEXT][:] for name, split in rows.items() if TEXT in split.column_names}


def digest(rows: Dataset) -> str:
    """A digest of all recordings and transcripts."""
    parts = [value for name in (CONTENT, TEXT) if name in rows.column_names for value in rows[name]]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:DIGITS]


def unreadable(name: str, rows: Dataset, index: int, error: Exception) -> Refused:
    path = rows[index][AUDIO]["path"]
    what = f"the recording {path} of" if path else "the recording of"
    return refusal(
        f"{what} {local.place(name, rows, index)}",
        Words("unreadable"),
        "a file that libsndfile reads: wav, flac, ogg, mp3 ...",
        f"Write it again, or drop the row. Reading it said: {reason(error)}",
    )


def _with_table(arguments: SpeechDataArguments) -> SpeechDataArguments:
    """Of a folder with a table in it, that table as the file to train on."""
    folder = Path(arguments.dataset_name or "")
    found = [folder / name for name in TABLES if (folder / name).is_file()]
    if arguments.dataset_name is None or not found:
        return arguments
    if len(found) > 1:
        raise refusal(
            "dataset_name",
            str(folder),
            f"a folder with one table; it has {listed(path.name for path in found)}",
            "Remove all but one of them, or name one: --train_file.",
        )
    return replace(arguments, dataset_name=None, train_file=str(found[0]))


def _with_flags(arguments: SpeechDataArguments, task: Task) -> Task:
    """The task with what the flags change of it."""
    changes: dict[str, Any] = {
        "audio_column": arguments.audio_column_name,
        "label_column": arguments.text_column_name,
        "dataset_config": arguments.dataset_config_name,
        "train_split": arguments.train_split_name,
    }
    if arguments.eval_split_name is not None:
        changes["validation_splits"] = (Split(arguments.eval_split_name),)
    return replace(task, **{name: value for name, value in changes.items() if value is not None})


def _with_columns(arguments: SpeechDataArguments, task: Task, rows: DatasetDict) -> Task:
    """The task of someone's own data with its two columns, as the flags or their names say."""
    known = next(iter(rows.values())).column_names

    def chosen(flag: str, asked: str | None, names: Sequence[str]) -> str:
        found = [name for name in ((asked,) if asked else names) if name in known]
        if not found:
            allowed = f"one of the data's columns: {listed(known)}"
            raise refusal(flag, asked, allowed, "Say which one it is.")
        return found[0]

    audio = chosen("audio_column_name", arguments.audio_column_name, AUDIO_NAMES)
    text = chosen("text_column_name", arguments.text_column_name, TEXT_NAMES)
    return replace(task, audio_column=audio, label_column=text)


def _numbered(rows: Dataset) -> Dataset:
    """The rows with their numbers, and with recordings that nothing decodes but `sounds`."""
    for name, feature in rows.features.items():
        if isinstance(feature, Audio):
            rows = rows.cast_column(name, Audio(decode=False))
    return rows.add_column(local.ROW, range(len(rows)))


def _checked(task: Task, name: str, rows: Dataset, arguments: SpeechDataArguments) -> Dataset:
    found = rows.select_columns([task.audio_column, local.ROW])
    if task.audio_column != AUDIO:
        found = found.rename_column(task.audio_column, AUDIO)
    found = _stored(task, name, found)
    texts = _texts(task, name, rows, arguments)
    digests = [_content(name, found, index) for index in range(len(found))]
    found = found.add_column(CONTENT, digests)
    return found if texts is None else found.add_column(TEXT, texts)


def _stored(task: Task, name: str, rows: Dataset) -> Dataset:
    """The rows with each recording as its bytes or its path; names of files are made whole."""
    kind = columns.kind(rows.features[AUDIO])
    if kind in ("dict", "struct"):
        return rows
    if kind == "binary":
        stored = [{"bytes": value, "path": None} for value in rows[AUDIO]]
    elif kind in columns.TEXT_KINDS:
        known = local.files_of(rows)
        folder = known[0].parent if known else Path()
        paths = [None if value is None else str(folder / value) for value in rows[AUDIO]]
        stored = [{"bytes": None, "path": path} for path in paths]
    else:
        raise refusal(
            f"column {task.audio_column} of split {name!r} of task {task.name}",
            Words(f"of type {rows.features[AUDIO]}"),
            "recordings, or the names of their files",
            "Name another column with --audio_column_name.",
        )
    return rows.remove_columns(AUDIO).add_column(AUDIO, stored, feature=STORED)


def _texts(
    task: Task, name: str, rows: Dataset, arguments: SpeechDataArguments
) -> list[str] | None:
    """The transcripts as the flags want them; None where a test split hides them."""
    may_hide = name in {split.name for split in task.test_splits}
    if may_hide and task.label_column not in rows.column_names:
        return None
    if may_hide and pc.all(pc.is_null(columns.of(rows, task.label_column))).as_py():
        return None
    columns.check_text(replace(task, text_columns=(task.label_column,)), name, rows)
    written = [_written(text, arguments) for text in rows[task.label_column][:]]
    if "" in written:
        index = written.index("")
        raise refusal(
            f"In {local.place(name, rows, index)}, column {task.label_column} of task {task.name}",
            rows[task.label_column][index],
            "a transcript with a character that is not ignored",
            "Write what is said, or drop the row.",
        )
    return written


def _written(text: str, arguments: SpeechDataArguments) -> str:
    """A transcript without what is ignored, in the case asked for, its words parted by a space."""
    for character in arguments.chars_to_ignore or ():
        text = text.replace(character, "")
    if arguments.text_case != "keep":
        text = text.lower() if arguments.text_case == "lower" else text.upper()
    return " ".join(text.split())


def _content(name: str, rows: Dataset, index: int) -> str:
    """A digest of a recording's file: names of files alone would hide that one has changed."""
    try:
        found = sounds.content(rows[index][AUDIO])
    except OSError as error:
        raise unreadable(name, rows, index, error) from None
    return hashlib.sha256(found).hexdigest()[:DIGITS]
