"""Makes `finetune/demo/gpt2`: a small GPT-2, pretrained to predict the next token.

    python finetune/demo/pretrain_gpt2.py

A byte-level vocabulary and the weights, both from the train side of `tasks.corpus` (documentation
of the running Python's standard library); see `pretraining.py` for how.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pretraining
import torch
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPT2TokenizerFast,
    HfArgumentParser,
    PreTrainedTokenizerBase,
    set_seed,
)

from tasks import demo_lm

END_OF_TEXT = "<|endoftext|>"
MAX_TOKENS = 256
FINE_TUNING_DROPOUT = 0.1  # GPT-2's own


@dataclass
class Arguments(pretraining.Arguments):
    """What can be changed from the command line; the defaults made the shipped checkpoint."""

    output_dir: str = field(
        default="finetune/demo/gpt2", metadata={"help": "Folder the checkpoint is written to."}
    )
    minutes: float = field(
        default=24.0, metadata={"help": "Training time; the schedule follows the clock."}
    )
    tokens_per_batch: int = field(default=1024, metadata={"help": "Tokens a step."})


def train_tokenizer(texts: Sequence[str], vocab_size: int) -> GPT2TokenizerFast:
    """A byte-level tokenizer of GPT-2's kind, trained on `texts`: it knows every text."""
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(
        texts, vocab_size, show_progress=False, special_tokens=[END_OF_TEXT]
    )
    return GPT2TokenizerFast(
        tokenizer_object=trained._tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        unk_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        model_max_length=MAX_TOKENS,
    )


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


@torch.no_grad()
def warm_start(model: GPT2LMHeadModel, documents: Sequence[list[int]], seed: int) -> None:
    """Starts tokens from the company they keep and positions from sinusoids."""
    deviation = model.config.initializer_range
    tokens, positions = model.transformer.wte.weight, model.transformer.wpe.weight
    tokens.copy_(pretraining.word_vectors(documents, *tokens.shape, seed) * deviation)
    # Half of BERT's start: no norm comes between these and the first layer's residual stream.
    positions.copy_(pretraining.sinusoids(*positions.shape) * deviation / math.sqrt(2))


def losses(model: GPT2LMHeadModel, stream: Iterator[Tensor]) -> Iterator[Tensor]:
    """The mean loss a token of one batch after another, without end."""
    for ids in stream:
        yield model(input_ids=ids, labels=ids, use_cache=False).loss


def main() -> None:
    (arguments,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
    set_seed(arguments.seed)
    texts = [demo_lm.text(document) + "\n" for document in pretraining.train_documents()]
    tokenizer = train_tokenizer(texts, arguments.vocab_size)
    model = small_gpt2(tokenizer, arguments)
    documents = tokenizer(texts)["input_ids"]
    warm_start(model, documents, arguments.seed)
    stream = losses(model, batches(documents, arguments))
    pretraining.fit(model, [model.transformer.h], stream, arguments)
    for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop"):
        setattr(model.config, name, FINE_TUNING_DROPOUT)
    pretraining.save(model, tokenizer, Path(arguments.output_dir))


if __name__ == "__main__":
    main()
