"""What the scripts that make the demo checkpoints share: settings, batches, training, saving.

The text is the train side of `tasks.corpus`. Minutes on a CPU are all there is, so words may start
from what counting gives, matrices get orthogonalised updates, and the schedule follows the clock.
The weights are trained in float32 and stored in float16, half the size; `config.json` asks for
float32, which is how they are loaded again.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from accelerate.utils import tqdm
from scipy.sparse import coo_array
from scipy.sparse.linalg import svds
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import HfArgumentParser, PreTrainedModel, PreTrainedTokenizerBase
from transformers.hf_argparser import HfArg

from tasks import corpus

IGNORED = -100
Parsed = TypeVar("Parsed")


def flag(text: str, default: Any) -> Any:
    """A field that is a flag with this help and default."""
    return HfArg(help=text, default=default)


@dataclass
class Arguments:
    """What every script takes from the command line."""

    output_dir: str = flag("Folder the checkpoint is written to.", "runs/pretrained")
    minutes: float = flag("Training time; the schedule follows the clock.", 24.0)
    vocab_size: int = flag("Tokenizer entries, special ones included.", 4096)
    hidden_size: int = flag("Width of the model.", 128)
    layers: int = flag("Number of layers.", 4)
    heads: int = flag("Attention heads a layer.", 4)
    tokens_per_batch: int = flag("Tokens a step, padding too.", 1024)
    learning_rate: float = flag("Peak learning rate.", 2e-3)
    weight_decay: float = flag("On matrices only.", 0.01)
    warmup: float = flag("Share of the time for warm-up.", 0.05)
    seed: int = flag("Of weights and batches.", 0)


def parse(defaults: Parsed, argv: Sequence[str] | None) -> Parsed:
    """Settings of the kind of ``defaults`` from ``argv`` (None: the process's), and from these."""
    kind: Any = type(defaults)
    parser = HfArgumentParser(kind)
    parser.set_defaults(**vars(defaults))
    (found,) = parser.parse_args_into_dataclasses(argv)
    return found


def train_documents() -> list[corpus.Document]:
    """The documents of the train side, in the corpus's order."""
    return [document for document in corpus.documents() if document.side == "train"]


def word_vectors(texts: Sequence[Sequence[int]], vocab_size: int, width: int, seed: int) -> Tensor:
    """Embeddings that start words from the company they keep: (vocab_size, width), deviation 1.

    From random embeddings most of the minutes would go into learning what counting gives at once:
    a truncated singular value decomposition of the positive pointwise mutual information with the
    two neighbours on either side, each place a column of its own (Levy and Goldberg 2014).

    Args:
        texts: token ids, one sequence a text.
        vocab_size: number of different ids.
        width: number of singular vectors kept.
        seed: of the decomposition's start.
    """
    ids = [np.asarray(text) for text in texts]
    pairs = []
    for column, offset in enumerate((1, 2)):
        left = np.concatenate([text[:-offset] for text in ids])
        right = np.concatenate([text[offset:] for text in ids])
        pairs += [
            (left, right + 2 * column * vocab_size),
            (right, left + (2 * column + 1) * vocab_size),
        ]
    rows, columns = (np.concatenate(side) for side in zip(*pairs, strict=True))
    shape = (vocab_size, 4 * vocab_size)
    counts = coo_array((np.ones(len(rows)), (rows, columns)), shape=shape).tocsr()
    total, of_row, of_column = counts.sum(), counts.sum(axis=1), counts.sum(axis=0)
    information = counts.tocoo()
    chance = of_row[information.row] * of_column[information.col] / total
    information.data = np.maximum(np.log(information.data / chance), 0.0)
    left_vectors, values, _ = svds(information, k=width, rng=seed)
    words = torch.from_numpy(left_vectors * np.sqrt(values)).float()
    words -= words.mean(dim=0)
    return words / words.std()


def groups(
    rows: Sequence[list[int]], tokens_per_batch: int, generator: random.Random
) -> list[list[list[int]]]:
    """All rows, in batches of rows alike in length; the batches are in a random order.

    Args:
        rows: token ids, without the one or two special tokens that they will get.
        tokens_per_batch: the most tokens that a batch has, padding too.
        generator: source of chance.
    """
    order = generator.sample(range(len(rows)), len(rows))
    padded = [-(-(len(row) + 2) // 8) * 8 for row in rows]
    order.sort(key=lambda index: padded[index], reverse=True)
    batches, start = [], 0
    while start < len(order):
        count = max(1, tokens_per_batch // padded[order[start]])
        batches.append([rows[index] for index in order[start : start + count]])
        start += count
    generator.shuffle(batches)
    return batches


def padded(rows: Iterable[Sequence[int]], value: int) -> Tensor:
    """The rows in one tensor, (rows, longest), filled up at their ends."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=value)


def optimizers(
    model: nn.Module, layers: nn.Module, arguments: Arguments
) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside `layers`, AdamW for embeddings, biases, norms and the rest.

    Muon (Jordan et al. 2024, arXiv 2502.16982) orthogonalises in bfloat16: it is quick where the
    CPU has that, and many times slower than the model itself where the CPU emulates it.
    """
    matrices = [
        parameter
        for module in layers.modules()
        if not isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
        if parameter.ndim == 2
    ]
    inside = {id(parameter) for parameter in matrices}
    others = [parameter for parameter in model.parameters() if id(parameter) not in inside]
    return [
        torch.optim.Muon(
            matrices,
            lr=arguments.learning_rate,
            weight_decay=arguments.weight_decay,
            adjust_lr_fn="match_rms_adamw",  # so that Adam's learning rates fit
        ),
        torch.optim.AdamW(
            others, lr=arguments.learning_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True
        ),
    ]


def fit(
    model: nn.Module, layers: nn.Module, losses: Iterator[Tensor], arguments: Arguments
) -> None:
    """Train for `arguments.minutes`, with linear warm-up and cosine decay over that time.

    Args:
        model: what is trained, in place; left in evaluation mode.
        layers: the part whose matrices get orthogonalised updates.
        losses: endless; each next one is the loss of the next batch under the present weights.
        arguments: settings of the optimizers and the schedule.
    """
    both = optimizers(model, layers, arguments)
    running, seconds, begin = math.nan, 60 * arguments.minutes, time.monotonic()
    model.train()
    with tqdm(total=round(seconds), unit="s", desc="pretraining") as bar:
        for step, loss in enumerate(losses):
            elapsed = time.monotonic() - begin
            if elapsed >= seconds:
                break
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in both:
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(elapsed / seconds, arguments)
                optimizer.step()
                optimizer.zero_grad()
            running = loss.item() if step == 0 else running + 0.02 * (loss.item() - running)
            bar.update(round(elapsed) - bar.n)
            if step % 50 == 0:
                bar.set_postfix(step=step, loss=f"{running:.3f}")
    model.eval()


def learning_rate(progress: float, arguments: Arguments) -> float:
    """Linear warm-up, then a cosine to zero; `progress` is the share of the time spent."""
    if progress < arguments.warmup:
        return arguments.learning_rate * progress / arguments.warmup
    rest = (progress - arguments.warmup) / (1 - arguments.warmup)
    return arguments.learning_rate * 0.5 * (1 + math.cos(math.pi * rest))


def save(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, arguments: Arguments, *dropout: str
) -> None:
    """Write the model in float16, to be loaded as float32, and its tokenizer beside it.

    The settings of its config that are named in `dropout` are set to 0.1 for those who fine-tune.
    """
    folder = Path(arguments.output_dir)
    model.config.update(dict.fromkeys(dropout, 0.1))
    model.half().save_pretrained(folder)
    model.config.dtype = torch.float32
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"Wrote {folder}: {model.num_parameters()} parameters, {size / 1e6:.2f} MB.")
