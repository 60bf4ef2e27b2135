"""H for A, in attention classes that put A through a dropout module.

H is formed, of products of N x N matrices, and leaves the dropout module in A's place. So what
multiplies the values must be what left that module, which `OwnProducts` checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hf_graphattn.architectures.own_attention import row_of
from hf_graphattn.backends import DELEGATE, EAGER, Attention
from hf_graphattn.errors import GraphAttentionError, no_square, refusal
from hf_graphattn.variants import GraphFilter

# The attribute of a patched module that holds the values that its settings had before.
BEFORE = "_graph_attn_before"
PRODUCTS = (torch.matmul, torch.bmm, Tensor.matmul, Tensor.bmm, Tensor.__matmul__)


class MatrixAttention(Attention):
    """`attend` of a matrix A, (B, H, N, N), whose queries and keys are not known."""

    name = EAGER
    matrix: Any = None

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix
        self._identity: Tensor | None = None

    def on_identity(self, value: Tensor) -> tuple[Attention, Tensor]:
        _, self._identity = super().on_identity(value)
        return self, self._identity

    def __call__(self, x: Tensor) -> Tensor:
        return self.matrix if x is self._identity else self.matrix @ x


class AfterDropout:
    """Forward hook of the dropout module of an attention module: it returns H for A."""

    def __init__(self, attention: nn.Module) -> None:
        self.attention = attention

    def __call__(self, dropout: nn.Module, args: Any, matrix: Tensor) -> Tensor:
        attention: Any = self.attention
        name, graph_filter = type(attention).__name__, attention.graph_filter
        if matrix.dim() != 4 or matrix.shape[1] != graph_filter.num_heads:
            raise GraphAttentionError(
                f"the dropout module of {name} returns a tensor {tuple(matrix.shape)}, not A of "
                f"shape (B, {graph_filter.num_heads}, N, N): no filter can be put there."
            )
        if matrix.shape[-2] != matrix.shape[-1]:
            raise no_square(name, matrix.shape[-2], matrix.shape[-1])
        # torch.compile cannot trace a ContextVar; nothing is checked while it traces.
        products = None if torch.compiler.is_compiling() else OwnProducts.active.get()
        if products is not None:
            products.expect(matrix, graph_filter, name)
            return matrix
        return graph_filter.matrix(MatrixAttention(matrix), matrix)


class OwnProducts(TorchFunctionMode):
    """In this context the filters act on the values, by the very product that the class makes.

    A leaves the dropout module unchanged, and the product that takes it is made again for each pass
    of the filter. So the output is H V only if A alone passes the dropout module, and is multiplied
    by the values.

    Raises:
        GraphAttentionError: no product has taken an A.
    """

    active: ContextVar[OwnProducts | None] = ContextVar("active", default=None)

    def __enter__(self) -> Self:
        self._expected: tuple[Tensor, GraphFilter, str] | None = None
        self._token = self.active.set(self)
        super().__enter__()
        return self

    def __exit__(self, kind: Any, *about: Any) -> None:
        super().__exit__(kind, *about)
        self.active.reset(self._token)
        if kind is None:
            self._refuse_unused()

    def expect(self, matrix: Tensor, graph_filter: GraphFilter, name: str) -> None:
        self._refuse_unused()
        self._expected = matrix, graph_filter, name

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func not in PRODUCTS or not self._takes_a(args[0]):
            return func(*args, **(kwargs or {}))
        assert self._expected is not None
        (matrix, graph_filter, _), self._expected = self._expected, None
        weights, value = args
        heads, shape = matrix.shape[:2], value.shape

        def attend(x: Tensor) -> Tensor:
            return func(weights, x.reshape(shape)).reshape(*heads, *shape[-2:])

        return graph_filter(attend, value.reshape(*heads, *shape[-2:])).reshape(shape)

    def _takes_a(self, operand: object) -> bool:
        if self._expected is None or not isinstance(operand, Tensor):
            return False
        storages = (tensor.untyped_storage().data_ptr() for tensor in (operand, self._expected[0]))
        return len(set(storages)) == 1

    def _refuse_unused(self) -> None:
        if self._expected is not None:
            raise GraphAttentionError(
                f"no product takes what leaves the dropout module of {self._expected[2]}, so it "
                f"is not A, or more is done to it: no filter can be put there."
            )


def backends_of(graph_filter: GraphFilter, module: nn.Module) -> tuple[str, ...]:
    """The backends by which the filter can be computed there: H is formed of the class's A.

    Raises:
        GraphAttentionError: the filter is not linear in the values, and so has no H without them,
            or reads more of the attention than A.
    """
    is_linear = type(graph_filter).matrix is GraphFilter.matrix and not graph_filter.without_matrix
    if not is_linear or DELEGATE not in graph_filter.backends:
        raise refusal(
            "config",
            graph_filter.variant_config,
            f"a filter made of A alone and linear in the values, since {type(module).__name__} "
            f"computes attention by itself: its A can be replaced by H, and nothing else",
        )
    return (EAGER, DELEGATE)


def put_in(module: Any, graph_filter: GraphFilter) -> None:
    """Have the module's dropout module give H for A."""
    row: Any = row_of(module)
    module.graph_filter = graph_filter
    set_meanwhile(module, row.settings)
    getattr(module, row.dropout).register_forward_hook(AfterDropout(module))


def set_meanwhile(module: Any, settings: Mapping[str, Any]) -> None:
    """Give attributes of a module other values, until `set_back`."""
    module.__dict__[BEFORE] = {name: getattr(module, name) for name in settings}
    for name, value in settings.items():
        setattr(module, name, value)


def set_back(module: Any) -> None:
    """Undo `set_meanwhile`; a module where no attribute was set stays as it is."""
    for name, value in module.__dict__.pop(BEFORE, {}).items():
        setattr(module, name, value)
