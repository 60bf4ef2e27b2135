"""Filters in attention of one's own: by `ga.attention`, and by `ga.register_architecture`.

python examples/own_attention.py
"""

import torch
from torch import Tensor, nn

import hf_graphattn as ga


class Filtered(nn.Module):
    """Causal self-attention that calls `ga.attention` where it called torch's."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.graph_filter = ga.GFSAConfig(order=4).build(heads)  # a submodule: trained and saved

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.project(x).unflatten(-1, (3, self.heads, -1)).movedim(2, 0)
        states = (each.transpose(1, 2) for each in (query, key, value))
        out = ga.attention(*states, self.graph_filter, is_causal=True)
        return self.out(out.transpose(1, 2).flatten(2))


class Written(nn.Module):
    """Attention of another package: it drops A out by a module, and multiplies the values by it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.attention_dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.project(x).unflatten(-1, (3, self.heads, -1)).movedim(2, 0)
        query, key, value = (each.transpose(1, 2) for each in (query, key, value))
        matrix = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1)
        out = self.attention_dropout(matrix) @ value
        return self.out(out.transpose(1, 2).flatten(2))


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 10, 32)

    layer = Filtered(32, 4)
    layer(x).pow(2).sum().backward()
    print("gradient of w_K:", layer.graph_filter.w_K.grad)

    ga.register_architecture(Written, dropout="attention_dropout", num_heads="heads")
    model = nn.Sequential(Written(32, 4), nn.GELU(), Written(32, 4))
    print(ga.supported(model))
    ga.patch_model(model, ga.GFSAConfig(order=4), check={"input": x})  # compared first, in float64
    print(ga.report(model))


if __name__ == "__main__":
    main()
