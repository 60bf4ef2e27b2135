"""Makes `finetune/demo/t5`: a small T5, pretrained with span corruption on code and text.

    python tools/demo/pretrain_t5.py

Everything is made here: a byte-level BPE vocabulary and the weights, from the train side of the
running Python's standard library, its functions (`tasks.demo_code`) and its documentation
(`tasks.corpus`). How the minutes on a CPU are spent is in `pretraining.py`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from transformers import (
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    set_seed,
)

from finetune.settings.flags import flag
from tasks import corpus, demo_code
from tools.demo import pretraining
from tools.demo.pretraining import IGNORED

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
SENTINELS = tuple(f"<extra_id_{i}>" for i in range(32))
MAX_TOKENS = 128
TOKENIZER_LIMIT = 512


@dataclass
class Arguments(pretraining.Arguments):
    """What can be changed from the command line."""

    decoder_layers: int = flag("Layers of the decoder.", 2)
    text_share: float = flag("Documents an epoch, as a share of all of them.", 0.2)
    hidden_share: float = flag("Share of tokens to predict.", 0.2)
    longest_span: int = flag("Tokens a sentinel hides at most.", 5)


SHIPPED = Arguments(
    output_dir="finetune/demo/t5", vocab_size=3072, tokens_per_batch=2048, learning_rate=4e-3
)


def train_tokenizer(texts: Sequence[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer, trained on `texts`, that ends each text with `</s>`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, END, UNKNOWN, *SENTINELS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    end = (END, tokenizer.token_to_id(END))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", pair=f"$A {END} $B {END}", special_tokens=[end]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        additional_special_tokens=list(SENTINELS),
        model_max_length=TOKENIZER_LIMIT,
    )


def small_t5(
    tokenizer: PreTrainedTokenizerBase, arguments: Arguments
) -> T5ForConditionalGeneration:
    """The untrained model; pretrained without dropout."""
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=arguments.hidden_size,
        d_kv=arguments.hidden_size // arguments.heads,
        d_ff=4 * arguments.hidden_size,
        num_layers=arguments.layers,
        num_decoder_layers=arguments.decoder_layers,
        num_heads=arguments.heads,
        dropout_rate=0.0,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        **{"decoder_start_token_id": tokenizer.pad_token_id},
    )
    return T5ForConditionalGeneration(config)


def corrupt(
    ids: Sequence[int], sentinels: Sequence[int], arguments: Arguments, generator: random.Random
) -> tuple[list[int], list[int]]:
    """T5's span corruption (arXiv 1910.10683, sec. 3.1.4): what is left, and what was hidden.

    Each hidden span is one sentinel in the first list, and that sentinel and the span's tokens in
    the second. At least one token is hidden; spans are 1 to `longest_span` tokens.
    """
    starts = arguments.hidden_share / (1 + arguments.longest_span) * 2
    forced = generator.randrange(len(ids))
    left: list[int] = []
    hidden: list[int] = []
    used = position = 0
    while position < len(ids):
        begins = position == forced or generator.random() < starts
        if begins and used < len(sentinels):
            length = generator.randint(1, arguments.longest_span)
            left.append(sentinels[used])
            hidden += [sentinels[used], *ids[position : position + length]]
            used += 1
            position += length
        else:
            left.append(ids[position])
            position += 1
    return left, hidden


def corrupted(
    rows: Sequence[Sequence[int]],
    tokenizer: PreTrainedTokenizerBase,
    arguments: Arguments,
    generator: random.Random,
) -> dict[str, Tensor]:
    """The model's inputs and labels for these rows of token ids, each (rows, longest)."""
    vocabulary = tokenizer.get_vocab()
    sentinels = [vocabulary[token] for token in SENTINELS]
    pairs = [corrupt(ids, sentinels, arguments, generator) for ids in rows]
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    ids = pretraining.padded(([*left, end] for left, _ in pairs), pad)
    labels = pretraining.padded(([*hidden, end] for _, hidden in pairs), IGNORED)
    return {"input_ids": ids, "attention_mask": (ids != pad).long(), "labels": labels}


def epoch(
    functions: Sequence[list[int]],
    documents: Sequence[list[int]],
    arguments: Arguments,
    generator: random.Random,
) -> list[list[int]]:
    """One epoch's token ids: every function, and some documents, cut to a window each."""
    chosen = generator.sample(documents, round(arguments.text_share * len(documents)))
    cut = []
    for ids in (*functions, *chosen):
        start = generator.randint(0, max(0, len(ids) - MAX_TOKENS))
        cut.append(ids[start : start + MAX_TOKENS])
    return cut


def losses(
    model: T5ForConditionalGeneration,
    functions: Sequence[list[int]],
    documents: Sequence[list[int]],
    tokenizer: PreTrainedTokenizerBase,
    arguments: Arguments,
) -> Iterator[Tensor]:
    """The loss of one batch after another, without end; every epoch is cut anew."""
    generator = random.Random(arguments.seed)
    while True:
        rows = epoch(functions, documents, arguments, generator)
        for group in pretraining.groups(rows, arguments.tokens_per_batch, generator):
            yield model(**corrupted(group, tokenizer, arguments, generator), use_cache=False).loss


def main(argv: Sequence[str] | None = None) -> None:
    """Train tokenizer and model, and write them."""
    arguments = pretraining.parse(SHIPPED, argv)
    set_seed(arguments.seed)
    code = [f.source for f in demo_code.functions() if corpus.side_of(f.module) == "train"]
    text = [" ".join(document.sentences) for document in pretraining.train_documents()]
    tokenizer = train_tokenizer([*code, *text], arguments.vocab_size)
    functions, documents = (
        [ids for ids in tokenizer(texts, add_special_tokens=False).input_ids if len(ids) > 2]
        for texts in (code, text)
    )
    model = small_t5(tokenizer, arguments)
    vectors = pretraining.word_vectors(
        [*functions, *documents], len(tokenizer), arguments.hidden_size, arguments.seed
    )
    with torch.no_grad():
        model.shared.weight.copy_(vectors)
    layers = nn.ModuleList([model.encoder.block, model.decoder.block])
    stream = losses(model, functions, documents, tokenizer, arguments)
    pretraining.fit(model, layers, stream, arguments)
    pretraining.save(model, tokenizer, arguments, "dropout_rate")


if __name__ == "__main__":
    main()
