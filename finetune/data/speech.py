"""Recordings and transcripts to batches: read, checked, made into what a model hears."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from datasets import Dataset, DatasetDict
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from finetune.data import local, orders, sounds, speech_rows
from finetune.data.loaders import Loaders, of_splits
from finetune.data.speech_rows import AUDIO, TEXT
from finetune.data.wording import Words, listed, refusal
from finetune.settings.speech import SpeechDataArguments
from finetune.settings.training import TrainArguments
from tasks import Task

logger = logging.getLogger(__name__)

IGNORED = -100  # a label that is padding


def loaders(
    task: Task,
    rows: DatasetDict,
    processor: Any,
    frames: Callable[[Sequence[int]], Tensor],
    masked: int,
    arguments: SpeechDataArguments,
    train: TrainArguments,
    accelerator: Accelerator,
) -> Loaders:
    """Batches of every split, of like lengths where nothing depends on the order.

    Args:
        task: the task.
        rows: each split's, of `speech_rows.load`.
        processor: the model's feature extractor and tokenizer.
        frames: of inputs' lengths, how many frames the model makes of each.
        masked: frames that are masked together in training, which a recording must have.
        arguments: which recordings are left out, and whether they are grouped.
        train: batch sizes.
        accelerator: of the run.

    Raises ``Refused`` for a training transcript that the vocabulary cannot spell, and for a
    recording that cannot be read, or gives the model fewer frames than its transcript needs.
    """
    for name in speech_rows.texts(rows):
        _check_spelled(name, rows[name], processor.tokenizer, trained=name == task.train_split)
    with accelerator.main_process_first():
        heard = {name: encoded(name, split, processor) for name, split in rows.items()}
    kept = _kept(task, heard[task.train_split], arguments)
    for name, split in heard.items():
        is_trained = name == task.train_split
        used, least = (kept, masked) if is_trained else (range(len(split)), 1)
        _check_frames(name, rows[name], split, used, frames, least)
    heard[task.train_split] = heard[task.train_split].select(kept)
    lengths = {name: split["length"][:] for name, split in heard.items()}
    sampler = None
    if arguments.group_by_length:
        batches = train.gradient_accumulation_steps * accelerator.num_processes
        size = batches * train.per_device_train_batch_size
        sampler = orders.ByLength(lengths[task.train_split], size)
    order = {name: orders.longest_first(each) for name, each in lengths.items()}
    origin = local.origin(rows, {name: speech_rows.digest(split) for name, split in rows.items()})
    ready = {name: split.with_format("numpy") for name, split in heard.items()}
    collate = Collate(processor.feature_extractor)
    if not getattr(processor.feature_extractor, "return_attention_mask", True):
        logger.warning(
            "The model takes no mask: what it hears depends on the padding of its batch, and so "
            "the error rates on per_device_eval_batch_size. With 1 there is none."
        )
    rate, first = processor.feature_extractor.sampling_rate, rows[task.validation_splits[0].name][0]
    example = sounds.samples(sounds.content(first[AUDIO]), rate), rate
    return of_splits(
        task, ready, origin, train, collate, sampler=sampler, order=order, example=example
    )


def encoded(name: str, rows: Dataset, processor: Any) -> Dataset:
    """Each row's input for the model, its ``length``, its ``seconds``, and ``labels`` if known.

    Raises ``Refused`` for a recording that cannot be read, or is empty.
    """
    extractor, tokenizer = processor.feature_extractor, processor.tokenizer
    rate, key = extractor.sampling_rate, extractor.model_input_names[0]

    def encode(row: dict[str, Any], index: int) -> dict[str, Any]:
        try:
            wave = sounds.samples(sounds.content(row[AUDIO]), rate)
        except (OSError, RuntimeError, ValueError) as error:
            raise speech_rows.unreadable(name, rows, index, error) from None
        if not len(wave):
            raise speech_rows.unreadable(name, rows, index, ValueError("it holds no samples"))
        heard = np.asarray(extractor(wave, sampling_rate=rate)[key][0], np.float32)
        found = {key: heard, "length": len(heard), "seconds": len(wave) / rate}
        return found | ({"labels": tokenizer(row[TEXT])["input_ids"]} if TEXT in row else {})

    return rows.map(encode, with_indices=True, remove_columns=rows.column_names, desc="Listening")


@dataclass(frozen=True)
class Collate:
    """Rows of `encoded` to a batch, padded to the longest: inputs, their mask, and ``labels``.

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


def _check_spelled(name: str, rows: Dataset, tokenizer: Any, *, trained: bool) -> None:
    """Raise ``Refused`` for a character that the vocabulary lacks; where it is not trained on, say
    that it counts as an error."""

    def is_lacking(sign: str) -> bool:
        return tokenizer.decode(tokenizer(sign)["input_ids"]) != sign

    special = tokenizer.all_special_tokens  # a transcript's "[PAD]" would be the blank
    found = {sign for text in rows[TEXT] for sign in (*text, *(s for s in special if s in text))}
    lacking = sorted(filter(is_lacking, found - {" "}))
    if not lacking:
        return
    index = next(i for i, text in enumerate(rows[TEXT]) if lacking[0] in text)
    where = f"the transcript of {local.place(name, rows, index)}"
    if not trained:
        logger.warning(f"The vocabulary lacks {listed(lacking)} ({where}): each counts as an error")
        return
    known = sorted(t for t in tokenizer.get_vocab() if len(t) == 1 and not is_lacking(t))
    raise refusal(
        f"{where}, with characters that the vocabulary lacks,",
        Words(listed(lacking)),
        f"{listed(known)}, and spaces",
        "Give --text_case, --chars_to_ignore, or --tokenizer_name char for a new vocabulary.",
    )


def _kept(task: Task, heard: Dataset, arguments: SpeechDataArguments) -> list[int]:
    """The training rows of the durations asked for."""
    least = arguments.min_duration_in_seconds or 0.0
    most = arguments.max_duration_in_seconds or float("inf")
    seconds = heard["seconds"][:]
    kept = [index for index, value in enumerate(seconds) if least <= value <= most]
    if len(kept) < len(seconds):
        logger.info(f"{len(seconds) - len(kept)} of {len(seconds)} training rows are left out")
    if not kept:
        raise refusal(
            "min_duration_in_seconds, max_duration_in_seconds",
            (arguments.min_duration_in_seconds, arguments.max_duration_in_seconds),
            f"durations that training rows have: {min(seconds):.3g} to {max(seconds):.3g}",
            "Change them.",
        )
    return kept


def _check_frames(
    name: str,
    rows: Dataset,
    heard: Dataset,
    used: Sequence[int],
    frames: Callable[[Sequence[int]], Tensor],
    least: int,
) -> None:
    """Raise ``Refused`` for a recording of too few frames: one for each character of its
    transcript, one more between two that are the same, and not fewer than ``least``."""
    counts = frames(heard["length"][:]).tolist()
    labels = heard["labels"] if "labels" in heard.column_names else None
    why = "the model" if least == 1 else f"mask_time_length {least}"
    for index in used:
        spelled = [] if labels is None else labels[index]
        needed = max(least, len(spelled) + sum(a == b for a, b in pairwise(spelled)))
        if counts[index] < needed:
            raise refusal(
                f"the recording of {local.place(name, rows, index)}",
                Words(f"{heard[index]['seconds']:.3g} seconds long: {counts[index]} frames"),
                f"{needed} frames or more, for {'its transcript' if needed > least else why}",
                "Drop the row, or of training rows all that are as short, with "
                "--min_duration_in_seconds.",
            )
