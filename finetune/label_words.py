"""Classification by an encoder-decoder that writes the label's word, as CodeT5 does for defects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from finetune.arguments import refusal

IGNORED = -100
UNKNOWN = -1  # the number of a text that is no label's word


@dataclass(frozen=True)
class LabelWords:
    """The words of a task's labels, as a decoder reads and writes them.

    Attributes:
        words: in the order of the task's labels.
        tokens: the decoder's targets, int64 of shape (labels, longest), -100 after each end.
        tokenizer: turns what the decoder wrote into text.
    """

    words: tuple[str, ...]
    tokens: Tensor
    tokenizer: PreTrainedTokenizerBase

    @classmethod
    def of(cls, words: tuple[str, ...], tokenizer: PreTrainedTokenizerBase) -> LabelWords:
        """The words in this tokenizer.

        Raises ``ValueError`` if it cannot spell one, so that reading would not give it back.
        """
        rows = [torch.tensor(tokenizer(text_target=word)["input_ids"]) for word in words]
        found = cls(words, pad_sequence(rows, batch_first=True, padding_value=IGNORED), tokenizer)
        for number, (word, row) in enumerate(zip(words, rows, strict=True)):
            if found.read(row[None]).tolist() != [number]:
                raise refusal(
                    "the label word",
                    word,
                    "one that the tokenizer spells and reads back",
                    f"This one reads {tokenizer.decode(row)!r}: choose another tokenizer_name, "
                    "or objective classify.",
                )
        return found

    def targets(self, labels: Tensor) -> Tensor:
        """Of labels (B,) the decoder's targets, (B, longest)."""
        return self.tokens.to(labels.device)[labels]

    def read(self, written: Tensor) -> Tensor:
        """Of token ids (B, any length) the labels' numbers (B,); other texts are `UNKNOWN`."""
        texts = self.tokenizer.batch_decode(written, skip_special_tokens=True)
        known = {word: number for number, word in enumerate(self.words)}
        numbers = [known.get(text.strip(), UNKNOWN) for text in texts]
        return torch.tensor(numbers, device=written.device)

    def loss(self, model: Any, batch: Mapping[str, Tensor]) -> Tensor:
        """Mean cross-entropy over the tokens of the batch's label words."""
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        return model(**inputs, labels=self.targets(batch["labels"]), use_cache=False).loss

    @torch.no_grad()
    def write(self, model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Tensor:
        """The labels' numbers (B,) that the model writes greedily, `UNKNOWN` for other texts."""
        written = model.generate(
            **inputs,
            max_new_tokens=self.tokens.shape[1],
            do_sample=False,
            num_beams=1,
        )
        return self.read(written)


def as_wrong(predicted: Tensor, references: Tensor, labels: int) -> Tensor:
    """The predictions (B,) with a wrong label for each text that was none, so that metrics take it.

    Of two labels the other one: in F1 an unknown text misses a positive and accuses a negative.
    """
    return torch.where(predicted == UNKNOWN, (references + 1) % labels, predicted)
