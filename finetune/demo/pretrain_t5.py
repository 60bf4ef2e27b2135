"""Makes `finetune/demo/t5`: a small T5, pretrained with span corruption on code and text.

    python finetune/demo/pretrain_t5.py

Everything is made here: a byte-level BPE vocabulary and the weights, from the train side of the
running Python's standard library, its functions (`tasks.demo_code`) and its documentation
(`tasks.corpus`). How the minutes on a CPU are spent is in `pretraining.py`.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pretraining
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    HfArgumentParser,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    set_seed,
)

from tasks import corpus, demo_code

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
SENTINELS = tuple(f"<extra_id_{i}>" for i in range(32))
MAX_TOKENS = 128
TOKENIZER_LIMIT = 512
POOL = 512  # rows sorted by length together, so that batches have little padding
IGNORED = -100
DROPOUT = 0.1


@dataclass
class Arguments(pretraining.Arguments):
    """What can be changed from the command line; the defaults made the shipped checkpoint."""

    output_dir: str = field(
        default="finetune/demo/t5", metadata={"help": "Folder the checkpoint is written to."}
    )
    minutes: float = field(
        default=24.0, metadata={"help": "Training time; the schedule follows the clock."}
    )
    vocab_size: int = field(default=3072, metadata={"help": "BPE entries, special ones included."})
    decoder_layers: int = field(default=2, metadata={"help": "Layers of the decoder."})
    learning_rate: float = field(default=4e-3, metadata={"help": "Peak learning rate."})
    text_share: float = field(
        default=0.2, metadata={"help": "Documents an epoch, as a share of all of them."}
    )
    hidden_share: float = field(default=0.2, metadata={"help": "Share of tokens to predict."})
    longest_span: int = field(default=5, metadata={"help": "Tokens a sentinel hides at most."})


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
    tokenizer: PreTrainedTokenizerFast, arguments: Arguments
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
        decoder_start_token_id=tokenizer.pad_token_id,
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


def rows(
    functions: Sequence[list[int]],
    documents: Sequence[list[int]],
    arguments: Arguments,
    generator: random.Random,
) -> list[list[int]]:
    """One epoch's token ids: every function, and some documents, cut to a window each."""
    texts = generator.sample(documents, round(arguments.text_share * len(documents)))
    chosen = [*functions, *texts]
    generator.shuffle(chosen)
    cut = []
    for ids in chosen:
        start = generator.randint(0, max(0, len(ids) - MAX_TOKENS))
        cut.append(ids[start : start + MAX_TOKENS])
    return cut


def batches(
    functions: Sequence[list[int]],
    documents: Sequence[list[int]],
    tokenizer: PreTrainedTokenizerFast,
    arguments: Arguments,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless inputs and labels, both (sequences, longest); every epoch is cut anew."""
    generator = random.Random(arguments.seed)
    sentinels = tokenizer.convert_tokens_to_ids(list(SENTINELS))
    end = tokenizer.eos_token_id
    while True:
        epoch = rows(functions, documents, arguments, generator)
        groups = []
        for first in range(0, len(epoch), POOL):
            pool = sorted(epoch[first : first + POOL], key=len)
            while pool:
                count = max(1, arguments.tokens_per_batch // (len(pool[-1]) + 1))
                groups.append(pool[-count:])
                del pool[-count:]
        generator.shuffle(groups)
        for group in groups:
            pairs = [corrupt(ids, sentinels, arguments, generator) for ids in group]
            yield tuple(
                pad_sequence([torch.tensor([*ids, end]) for ids in side], True, padding)
                for side, padding in zip(
                    zip(*pairs, strict=True), (tokenizer.pad_token_id, IGNORED), strict=True
                )
            )


def losses(
    model: T5ForConditionalGeneration,
    functions: Sequence[list[int]],
    documents: Sequence[list[int]],
    tokenizer: PreTrainedTokenizerFast,
    arguments: Arguments,
) -> Iterator[Tensor]:
    """Endless losses, one a batch, under the weights of the moment."""
    for ids, labels in batches(functions, documents, tokenizer, arguments):
        mask = (ids != tokenizer.pad_token_id).long()
        yield model(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss


def main() -> None:
    """Train tokenizer and model, and write them."""
    (arguments,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
    set_seed(arguments.seed)
    code = [f.source for f in demo_code.functions() if corpus.side_of(f.module) == "train"]
    text = [" ".join(document.sentences) for document in pretraining.train_documents()]
    tokenizer = train_tokenizer([*code, *text], arguments.vocab_size)
    functions, documents = (
        [ids for ids in tokenizer(texts, add_special_tokens=False)["input_ids"] if len(ids) > 2]
        for texts in (code, text)
    )
    model = small_t5(tokenizer, arguments)
    vectors = pretraining.word_vectors(
        [*functions, *documents], len(tokenizer), arguments.hidden_size, arguments.seed
    )
    with torch.no_grad():
        model.shared.weight.copy_(vectors)
    pretraining.fit(
        model,
        [*model.encoder.block, *model.decoder.block],
        losses(model, functions, documents, tokenizer, arguments),
        arguments,
    )
    model.config.dropout_rate = DROPOUT
    pretraining.save(model, tokenizer, Path(arguments.output_dir))


if __name__ == "__main__":
    main()
