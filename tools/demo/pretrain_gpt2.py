"""Makes `finetune/demo/gpt2`: a small GPT-2, pretrained to predict the next token.

    python tools/demo/pretrain_gpt2.py

A byte-level vocabulary and the weights, both from the train side of `tasks.corpus` (documentation
of the running Python's standard library); see `pretraining.py` for how.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Tokenizer,
    PreTrainedTokenizerBase,
    set_seed,
)

from tasks import demo_lm
from tools.demo import pretraining
from tools.demo.pretraining import Arguments

END_OF_TEXT = "<|endoftext|>"
MAX_TOKENS = 256
SHIPPED = Arguments(output_dir="finetune/demo/gpt2")


def small_gpt2(tokenizer: PreTrainedTokenizerBase, arguments: Arguments) -> GPT2LMHeadModel:
    """The untrained model; pretrained without dropout."""
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=MAX_TOKENS,
        n_embd=arguments.hidden_size,
        n_layer=arguments.layers,
        n_head=arguments.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return GPT2LMHeadModel(config)


@torch.no_grad()
def warm_start(model: GPT2LMHeadModel, documents: Sequence[list[int]], seed: int) -> None:
    """Start tokens from the company they keep and positions from sinusoids."""
    deviation = model.config.initializer_range
    tokens, positions = model.transformer.wte.weight, model.transformer.wpe.weight
    vectors = pretraining.word_vectors(documents, len(tokens), tokens.shape[1], seed)
    tokens.copy_(vectors * deviation)
    # Half of BERT's start: no norm comes between these and the first layer's residual stream.
    positions.copy_(sinusoids(len(positions), positions.shape[1]) * deviation / math.sqrt(2))


def sinusoids(length: int, width: int) -> Tensor:
    """The positions of arXiv 1706.03762, sec. 3.5: (length, width), deviation about 0.7."""
    places = torch.arange(length).unsqueeze(1)
    angles = places / 10_000 ** (torch.arange(0, width, 2) / width)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def batches(documents: Sequence[list[int]], arguments: Arguments) -> Iterator[Tensor]:
    """Endless batches of token ids, (sequences, MAX_TOKENS); every epoch is shuffled and cut anew.

    Args:
        documents: token ids of each, its end of line included.
        arguments: `tokens_per_batch` and `seed`.
    """
    generator = random.Random(arguments.seed)
    count = max(1, arguments.tokens_per_batch // MAX_TOKENS)
    while True:
        order = generator.sample(documents, len(documents))
        tokens = torch.tensor([token for document in order for token in document])
        blocks = tokens[generator.randrange(MAX_TOKENS) :]
        blocks = blocks[: len(blocks) // MAX_TOKENS * MAX_TOKENS].view(-1, MAX_TOKENS)
        yield from (batch for batch in blocks.split(count) if len(batch) == count)


def losses(model: GPT2LMHeadModel, stream: Iterator[Tensor]) -> Iterator[Tensor]:
    """The mean loss a token of one batch after another, without end."""
    for ids in stream:
        yield model(input_ids=ids, labels=ids, use_cache=False).loss


def main(argv: Sequence[str] | None = None) -> None:
    """Train tokenizer and model, and write them."""
    arguments = pretraining.parse(SHIPPED, argv)
    set_seed(arguments.seed)
    texts = [demo_lm.text(document) + "\n" for document in pretraining.train_documents()]
    untrained = GPT2Tokenizer(pad_token=END_OF_TEXT, model_max_length=MAX_TOKENS)
    tokenizer = untrained.train_new_from_iterator(texts, arguments.vocab_size, show_progress=False)
    documents = tokenizer(texts, verbose=False).input_ids
    model = small_gpt2(tokenizer, arguments)
    warm_start(model, documents, arguments.seed)
    stream = losses(model, batches(documents, arguments))
    pretraining.fit(model, model.transformer.h, stream, arguments)
    pretraining.save(model, tokenizer, arguments, "resid_pdrop", "embd_pdrop", "attn_pdrop")


if __name__ == "__main__":
    main()
