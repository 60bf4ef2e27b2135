"""A graph transformer in Graphormer's manner (arXiv 2106.05234), plain and with GFSA.

    python examples/graph_regression.py
    python examples/graph_regression.py --zinc data/ZINC --steps 20000  # needs torch_geometric

Every node is a token: an embedding of its degree, and of its atom in ZINC. The scores of attention
are biased by a learned scalar a head for each length of shortest path. One more token, at a length
of its own from all others, is read out. Graphormer's encoding of edges is left out.

Without `--zinc` networkx makes graphs whose nodes have 1, 2, 3 or 6 edges, as many nodes each. The
target is the mean over the nodes of how many edges their neighbours have in the mean. The degrees
are the same in all graphs of a size, so only who is joined to whom decides. Needs networkx, scipy.
"""

import argparse
import itertools
import random
import statistics
import time
from dataclasses import dataclass

import networkx
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import hf_graphattn as ga

FURTHEST, DEGREES, ATOMS = 8, 16, 32  # longer paths and higher degrees count as these
UNREACHED, READOUT, PADDING = FURTHEST + 1, FURTHEST + 2, FURTHEST + 3
GFSA = ga.GFSAConfig(order=2)  # K = 2: the paper's for ZINC
BATCH = 32


@dataclass(frozen=True)
class Graph:
    degrees: Tensor  # (N,)
    atoms: Tensor  # (N,)
    paths: Tensor  # (1 + N, 1 + N), lengths of shortest paths; the token that is read out is first
    target: float

    @classmethod
    def of(cls, graph: networkx.Graph, target: float, atoms: Tensor | None = None) -> "Graph":
        """That of a graph whose nodes are 0, 1, ..."""
        paths = torch.full((1 + len(graph), 1 + len(graph)), READOUT)
        paths[1:, 1:] = UNREACHED
        for node, lengths in networkx.all_pairs_shortest_path_length(graph):
            for other, length in lengths.items():
                paths[1 + node, 1 + other] = min(length, FURTHEST)
        degrees = torch.tensor([graph.degree[node] for node in range(len(graph))], dtype=torch.long)
        return cls(
            degrees.clamp(max=DEGREES - 1),
            torch.zeros_like(degrees) if atoms is None else atoms,
            paths,
            target,
        )


def made(count: int, seed: int) -> list[Graph]:
    """Graphs of 12 to 20 nodes, whose edges are swapped in pairs, which leaves the degrees."""
    generator, graphs = random.Random(seed), []
    for _ in range(count):
        graph = networkx.havel_hakimi_graph([1, 2, 3, 6] * generator.randint(3, 5))
        networkx.double_edge_swap(graph, 3 * len(graph), max_tries=10**5, seed=generator)
        neighbours = networkx.average_neighbor_degree(graph).values()
        graphs.append(Graph.of(graph, statistics.mean(neighbours)))
    return graphs


def zinc(folder: str, split: str) -> list[Graph]:
    """The 12,000 molecules that the papers take, and their constrained solubility."""
    from torch_geometric.datasets import ZINC
    from torch_geometric.utils import to_networkx

    return [
        Graph.of(to_networkx(each, to_undirected=True), float(each.y), each.x.flatten())
        for each in ZINC(folder, subset=True, split=split)
    ]


class GraphTransformer(nn.Module):
    """torch's own encoder between embeddings and a head."""

    def __init__(self, width: int = 64, heads: int = 8, layers: int = 2) -> None:
        super().__init__()
        self.degree, self.atom = nn.Embedding(DEGREES, width), nn.Embedding(ATOMS, width)
        self.readout = nn.Parameter(torch.zeros(width))
        self.bias = nn.Embedding(1 + PADDING, heads)
        nn.init.normal_(self.bias.weight, std=2.0)  # heads that begin alike learn far more slowly
        layer = nn.TransformerEncoderLayer(
            width, heads, width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))

    def forward(self, degrees: Tensor, atoms: Tensor, paths: Tensor) -> Tensor:
        """The target of each graph, (B,), of (B, N), (B, N) and (B, 1 + N, 1 + N)."""
        nodes = self.degree(degrees) + self.atom(atoms)
        x = torch.cat([self.readout.expand(len(nodes), 1, -1), nodes], dim=1)
        bias = self.bias(paths).masked_fill((paths == PADDING).unsqueeze(-1), -torch.inf)
        x = self.encoder(x, mask=bias.permute(0, 3, 1, 2).flatten(0, 1))  # (B * heads, 1+N, 1+N)
        return self.head(x[:, 0]).squeeze(-1)


def batch(graphs: list[Graph]) -> tuple[Tensor, Tensor, Tensor]:
    """What the model takes."""
    degrees = pad_sequence([each.degrees for each in graphs], batch_first=True)
    atoms = pad_sequence([each.atoms for each in graphs], batch_first=True)
    length = 1 + degrees.shape[1]
    paths = torch.full((len(graphs), length, length), PADDING)
    for row, graph in enumerate(graphs):
        tokens = len(graph.paths)
        paths[row, :, :tokens] = READOUT  # rows of padding, which are not read
        paths[row, :tokens, :tokens] = graph.paths
    return degrees, atoms, paths


def targets(graphs: list[Graph]) -> Tensor:
    return torch.tensor([graph.target for graph in graphs])


def trained(arm: str, graphs: list[Graph], steps: int, seed: int) -> GraphTransformer:
    """With one seed both arms begin alike, and see the same batches."""
    torch.manual_seed(seed)
    drawn, model = random.Random(seed), GraphTransformer()
    nn.init.constant_(model.head[1].bias, targets(graphs).median())
    if arm == "gfsa":
        ga.patch_model(model, GFSA)
    rate = 1e-2 if arm == "gfsa" else None  # of its scalars
    optimizer = torch.optim.AdamW(ga.optimizer_groups(model, 2e-3, filter_learning_rate=rate))
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    for _ in range(steps):
        chosen = drawn.choices(graphs, k=BATCH)
        nn.functional.l1_loss(model(*batch(chosen)), targets(chosen)).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model.eval()


def counts(graphs: list[Graph]) -> Tensor:
    """How many nodes of each graph have each degree and each atom, and a constant, (B, ...)."""
    degrees = torch.stack([each.degrees.bincount(minlength=DEGREES) for each in graphs])
    atoms = torch.stack([each.atoms.bincount(minlength=ATOMS) for each in graphs])
    return torch.cat([degrees, atoms, torch.ones(len(graphs), 1)], dim=1).double()


def main(arguments: argparse.Namespace) -> None:
    torch.backends.mha.set_fastpath_enabled(False)  # it adds no masks: pytorch's issue 118628
    if arguments.zinc:
        train, test = zinc(arguments.zinc, "train"), zinc(arguments.zinc, "test")
    else:
        train, test = made(arguments.graphs, seed=0), made(arguments.graphs // 4, seed=1)
    known, wanted = targets(train).double(), targets(test)
    weights = torch.linalg.lstsq(counts(train), known[:, None], driver="gelsd").solution
    linear = (counts(test) @ weights).squeeze(-1)
    print(f"{len(train)} graphs, tested on {len(test)}. Mean absolute errors:")
    print(f"always the mean: {(known.mean() - wanted).abs().mean():.4f}")
    print(
        f"linear in the counts of degrees and atoms: {(linear - wanted).abs().mean():.4f}",
        flush=True,
    )
    errors: dict[str, list[float]] = {"plain": [], "gfsa": []}
    for seed, arm in itertools.product(range(arguments.seeds), errors):
        start = time.perf_counter()
        model = trained(arm, train, arguments.steps, seed)
        with torch.no_grad():
            errors[arm].append(float((model(*batch(test)) - wanted).abs().mean()))
        took = time.perf_counter() - start
        print(f"seed {seed}, {arm}: {errors[arm][-1]:.4f}, {took:.0f} s", flush=True)
    print(ga.report(model))
    if arguments.seeds > 1:
        for arm, found in errors.items():
            print(f"{arm}: {statistics.mean(found):.4f} ± {statistics.stdev(found):.4f}")
        low, high = stats.ttest_rel(errors["gfsa"], errors["plain"]).confidence_interval()
        print(f"gfsa - plain: 95 % interval {low:+.4f} to {high:+.4f} (paired t)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--zinc", help="Folder for ZINC; default: graphs made here.")
    parser.add_argument("--graphs", type=int, default=2000, help="Made for training.")
    parser.add_argument("--steps", type=int, default=600, help=f"Of {BATCH} graphs each.")
    parser.add_argument("--seeds", type=int, default=4)
    main(parser.parse_args())
