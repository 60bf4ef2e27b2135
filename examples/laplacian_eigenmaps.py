"""Laplacian eigenmaps by an untrained transformer (arXiv 2507.21040, sec. 4.1), on digits.

    python examples/laplacian_eigenmaps.py

Every digit is a token. Each block takes a step that makes tokens more alike where the graph A,
which attention draws between them, has an edge; then it normalises them:

    X <- LayerNorm(X + 2 eta (A - I) X),   A = softmax(kappa X X^T - beta I)
    X <- LayerNorm(X - 2 eta / (beta + q) X)

The paper has W_q = sqrt(kappa n) I, W_k = sqrt(kappa n / q) I and LayerNorm's weight I / sqrt(n).
Scores are then kappa times a cosine whatever n is, so tokens have the norm 1 here. The second step
scales tokens, which its LayerNorm undoes: it is kept since the paper's block has it.

The paper shows MNIST. The digits of scikit-learn (1,797 of 8 x 8 pixels), the seed and the measures
are ours: how well the first two latent dimensions part the ten digits, beside scikit-learn's own
eigenmaps. Needs scikit-learn and matplotlib.
"""

import argparse
from pathlib import Path

import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.manifold import SpectralEmbedding
from sklearn.metrics import silhouette_score
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn

import hf_graphattn as ga
from hf_graphattn.diagnostics.drawing import COLOURS, DPI, SMALL, TEXT, TITLE, WIDTH


class Block(nn.Module):
    """One step of the unrolled descent: nothing of it is learned, and one block serves for all."""

    def __init__(self, width: int, kappa: float, eta: float, beta: float) -> None:
        super().__init__()
        self.kappa, self.eta, self.beta, self.shrink = kappa, eta, beta, 2 * eta / (beta + width)
        self.graph_filter = ga.LaplacianConfig(step=1.0).build(num_heads=1)  # A - I
        self.norm = nn.LayerNorm(width)
        nn.init.constant_(self.norm.weight, width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        mask = -self.beta * torch.eye(x.shape[-2])
        mixed = ga.attention(x, x, x, self.graph_filter, scale=self.kappa, mask=mask)
        x = self.norm(x + 2 * self.eta * mixed)
        return self.norm(x - self.shrink * x)


def quality(points: Tensor, labels: Tensor) -> tuple[float, float]:
    """(silhouette, accuracy of five nearest neighbours by five-fold cross-validation)."""
    neighbours = cross_val_score(KNeighborsClassifier(5), points, labels, cv=5)
    return silhouette_score(points, labels), neighbours.mean()


@torch.no_grad()
def main(arguments: argparse.Namespace) -> None:
    torch.manual_seed(arguments.seed)
    digits = load_digits()
    pixels, labels = torch.tensor(digits.data, dtype=torch.float32), digits.target
    # W of the matrix normal distribution MN(0, I / d, I), d the number of pixels.
    projection = torch.randn(pixels.shape[1], arguments.width) * pixels.shape[1] ** -0.5
    block = Block(arguments.width, arguments.kappa, arguments.eta, arguments.beta)
    x = block.norm(pixels @ projection)[None, None]  # (batch, heads, tokens, width), one head
    eigenmaps = SpectralEmbedding(2, affinity="nearest_neighbors", random_state=arguments.seed)
    shown = {"scikit-learn": torch.tensor(eigenmaps.fit_transform(digits.data))}
    shown["block 0"] = x[0, 0, :, :2]
    for number in range(1, arguments.blocks + 1):
        x = block(x)
        shown[f"block {number}"] = x[0, 0, :, :2]
    # As wide as a column of a paper, in letters that can be read there.
    rows = -(-len(shown) // 2)
    figure = Figure(figsize=(WIDTH, 1.5 * rows + 0.6), layout="constrained")
    axes = figure.subplots(rows, 2)
    for (name, points), axis in zip(shown.items(), axes.flat, strict=False):
        silhouette, accuracy = quality(points, labels)
        print(f"{name:13s} silhouette {silhouette:+.3f}   nearest neighbours {accuracy:.3f}")
        marks = axis.scatter(*points.T, c=labels, cmap=ListedColormap(COLOURS[:10]), s=2, lw=0)
        axis.set_title(f"{name}: {accuracy:.2f}", fontsize=TEXT)
        axis.set(xticks=[], yticks=[])
    for axis in axes.flat[len(shown) :]:
        axis.remove()
    title = "First two dimensions, and the accuracy\nof five nearest neighbours in them"
    figure.suptitle(title, fontsize=TITLE, fontweight="bold")
    below = {"loc": "outside lower center", "ncols": 5, "frameon": False, "fontsize": SMALL}
    figure.legend(*marks.legend_elements(), title="digit", title_fontsize=TEXT, **below)
    figure.savefig(arguments.output, dpi=DPI)
    print(f"drawn to {arguments.output}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--width", type=int, default=128, help="Latent dimensions q.")
    parser.add_argument("--kappa", type=float, default=30.0)
    parser.add_argument("--eta", type=float, default=0.4, help="At most 0.5.")
    parser.add_argument("--beta", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("laplacian_eigenmaps.png"))
    main(parser.parse_args())
