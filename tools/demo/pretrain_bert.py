"""Makes `finetune/demo/bert`: a small BERT, pretrained with masked language modelling.

    python tools/demo/pretrain_bert.py

Everything is made here: a WordPiece vocabulary and the weights, from the train side of
`tasks.corpus` (documentation of the running Python's standard library); see `pretraining.py`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertTokenizer,
    PreTrainedTokenizerBase,
    set_seed,
)

from tasks import corpus
from tools.demo import pretraining
from tools.demo.pretraining import IGNORED, flag

MAX_TOKENS = 128


@dataclass
class Arguments(pretraining.Arguments):
    """What can be changed from the command line."""

    mask_share: float = flag("Share of words to predict.", 0.2)


SHIPPED = Arguments(output_dir="finetune/demo/bert", minutes=12.0, learning_rate=3e-3)


def small_bert(tokenizer: PreTrainedTokenizerBase, arguments: Arguments) -> BertForMaskedLM:
    """The untrained model; pretrained without dropout."""
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=arguments.hidden_size,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.heads,
        intermediate_size=4 * arguments.hidden_size,
        max_position_embeddings=MAX_TOKENS,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    return BertForMaskedLM(config)


def encode(
    documents: Sequence[corpus.Document], tokenizer: PreTrainedTokenizerBase
) -> list[list[list[int]]]:
    """Token ids, without special tokens, of each sentence of each document, the longest cut off."""
    # The tokenizer's own truncation would be saved with it.
    return [
        [
            ids[: MAX_TOKENS - 2]
            for ids in tokenizer(
                list(document.sentences), add_special_tokens=False, verbose=False
            ).input_ids
        ]
        for document in documents
    ]


def chunk(documents: Sequence[Sequence[list[int]]], generator: random.Random) -> list[list[int]]:
    """One epoch's token sequences: neighbouring sentences of a document joined up to a length.

    Half of the sequences are single sentences, the kind of input the demo task has.
    """
    chunks: list[list[int]] = []
    for document in documents:
        current: list[int] = []
        limit = 0
        for sentence in document:
            if current and len(current) + len(sentence) > limit:
                chunks.append(current)
                current = []
            if not current:
                limit = generator.choice((0, 0, 60, 124))
            current = (current + sentence)[: MAX_TOKENS - 2]
        chunks.append(current)
    return chunks


def batches(
    rows: Sequence[list[int]],
    tokenizer: PreTrainedTokenizerBase,
    tokens_per_batch: int,
    generator: random.Random,
) -> Iterator[Tensor]:
    """The rows framed by [CLS] and [SEP], once each: int64 of shape (rows of a batch, longest)."""
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    for group in pretraining.groups(rows, tokens_per_batch, generator):
        yield pretraining.padded([[cls, *row, sep] for row in group], tokenizer.pad_token_id)


class WordMasking:
    """BERT's masking of whole words, with replacements taken from the same sequence.

    Of the chosen words `replaced_by_mask` become [MASK]; of the rest two thirds become the token at
    another place of the sequence and one third stays. BERT replaces by a random token of the
    vocabulary; one that fits the topic but not the place makes the model look at word order.

    Args:
        tokenizer: whose pieces "##..." continue a word, and whose special tokens are never chosen.
        share: of words to choose.
        replaced_by_mask: share of the chosen words, 0 to 1.
        seed: of the draws.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        share: float,
        *,
        replaced_by_mask: float = 0.7,
        seed: int = 0,
    ) -> None:
        self.share, self.replaced_by_mask = share, replaced_by_mask
        self.generator = torch.Generator().manual_seed(seed)
        self.mask_id = tokenizer.mask_token_id
        tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        self.continues = torch.tensor([token.startswith("##") for token in tokens])
        self.is_special = torch.tensor([token in tokenizer.all_special_tokens for token in tokens])

    def __call__(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The corrupted ids and the labels, -100 where nothing was chosen; all are (B, N)."""
        # Each piece takes the draws of its word's first piece.
        word = torch.cumsum(~self.continues[ids], dim=1) - 1
        draw, kind, shift = (
            torch.rand(ids.shape, generator=self.generator).gather(1, word) for _ in range(3)
        )
        chosen = (draw < self.share) & ~self.is_special[ids]
        labels = ids.masked_fill(~chosen, IGNORED)
        elsewhere = ids.gather(1, (shift * ids.shape[1]).long())
        elsewhere = torch.where(self.is_special[elsewhere], ids, elsewhere)
        replaced = self.replaced_by_mask + (1 - self.replaced_by_mask) * 2 / 3
        corrupted = torch.where(chosen & (kind < replaced), elsewhere, ids)
        corrupted[chosen & (kind < self.replaced_by_mask)] = self.mask_id
        return corrupted, labels


def chosen_logits(model: BertForMaskedLM, ids: Tensor, chosen: Tensor) -> Tensor:
    """Logits (chosen tokens, vocabulary) at the chosen places; the others never get there.

    Args:
        model: the model; its padding token's positions are masked.
        ids: (B, N) token ids.
        chosen: (B, N) bool.
    """
    padding: Any = model.config.pad_token_id
    attention_mask = (ids != padding).long()
    hidden = model.bert(input_ids=ids, attention_mask=attention_mask).last_hidden_state
    return model.cls(hidden[chosen])


def losses(
    model: BertForMaskedLM, tokenizer: PreTrainedTokenizerBase, arguments: Arguments
) -> Iterator[Tensor]:
    """The loss of one batch after another, without end; every epoch is cut anew."""
    documents = encode(pretraining.train_documents(), tokenizer)
    generator = random.Random(arguments.seed)
    mask = WordMasking(tokenizer, arguments.mask_share, seed=arguments.seed)
    while True:
        rows = chunk(documents, generator)
        for ids in batches(rows, tokenizer, arguments.tokens_per_batch, generator):
            corrupted, labels = mask(ids)
            chosen = labels != IGNORED
            logits = chosen_logits(model, corrupted, chosen)
            yield nn.functional.cross_entropy(logits, labels[chosen])


def main(argv: Sequence[str] | None = None) -> None:
    """Train tokenizer and model, and write them."""
    arguments = pretraining.parse(SHIPPED, argv)
    set_seed(arguments.seed)
    tokenizer = BertTokenizer(model_max_length=MAX_TOKENS).train_new_from_iterator(
        corpus.sentences("train"), arguments.vocab_size, show_progress=False
    )
    model = small_bert(tokenizer, arguments)
    stream = losses(model, tokenizer, arguments)
    pretraining.fit(model, model.bert.encoder, stream, arguments)
    dropout = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    pretraining.save(model, tokenizer, arguments, *dropout)


if __name__ == "__main__":
    main()
