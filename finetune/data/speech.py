"""Recordings and transcripts to batches: read, checked, made into a model's inputs."""

from __future__ import annotations

import hashlib
import io
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.state import PartialState
from datasets import Audio, Dataset, DatasetDict
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from finetune.data import rows as checks
from finetune.data import sources
from finetune.data.loaders import IGNORED, Batching, Loaders, by_length, of_splits
from finetune.errors import Plain, Refused, joined, reason, refusal
from finetune.settings.schema import Run
from finetune.settings.speech import SpeechDataArguments
from tasks import Task, speech_recognition

logger = logging.getLogger(__name__)

# What a split's columns are called once they are checked.
AUDIO, TEXT, CONTENT = "audio", "text", "content"
AUDIO_NAMES = ("audio", "file_name", "path", "file")
TABLES = tuple(f"metadata{suffix}" for suffix in (".csv", ".jsonl", ".parquet"))
OPEN_ENDED = (8, 2**32 + 7)  # lengths that programs write who do not know it: 0, and the greatest
# Of integers that were written as floats. Squares of far greater samples overflow, and a feature
# extractor would make silence of them.
LOUDEST = 2.0**31


def load(arguments: SpeechDataArguments, predict: bool) -> tuple[Task, DatasetDict]:
    """The task, and the needed splits' rows, checked and cut to their limits.

    Their columns are ``audio`` (bytes or a path), ``content`` (a digest of its file), ``text`` (the
    transcript as the flags want it) unless hidden, and each row's number where it was read. A
    folder may have a table of its recordings in it, metadata.csv.

    Raises:
        Refused: the source, a split or a column is missing, or a row has no recording or no
            transcript.
    """
    folder = Path(arguments.dataset_name or "")
    tables = [str(folder / name) for name in TABLES if (folder / name).is_file()]
    if arguments.dataset_name is not None and tables:
        if len(tables) > 1:
            allowed = f"a folder with one table; it has {joined(Path(x).name for x in tables)}"
            raise refusal("dataset_name", str(folder), allowed, "Name one: --train_file.")
        arguments = replace(arguments, dataset_name=None, train_file=tables[0])

    def own_task(rows: DatasetDict | None) -> Task:
        return speech_recognition.own_task(rows, dataset_name=arguments.dataset_name)

    task, rows = sources.read(arguments, speech_recognition.FAMILY, own_task, predict)
    if arguments.task_name is None:
        known = next(iter(rows.values())).column_names
        flag, name = "audio_column_name", arguments.audio_column_name
        audio = checks.chosen_column(flag, name, AUDIO_NAMES, known)
        flag, name = "text_column_name", arguments.text_column_name
        text = checks.chosen_column(flag, name, sources.TEXT_NAMES, known)
        task = replace(task, audio_column=audio, label_column=text)
    rows = sources.numbered(rows)
    flag, share = "validation_split_percentage", arguments.validation_split_percentage
    rows = checks.with_validation(task, rows, flag, share)
    used = checks.needed(task, rows, arguments, predict)
    return task, DatasetDict({n: _checked(task, n, x, arguments) for n, x in used.items()})


def texts(rows: Mapping[str, Dataset]) -> dict[str, list[str]]:
    """The transcripts of each split that has them."""
    return {name: split[TEXT][:] for name, split in rows.items() if TEXT in split.column_names}


def digest(rows: Dataset) -> str:
    """A digest of all recordings and transcripts."""
    parts = [value for name in (CONTENT, TEXT) if name in rows.column_names for value in rows[name]]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[: sources.DIGITS]


def loaders(
    settings: Run[Any, Any],
    task: Task,
    rows: DatasetDict,
    processor: Any,
    frames: Callable[[Sequence[int]], Tensor],
) -> Loaders:
    """Batches of every split, of like lengths where nothing depends on the order.

    Args:
        settings: which recordings are left out, whether they are grouped, and batch sizes.
        task: the task.
        rows: each split's, of `load`.
        processor: the model's feature extractor and tokenizer.
        frames: of inputs' lengths, how many frames the model makes of each.

    Raises:
        Refused: a training transcript that the vocabulary cannot spell, or a recording
            that cannot be read, or gives the model fewer frames than its transcript needs.
    """
    extractor = processor.feature_extractor
    for name in texts(rows):
        _check_spelled(name, rows[name], processor.tokenizer, trained=name == task.train_split)
    with PartialState().main_process_first():
        encoded = {name: _encoded(name, split, processor) for name, split in rows.items()}
    kept = _kept(encoded[task.train_split], settings.data)
    for name, split in encoded.items():
        used = kept if name == task.train_split else range(len(split))
        _check_frames(name, rows[name], split, used, frames(split["length"][:]).tolist())
    encoded[task.train_split] = encoded[task.train_split].select(kept)
    lengths = {name: split["length"][:] for name, split in encoded.items()}
    sampler, order = by_length(settings, task, lengths)
    origin = sources.origin(rows, {name: digest(split) for name, split in rows.items()})
    ready = {name: split.with_format("numpy") for name, split in encoded.items()}
    if not getattr(extractor, "return_attention_mask", True):
        logger.warning(
            "The model takes no mask: its inputs depend on the padding of the batch, and so "
            "the error rates on per_device_eval_batch_size. With 1 there is none."
        )
    rate, first = extractor.sampling_rate, rows[task.validation_splits[0].name][0]
    example = samples(sources.content(first[AUDIO]), rate), rate
    how = Batching(collate=Collate(extractor), sampler=sampler, order=order)
    return of_splits(task, ready, how, settings.train, (origin, example))


@dataclass(frozen=True)
class Collate:
    """Rows to a batch, padded to the longest: inputs, their mask, and ``labels``.

    ``extractor`` says how inputs are padded, and whether the model takes a mask of them.
    """

    extractor: Any

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        key = self.extractor.model_input_names[0]
        inputs = [{key: row[key]} for row in rows]
        batch = dict(self.extractor.pad(inputs, padding=True, return_tensors="pt"))
        if "labels" in rows[0]:
            labels = [torch.tensor(row["labels"]) for row in rows]
            batch["labels"] = pad_sequence(labels, batch_first=True, padding_value=IGNORED)
        return batch


def samples(file: bytes, rate: int) -> np.ndarray:
    """The samples of a file, float32 of shape (samples,), with so many a second.

    Channels are averaged; another rate is changed by a polyphase filter, which cuts off what the
    new one cannot hold.

    Raises:
        RuntimeError: libsndfile does not know the format, or finds it broken.
        ValueError: a wav file is cut off, or some samples are NaN, infinite or beyond any scale.
    """
    import soundfile
    from scipy.signal import resample_poly

    # Of a wav file that is cut off libsndfile reads what is there.
    stated = int.from_bytes(file[4:8], "little") + 8  # what comes after the number itself
    if file[:4] == b"RIFF" and stated not in OPEN_ENDED and len(file) + 1 < stated:
        raise ValueError(f"it is cut off: {len(file)} of the {stated} bytes of its header")
    channels, stored_rate = soundfile.read(io.BytesIO(file), dtype="float32", always_2d=True)
    wave = channels.mean(axis=1)
    if not len(wave):
        raise ValueError("it holds no samples")
    if not np.isfinite(wave).all():
        raise ValueError("it holds samples that are NaN or infinite")
    if (most := np.abs(wave).max()) > LOUDEST:
        raise ValueError(f"it holds a sample of {most:g}, where full scale is 1")
    if stored_rate == rate:
        return wave
    common = math.gcd(stored_rate, rate)
    return resample_poly(wave, rate // common, stored_rate // common).astype(np.float32)


def _checked(task: Task, name: str, rows: Dataset, arguments: SpeechDataArguments) -> Dataset:
    sounds = _stored(task, name, rows)
    transcripts = _transcripts(task, name, rows, arguments)
    digests = []
    for index, row in enumerate(sounds):
        try:
            # Names of files alone would hide that one has changed.
            data = hashlib.sha256(sources.content(row[AUDIO]))
        except OSError as error:
            raise _unreadable(name, sounds, index, error) from None
        digests.append(data.hexdigest()[: sources.DIGITS])
    sounds = sounds.add_column(CONTENT, digests)
    return sounds if transcripts is None else sounds.add_column(TEXT, transcripts)


def _stored(task: Task, name: str, rows: Dataset) -> Dataset:
    """Each row's recording as `Audio` stores it, names of files made whole, and its number."""
    column = task.audio_column
    if checks.kind(rows.features[column]) == checks.TEXT:
        folder = next((path.parent for path in sources.files_of(rows)), Path())
        paths = [file and str(folder / file) for file in rows[column]]
        rows = rows.remove_columns(column).add_column(column, paths)
    with sources.reading([f"column {column} of split {name!r}{checks.source(rows)}"]):
        sounds = rows.cast_column(column, Audio(decode=False))  # `samples` decodes them
    sounds = sounds.select_columns([column, sources.ROW])
    return sounds.rename_columns({column: AUDIO} if column != AUDIO else {})


def _transcripts(
    task: Task, name: str, rows: Dataset, arguments: SpeechDataArguments
) -> list[str] | None:
    """The transcripts as the flags want them; None where a test split hides them."""
    column = task.label_column
    if name in {split.name for split in task.test_splits} and (
        column not in rows.column_names or all(text is None for text in rows[column])
    ):
        return None
    checks.check_text(replace(task, text_columns=(column,)), name, rows)
    normalised = [_normalised(text, arguments) for text in rows[column]]
    if "" in normalised:
        allowed = "a transcript with a character that is not ignored"
        cells = checks.Column(task.name, name, rows, column)
        raise cells.refused(normalised.index(""), allowed, "Write it, or drop the row.")
    return normalised


def _normalised(text: str, arguments: SpeechDataArguments) -> str:
    """A transcript without what is ignored, in the case asked for, its words parted by a space."""
    for character in arguments.chars_to_ignore or ():
        text = text.replace(character, "")
    if arguments.text_case != "keep":
        text = text.lower() if arguments.text_case == "lower" else text.upper()
    return " ".join(text.split())


def _unreadable(name: str, rows: Dataset, index: int, error: Exception) -> Refused:
    path = (rows[index][AUDIO] or {}).get("path")
    what = f"the recording{f' {path}' if path else ''} of {sources.row_name(name, rows, index)}"
    allowed = "a file that libsndfile reads: wav, flac, ogg, mp3 ..."
    remedy = f"Write it again, or drop the row. Reading it raised {reason(error)}"
    return refusal(what, Plain("unreadable"), allowed, remedy)


def _encoded(name: str, rows: Dataset, processor: Any) -> Dataset:
    """Each row's input for the model, its ``length``, its ``seconds``, and ``labels`` if known.

    Raises:
        Refused: a recording that cannot be read, or is empty.
    """
    extractor, tokenizer = processor.feature_extractor, processor.tokenizer
    rate, key = extractor.sampling_rate, extractor.model_input_names[0]

    def encode(row: dict[str, Any], index: int) -> dict[str, Any]:
        try:
            wave = samples(sources.content(row[AUDIO]), rate)
        except (OSError, RuntimeError, ValueError) as error:
            raise _unreadable(name, rows, index, error) from None
        inputs = np.asarray(extractor(wave, sampling_rate=rate)[key][0], np.float32)
        encoded = {key: inputs, "length": len(inputs), "seconds": len(wave) / rate}
        return encoded | ({"labels": tokenizer(row[TEXT])["input_ids"]} if TEXT in row else {})

    return rows.map(encode, with_indices=True, remove_columns=rows.column_names, desc="Reading")


def _check_spelled(name: str, rows: Dataset, tokenizer: Any, *, trained: bool) -> None:
    """Raise ``Refused`` for a character that the vocabulary lacks; where it is not trained on, warn
    that it counts as an error."""

    def is_lacking(sign: str) -> bool:
        return tokenizer.decode(tokenizer(sign)["input_ids"]) != sign

    special = tokenizer.all_special_tokens  # a transcript's "[PAD]" would be the blank
    signs = {sign for text in rows[TEXT] for sign in (*text, *(s for s in special if s in text))}
    lacking = sorted(filter(is_lacking, signs - {" "}))
    if not lacking:
        return
    index = next(i for i, text in enumerate(rows[TEXT]) if lacking[0] in text)
    where = f"the transcript of {sources.row_name(name, rows, index)}"
    if not trained:
        logger.warning(f"The vocabulary lacks {joined(lacking)} ({where}): each counts as an error")
        return
    known = sorted(t for t in tokenizer.get_vocab() if len(t) == 1 and not is_lacking(t))
    what, allowed = f"{where}, with unknown characters,", f"{joined(known)}, and spaces"
    remedy = "Give --text_case, --chars_to_ignore, or --tokenizer_name char for a new vocabulary."
    raise refusal(what, Plain(joined(lacking)), allowed, remedy)


def _kept(encoded: Dataset, arguments: SpeechDataArguments) -> list[int]:
    """The training rows of the durations asked for."""
    least, most = arguments.min_duration_in_seconds, arguments.max_duration_in_seconds
    seconds = np.array(encoded["seconds"][:])
    kept = np.flatnonzero((seconds >= (least or 0)) & (seconds <= (most or np.inf))).tolist()
    if len(kept) < len(seconds):
        logger.info(f"{len(seconds) - len(kept)} of {len(seconds)} training rows are left out")
    if not kept:
        what = "min_duration_in_seconds, max_duration_in_seconds"
        allowed = f"those of training rows: {seconds.min():.3g} to {seconds.max():.3g}"
        raise refusal(what, (least, most), allowed, "Change them.")
    return kept


def _check_frames(
    name: str, rows: Dataset, encoded: Dataset, used: Sequence[int], counts: list[int]
) -> None:
    """Raise ``Refused`` for a recording of too few frames: one for each character of its
    transcript, one more between two that are the same, and not fewer than one."""
    labels = encoded["labels"] if "labels" in encoded.column_names else None
    for index in used:
        spelled = [] if labels is None else labels[index]
        needed = max(1, len(spelled) + sum(a == b for a, b in pairwise(spelled)))
        if counts[index] < needed:
            what = f"the recording of {sources.row_name(name, rows, index)}"
            seconds = f"{encoded[index]['seconds']:.3g} seconds long"
            allowed = f"{needed} frames or more, for its transcript"
            remedy = "Drop the row, or leave short training rows out: --min_duration_in_seconds."
            raise refusal(what, Plain(f"{seconds}: {counts[index]} frames"), allowed, remedy)
