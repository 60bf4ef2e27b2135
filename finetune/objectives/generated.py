"""Classification by a decoder that writes the label's word, as CodeT5 does for defects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase

from finetune.data.loaders import IGNORED
from finetune.errors import refusal
from finetune.objectives.base import Batch, Measured, Objective, answers
from tasks import Metric, Split, Task
from tasks.metrics import UNKNOWN, scores

NO_LABEL = -1  # the number of a text that is no label's word


@dataclass(frozen=True)
class GeneratedLabels(Objective):
    """Labels that a decoder writes.

    Attributes:
        task: whose labels' names are the words, and by what they are measured.
        tokenizer: turns what the decoder wrote into text.
        word_ids: the decoder's targets, int64 of shape (labels, longest), -100 after each end.
    """

    task: Task
    tokenizer: PreTrainedTokenizerBase
    word_ids: Tensor

    @classmethod
    def of(cls, task: Task, tokenizer: PreTrainedTokenizerBase) -> GeneratedLabels:
        """The task's words in this tokenizer.

        Raises:
            ValueError: it cannot spell one, so that reading would not give it back.
        """
        rows = [torch.tensor(tokenizer(text_target=x)["input_ids"]) for x in task.label_names]
        word_ids = pad_sequence(rows, batch_first=True, padding_value=IGNORED)
        made = cls(task, tokenizer, word_ids)
        for number, (word, row) in enumerate(zip(task.label_names, rows, strict=True)):
            if made.read(row[None]).tolist() != [number]:
                allowed = f"one that the tokenizer spells, and not as {tokenizer.decode(row)!r}"
                remedy = "Choose another tokenizer_name, or objective classify."
                raise refusal("the label word", word, allowed, remedy)
        return made

    @property
    def metrics(self) -> Sequence[Metric]:
        """The task's, and the share of texts that are no label's word."""
        return (*self.task.metrics, UNKNOWN)

    def weight(self, batch: Batch) -> int:
        """Tokens of the label words that the loss is a mean over."""
        return int((self.targets(batch["labels"]) != IGNORED).sum())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross-entropy over the tokens of a training batch's label words."""
        labels = self.targets(batch["labels"])
        return model(**{**batch, "labels": labels}, use_cache=False).loss

    def measure(
        self, model: nn.Module, loader: DataLoader, split: Split, accelerator: Accelerator
    ) -> Measured:
        """The task's metrics, where a text that is no label's word counts as a wrong label."""
        generator: Any = accelerator.unwrap_model(model).eval()
        written, labels = answers(
            lambda batch: self.write(generator, batch),
            loader,
            accelerator,
            f"Generating {split.name}",
        )
        if labels is None:
            return Measured({}, written.numpy())
        predicted = as_wrong(written, labels, len(self.task.label_names)).numpy()
        metrics = scores(self.task.metrics, predicted, labels.numpy())
        metrics[UNKNOWN.name] = float((written == NO_LABEL).double().mean())
        return Measured(metrics, predicted, labels.numpy(), answers=written.numpy())

    def facts(self) -> dict[str, Any]:
        """The words that were to be written."""
        return {"label_words": list(self.task.label_names)}

    def targets(self, labels: Tensor) -> Tensor:
        """Of labels (B,) the decoder's targets, (B, longest)."""
        return self.word_ids.to(labels.device)[labels]

    def read(self, written: Tensor) -> Tensor:
        """Of token ids (B, any length) the labels' numbers (B,); other texts are `NO_LABEL`."""
        texts = self.tokenizer.batch_decode(written, skip_special_tokens=True)
        numbers = {word: number for number, word in enumerate(self.task.label_names)}
        read = [numbers.get(text.strip(), NO_LABEL) for text in texts]
        return torch.tensor(read, device=written.device)

    def write(self, model: Any, inputs: Batch) -> Tensor:
        """The labels' numbers (B,) that the model writes greedily, `NO_LABEL` for other texts."""
        length = self.word_ids.shape[1]
        written = model.generate(**inputs, max_new_tokens=length, do_sample=False, num_beams=1)
        return self.read(written)


def as_wrong(predicted: Tensor, references: Tensor, labels: int) -> Tensor:
    """The predictions (B,) with a wrong label for each text that was none, so that metrics take it.

    Of two labels the other one: in F1 an unknown text misses a positive and accuses a negative.
    """
    return torch.where(predicted == NO_LABEL, (references + 1) % labels, predicted)
