"""Rows to tensors: check, cut, tokenise, pad."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from accelerate import Accelerator
from accelerate.logging import get_logger
from datasets import Dataset, DatasetDict
from torch.utils.data import DataLoader
from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase, default_data_collator

from finetune import sources
from finetune.arguments import DataArguments, SourceArguments, TrainArguments, refusal
from finetune.literal import literal
from tasks import Split, Task

logger = get_logger(__name__)
HIDDEN_LABEL = -1


@dataclass(frozen=True)
class Loaders:
    """Batches to train on, and of each split to evaluate or predict, by the split's name."""

    train: DataLoader
    validation: dict[str, DataLoader]
    test: dict[str, DataLoader]


def load(arguments: DataArguments, family: str, predict: bool) -> tuple[Task, DatasetDict]:
    """The task and its checked rows; with ``predict`` the test splits are needed too.

    Raises ``ValueError`` if the source, a split or a column is missing, or a label is out of range.
    """
    task, rows = sources.read(arguments, family)
    return task, checked(task, rows, arguments, predict)


def checked(task: Task, rows: DatasetDict, arguments: DataArguments, predict: bool) -> DatasetDict:
    """The needed splits, cut to their limits: text columns, and ``labels`` where not hidden."""
    needed = [task.train_split, *(split.name for split in task.validation_splits)]
    needed += [split.name for split in task.test_splits] if predict else []
    check_splits(task, rows, needed)
    limits = sample_limits(arguments, task)
    return DatasetDict({n: _labelled(task, n, first_rows(rows[n], limits[n])) for n in needed})


def loaders(
    task: Task,
    rows: DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    label_order: Sequence[int],
    arguments: DataArguments,
    train: TrainArguments,
    accelerator: Accelerator,
) -> Loaders:
    """Tokenised batches of every split. ``label_order[i]`` is the model's number of label i."""
    with accelerator.main_process_first():
        tokens = {
            name: tokenise(task, split, tokenizer, label_order, arguments)
            for name, split in rows.items()
        }
    # Tensor cores want multiples of 8; without half precision the padding would be waste.
    multiple = None if accelerator.mixed_precision == "no" else 8
    collate: Any = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=multiple)
    if arguments.pad_to_max_length:
        collate = default_data_collator

    def evaluation(splits: Iterable[Split]) -> dict[str, DataLoader]:
        size = train.per_device_eval_batch_size
        return {
            split.name: DataLoader(tokens[split.name], batch_size=size, collate_fn=collate)
            for split in splits
            if split.name in tokens
        }

    return Loaders(
        DataLoader(
            tokens[task.train_split],
            shuffle=True,
            batch_size=train.per_device_train_batch_size,
            collate_fn=collate,
        ),
        evaluation(task.validation_splits),
        evaluation(task.test_splits),
    )


def tokenise(
    task: Task,
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    label_order: Sequence[int],
    arguments: DataArguments,
) -> Dataset:
    """Model inputs of each row, and ``labels`` unless the split hides them."""
    max_length = min(arguments.max_length, tokenizer.model_max_length)
    if max_length < arguments.max_length:
        logger.warning(
            f"max_length is {arguments.max_length}; the tokenizer's own limit {max_length} is used."
        )
    padding = "max_length" if arguments.pad_to_max_length else False

    def encode(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        texts = [batch[column] for column in task.text_columns]
        if task.verbatim:
            texts = [literal(column, tokenizer) for column in texts]
        encoded = tokenizer(*texts, padding=padding, max_length=max_length, truncation=True)
        if "labels" not in batch:
            return dict(encoded)
        labels = batch["labels"]
        return {**encoded, "labels": [label_order[x] for x in labels] if label_order else labels}

    return rows.map(encode, batched=True, remove_columns=rows.column_names, desc="Tokenising")


def check_splits(task: Task, rows: DatasetDict, needed: Sequence[str]) -> None:
    """Raise ``ValueError`` unless each needed split is there, with its columns and a row."""
    hidden = {split.name for split in task.test_splits}
    for name in needed:
        if name not in rows:
            raise refusal(
                f"the data of task {task.name}",
                f"without split {name!r}",
                f"data with the splits {', '.join(needed)}; it has {', '.join(rows)}",
                "Add the split, or choose another task_name or dataset_name.",
            )
        has_labels = task.label_column and name not in hidden
        labels = (task.label_column,) if has_labels else ()
        for column in (*task.text_columns, *labels):
            if column not in rows[name].column_names:
                raise refusal(
                    f"split {name!r} of task {task.name}",
                    f"without column {column!r}",
                    f"rows with {', '.join((*task.text_columns, *labels))}; it has "
                    f"{', '.join(rows[name].column_names)}",
                    "Rename its columns, or choose another task_name.",
                )
        if len(rows[name]) == 0:
            raise refusal(f"split {name!r} of task {task.name}", [], "a row or more", "Add rows.")


def sample_limits(arguments: SourceArguments, task: Task) -> dict[str, int | None]:
    """How many rows of each split are wanted, by its name; None is all."""
    limits = {split.name: arguments.max_predict_samples for split in task.test_splits}
    limits |= {split.name: arguments.max_eval_samples for split in task.validation_splits}
    return limits | {task.train_split: arguments.max_train_samples}


def first_rows(rows: Dataset, limit: int | None) -> Dataset:
    """The first so many rows, or all of them."""
    return rows if limit is None else rows.select(range(min(limit, len(rows))))


def _labelled(task: Task, name: str, rows: Dataset) -> Dataset:
    """The text columns, and ``labels`` as the task's integers or scores, unless they are hidden."""
    texts = rows.select_columns(list(task.text_columns))
    is_test = name in {split.name for split in task.test_splits}
    if is_test and (
        task.label_column not in rows.column_names
        or any(label in (HIDDEN_LABEL, None) for label in rows.unique(task.label_column))
    ):
        return texts
    try:
        known = {value: _label(task, value) for value in rows.unique(task.label_column)}
    except ValueError as error:
        raise ValueError(f"In split {name!r}: {error}") from None
    return texts.add_column("labels", [known[value] for value in rows[task.label_column]])


def _label(task: Task, value: Any) -> int | float:
    if task.objective == "regress":
        if isinstance(value, int | float) and value == value:
            return float(value)
        allowed = "a number"
    else:
        if sources.label_text(value) in task.label_names:
            return task.label_names.index(sources.label_text(value))
        if isinstance(value, int) and 0 <= value < len(task.label_names):
            return int(value)
        allowed = f"{', '.join(task.label_names)}, or 0 to {len(task.label_names) - 1}"
    remedy = "Correct the row, or choose another task_name."
    raise refusal(f"column {task.label_column} of task {task.name}", value, allowed, remedy)
