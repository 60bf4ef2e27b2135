"""What the scripts that make the demo checkpoints share: settings, start, training, saving.

The text is the train side of `tasks.corpus`. Minutes on a CPU are all there is, so words start from
what counting gives, matrices get orthogonalised updates, and the schedule follows the clock. The
weights are trained in float32 and stored in float16, half the size; `config.json` asks for float32,
which is how they are loaded again.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.linalg import svds
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tasks import corpus


@dataclass
class Arguments:
    """What every script takes from the command line; each sets defaults of its own."""

    output_dir: str = field(
        default="runs/pretrained", metadata={"help": "Folder the checkpoint is written to."}
    )
    minutes: float = field(
        default=14.0, metadata={"help": "Training time; the schedule follows the clock."}
    )
    vocab_size: int = field(default=4096, metadata={"help": "Tokenizer entries."})
    hidden_size: int = field(default=128, metadata={"help": "Width of the model."})
    layers: int = field(default=4, metadata={"help": "Number of layers."})
    heads: int = field(default=4, metadata={"help": "Attention heads a layer."})
    tokens_per_batch: int = field(default=2048, metadata={"help": "Tokens a step, padding too."})
    learning_rate: float = field(default=2e-3, metadata={"help": "Peak learning rate."})
    weight_decay: float = field(default=0.01, metadata={"help": "On matrices only."})
    warmup: float = field(default=0.05, metadata={"help": "Share of the time for warm-up."})
    seed: int = field(default=0, metadata={"help": "Of weights and batches."})


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


def sinusoids(length: int, width: int) -> Tensor:
    """The positions of arXiv 1706.03762, sec. 3.5: (length, width), deviation about 0.7."""
    places = torch.arange(length).unsqueeze(1)
    angles = places / 10_000 ** (torch.arange(0, width, 2) / width)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised updates, for matrices (Jordan et al. 2024; arXiv 2502.16982).

    `torch.optim.Muon` does the same, but orthogonalises in bfloat16, which most CPUs emulate:
    measured here, its step took ten times as long as forward and backward together.
    """

    def __init__(self, matrices: Sequence[nn.Parameter], lr: float, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay, "momentum": 0.95})

    @torch.no_grad()
    def step(self) -> None:
        """One update of every matrix; the scale makes Adam's learning rates fit."""
        for group in self.param_groups:
            for matrix in group["params"]:
                momentum = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
                momentum.lerp_(matrix.grad, 1 - group["momentum"])
                update = orthogonalise(matrix.grad.lerp(momentum, group["momentum"]))
                scale = 0.2 * math.sqrt(max(matrix.shape))
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(update, alpha=-group["lr"] * scale)


def orthogonalise(matrix: Tensor) -> Tensor:
    """About the nearest matrix with orthonormal rows or columns: five Newton-Schulz steps."""
    wide = matrix.shape[0] <= matrix.shape[1]
    update = matrix if wide else matrix.T
    update = update / (update.norm() + 1e-7)
    for _ in range(5):
        gram = update @ update.T
        update = 3.4445 * update + (-4.7750 * gram + 2.0315 * gram @ gram) @ update
    return update if wide else update.T


def optimizers(
    model: nn.Module, layers: Sequence[nn.Module], arguments: Arguments
) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside `layers`, AdamW for embeddings, biases, norms and the rest."""
    matrices = [
        parameter
        for layer in layers
        for module in layer.modules()
        if not isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
        if parameter.ndim == 2
    ]
    inside = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in inside]
    return [
        Muon(matrices, arguments.learning_rate, arguments.weight_decay),
        torch.optim.AdamW(
            others, lr=arguments.learning_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True
        ),
    ]


def fit(
    model: nn.Module, layers: Sequence[nn.Module], losses: Iterator[Tensor], arguments: Arguments
) -> None:
    """Trains for `arguments.minutes`, with linear warm-up and cosine decay over that time.

    Args:
        model: what is trained, in place; left in evaluation mode.
        layers: the modules whose matrices get orthogonalised updates.
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


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes the model in float16, to be loaded as float32, and its tokenizer beside it."""
    model.half().save_pretrained(folder)
    model.config.dtype = torch.float32
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"Wrote {folder}: {model.num_parameters()} parameters, {size / 1e6:.2f} MB.")
