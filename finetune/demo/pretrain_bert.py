"""Makes `finetune/demo/bert`: a small BERT, pretrained with masked language modelling.

    python finetune/demo/pretrain_bert.py

Everything is made here: a WordPiece vocabulary and the weights, from the train side of
`tasks.corpus` (documentation of the running Python's standard library). Trained in float32 and
stored in float16, half the size; `config.json` asks for float32, which is how it is loaded again.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pretraining
import torch
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertTokenizerFast,
    HfArgumentParser,
    PreTrainedTokenizerBase,
    set_seed,
)

from tasks import corpus

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_TOKENS = 128
IGNORED = -100


@dataclass
class Arguments(pretraining.Arguments):
    """What can be changed from the command line; the defaults made the shipped checkpoint."""

    output_dir: str = field(
        default="finetune/demo/bert", metadata={"help": "Folder the checkpoint is written to."}
    )
    minutes: float = field(
        default=12.0, metadata={"help": "Training time; the schedule follows the clock."}
    )
    tokens_per_batch: int = field(default=1024, metadata={"help": "Tokens a step, padding too."})
    learning_rate: float = field(default=3e-3, metadata={"help": "Peak learning rate."})
    mask_share: float = field(default=0.2, metadata={"help": "Share of words to predict."})


def train_tokenizer(texts: Sequence[str], vocab_size: int) -> BertTokenizerFast:
    """A lower-case WordPiece tokenizer of BERT's kind, trained on `texts`."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    cls, sep = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", sep), ("[CLS]", cls))
    return BertTokenizerFast(
        tokenizer_object=tokenizer, do_lower_case=True, model_max_length=MAX_TOKENS
    )


def small_bert(tokenizer: BertTokenizerFast, arguments: Arguments) -> BertForMaskedLM:
    """The untrained model; pretrained without dropout, fine-tuned with BERT's usual 0.1."""
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


def padded_batches(
    rows: Sequence[list[int]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    tokens_per_batch: int,
    generator: random.Random,
) -> Iterator[Tensor]:
    """The rows in a random order, in padded batches of rows alike in length.

    Args:
        rows: token ids without special tokens.
        tokenizer: gives [CLS], [SEP] and [PAD].
        tokens_per_batch: the most tokens a batch has, padding too.
        generator: source of chance.

    Yields:
        int64 of shape (rows of the batch, longest).
    """
    order = generator.sample(range(len(rows)), len(rows))
    padded = [-(-(len(row) + 2) // 8) * 8 for row in rows]
    order.sort(key=lambda index: padded[index], reverse=True)
    groups, start = [], 0
    while start < len(order):
        count = max(1, tokens_per_batch // padded[order[start]])
        groups.append(order[start : start + count])
        start += count
    generator.shuffle(groups)
    for group in groups:
        framed = [
            torch.tensor([tokenizer.cls_token_id, *rows[index], tokenizer.sep_token_id])
            for index in group
        ]
        yield pad_sequence(framed, batch_first=True, padding_value=tokenizer.pad_token_id)


def batches(
    documents: Sequence[Sequence[list[int]]],
    tokenizer: PreTrainedTokenizerBase,
    arguments: Arguments,
) -> Iterator[Tensor]:
    """Endless batches of token ids, (sequences, longest); every epoch is cut anew."""
    generator = random.Random(arguments.seed)
    while True:
        yield from padded_batches(
            chunk(documents, generator),
            tokenizer,
            tokens_per_batch=arguments.tokens_per_batch,
            generator=generator,
        )


def mask_words(
    ids: Tensor,
    continuation: Tensor,
    special: Tensor,
    share: float,
    generator: torch.Generator,
    *,
    replaced_by_mask: float = 0.7,
) -> tuple[Tensor, Tensor]:
    """BERT's masking of whole words, with replacements taken from the same sequence.

    Of the chosen words `replaced_by_mask` become [MASK]; of the rest two thirds become the token at
    another place of the sequence and one third stays. BERT replaces by a random token of the
    vocabulary; one that fits the topic but not the place makes the model look at word order.

    Args:
        ids: (B, N) token ids.
        continuation: (vocabulary,) bool, pieces that continue a word.
        special: (vocabulary,) bool, tokens never chosen.
        share: of words to choose.
        generator: source of chance.
        replaced_by_mask: share of the chosen words, 0 to 1.

    Returns:
        the corrupted ids and the labels, both (B, N); labels are -100 where nothing was chosen.
    """
    # Each piece takes the draws of its word's first piece.
    word = (~continuation[ids]).long().cumsum(dim=1) - 1
    draw, kind, shift = (
        torch.rand(ids.shape, generator=generator).gather(1, word) for _ in range(3)
    )
    chosen = (draw < share) & ~special[ids]
    labels = ids.masked_fill(~chosen, IGNORED)
    elsewhere = ids.gather(1, (shift * ids.shape[1]).long())
    elsewhere = torch.where(special[elsewhere], ids, elsewhere)
    replaced_by_other = replaced_by_mask + (1 - replaced_by_mask) * 2 / 3
    corrupted = torch.where(chosen & (kind < replaced_by_other), elsewhere, ids)
    # [MASK] is the last of the special tokens, which come first in the vocabulary.
    corrupted[chosen & (kind < replaced_by_mask)] = len(SPECIAL_TOKENS) - 1
    return corrupted, labels


def masked_loss(model: BertForMaskedLM, ids: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy over the chosen tokens; the vocabulary layer sees those only.

    Args:
        model: the model; its padding token's positions are masked.
        ids: (B, N) token ids.
        labels: (B, N), -100 where there is nothing to predict.
    """
    attention_mask = (ids != model.config.pad_token_id).long()
    hidden = model.bert(input_ids=ids, attention_mask=attention_mask).last_hidden_state
    wanted = labels != IGNORED
    return nn.functional.cross_entropy(model.cls(hidden[wanted]), labels[wanted])


def token_tables(tokenizer: BertTokenizerFast) -> tuple[Tensor, Tensor]:
    """Two (vocabulary,) bool tables: pieces that continue a word, and special tokens."""
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    continuation = torch.tensor([token.startswith("##") for token in tokens])
    special = torch.tensor([token in SPECIAL_TOKENS for token in tokens])
    return continuation, special


def encode(
    documents: Sequence[corpus.Document], tokenizer: BertTokenizerFast
) -> list[list[list[int]]]:
    """Token ids, without special tokens, of each sentence of each document, the longest cut off."""
    # Not the tokenizer's own truncation: that would be saved with it.
    encoder = partial(tokenizer, add_special_tokens=False, verbose=False)
    return [
        [ids[: MAX_TOKENS - 2] for ids in encoder(list(document.sentences))["input_ids"]]
        for document in documents
    ]


def losses(
    model: BertForMaskedLM,
    encoded: Sequence[Sequence[list[int]]],
    tokenizer: PreTrainedTokenizerBase,
    arguments: Arguments,
) -> Iterator[Tensor]:
    """The loss of one batch after another, without end."""
    generator = torch.Generator().manual_seed(arguments.seed)
    tables = token_tables(tokenizer)
    for ids in batches(encoded, tokenizer, arguments):
        yield masked_loss(model, *mask_words(ids, *tables, arguments.mask_share, generator))


def pretrain(
    model: BertForMaskedLM, tokenizer: PreTrainedTokenizerBase, arguments: Arguments
) -> BertForMaskedLM:
    """Trains for `arguments.minutes`; the model is returned with BERT's usual dropout set."""
    encoded = encode(pretraining.train_documents(), tokenizer)
    stream = losses(model, encoded, tokenizer, arguments)
    pretraining.fit(model, [model.bert.encoder], stream, arguments)
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0.1
    return model


def main() -> None:
    (arguments,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
    set_seed(arguments.seed)
    tokenizer = train_tokenizer(corpus.sentences("train"), arguments.vocab_size)
    model = pretrain(small_bert(tokenizer, arguments), tokenizer, arguments)
    pretraining.save(model, tokenizer, Path(arguments.output_dir))


if __name__ == "__main__":
    main()
