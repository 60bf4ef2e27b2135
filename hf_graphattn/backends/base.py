"""One call of an attention layer: its inputs, the matrix A, and the backends that keep A.

`eager` keeps A and applies it at every call: the reference, on any device and in any dtype.
`delegate` calls the architecture's eager attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class FirstValues:
    """The values of the first layer of a stack, in the same forward.

    Attributes:
        rows: those of the queries' tokens, (B, H, Nq, D).
        every: those of all keys, (B, H, Nk, D).
        has_graph: whether gradients were recorded when they were made.
    """

    rows: Tensor
    every: Tensor
    has_graph: bool


@dataclass(frozen=True)
class AttentionInputs:
    """The arguments of one call of an attention layer, in the one form that backends read.

    Attributes:
        query: (B, H, Nq, D).
        key: (B, H, Nk, D), or of fewer heads, which query heads share evenly.
        mask: None, or boolean (True = attend) or additive floating point, of four dimensions that
            broadcast to (B, H, Nq, Nk).
        causal: whether a query attends to no later key; only without a mask.
        scaling: of the scores.
        dropout: the share of A that is dropped.
        delegate: x -> A x, by the architecture's eager attention.
        unknown: the names of arguments that only the architecture's eager attention reads.
        first: the first layer's values, for the filters that read them.
    """

    query: Tensor
    key: Tensor
    mask: Tensor | None
    causal: bool
    scaling: float
    dropout: float
    delegate: Callable[[Tensor], Tensor] | None = None
    unknown: tuple[str, ...] = ()
    first: FirstValues | None = None

    def ungrouped(self) -> AttentionInputs:
        """The same inputs with a key head for each query head."""
        if self.key.shape[1] == self.query.shape[1]:
            return self
        return replace(self, key=one_per_query_head(self.key, self.query))

    def of_sequence(
        self, row: int, keep: Tensor, convert: Callable[[Tensor], Tensor]
    ) -> AttentionInputs:
        """The call of one sequence of the batch, without dropout, for the tokens `keep` alone.

        Queries and keys are of the same tokens. `delegate` runs as the model does, on the whole
        batch.

        Args:
            row: which sequence.
            keep: indices of tokens, ascending, so that causality holds, which attend to no other.
            convert: brings a tensor to another dtype and device.
        """

        def tokens(states: Tensor) -> Tensor:
            return convert(states[row : row + 1, :, keep.to(states.device)])

        def delegate(x: Tensor) -> Tensor:
            assert self.delegate is not None
            batch = self.query.new_zeros(*self.query.shape[:-1], x.shape[-1])
            batch[row, :, keep.to(batch.device)] = x[0].to(batch)
            return tokens(self.delegate(batch))

        mask, length = self.mask, self.query.shape[-2]
        if mask is not None:
            mask = mask[row % mask.shape[0]].expand(-1, length, length)
            at = keep.to(mask.device)
            mask = convert(mask[:, at][:, :, at]).unsqueeze(0)
        first = self.first and replace(
            self.first, rows=tokens(self.first.rows), every=tokens(self.first.every)
        )
        return replace(
            self,
            query=tokens(self.query),
            key=tokens(self.key),
            mask=mask,
            dropout=0.0,
            delegate=self.delegate and delegate,
            first=first,
        )

    def delegate_matrix(self) -> Tensor:
        """A by the architecture's eager attention: its output on the identity, (B, H, Nq, Nk)."""
        assert self.delegate is not None
        identity = torch.eye(self.key.shape[-2], dtype=self.key.dtype, device=self.key.device)
        return self.delegate(identity.expand(*self.query.shape[:2], *identity.shape))


def one_per_query_head(states: Tensor, query: Tensor) -> Tensor:
    """Keys or values, repeated where several query heads share them: one for each query head."""
    groups = query.shape[1] // states.shape[1]
    return states if groups == 1 else states.repeat_interleave(groups, dim=1)


def product(rows: Tensor, x: Tensor) -> Tensor:
    """`rows x`, (B, H, N, D): heads of `rows` that share a head of x make one matrix."""
    if rows.shape[1] == x.shape[1]:
        return rows @ x
    packed = rows.unflatten(1, (x.shape[1], -1)).flatten(2, 3)
    return (packed @ x).unflatten(2, (-1, rows.shape[2])).flatten(1, 2)


def attention_matrix(
    inputs: AttentionInputs, rows: slice = slice(None), out: Tensor | None = None
) -> Tensor:
    """`A = dropout(softmax(Q K^T * scaling + mask))`.

    A query row that may attend nowhere is all zero, as in torch's fused kernels. Where only the
    architecture's eager attention knows how A is computed, that one does.

    Args:
        inputs: the call's arguments.
        rows: the queries whose rows are computed.
        out: where A is written, without gradients; of the query's dtype, float32 or float64.

    Returns:
        A, (B, H, rows, Nk), in the query's dtype.
    """
    if inputs.unknown:
        return inputs.delegate_matrix()[:, :, rows]
    scores, allowed = _scores(inputs, rows, out)
    matrix = torch.softmax(scores, -1, out=out)
    if allowed is not None:
        matrix = torch.mul(matrix, allowed.any(-1, keepdim=True), out=out)
    matrix = matrix.to(inputs.query.dtype)
    return functional.dropout(matrix, inputs.dropout) if inputs.dropout > 0.0 else matrix


def log_sum_exp(inputs: AttentionInputs) -> Tensor:
    """`log sum_y exp(s_xy)` of the scores s, (B, H, Nq, 1), in float32 or float64.

    A is `exp(s - log_sum_exp)` before dropout. A row that may attend nowhere has a low number.
    """
    return torch.logsumexp(_scores(inputs, slice(None), None)[0], -1, keepdim=True)


def _scores(
    inputs: AttentionInputs, rows: slice, out: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The masked scores of these rows in float32 or float64, and where the rows may attend."""
    query, keys = inputs.query[:, :, rows] * inputs.scaling, inputs.key.mT
    scores = product(query, keys) if out is None else torch.matmul(query, keys, out=out)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    bias, allowed = _bias(inputs, rows, scores.dtype)
    if bias is not None:  # in place: the cost here is the passes over N x N matrices
        seen = _seen(inputs, rows)  # and autograd copies what is changed through a view
        (scores[..., seen:] if seen else scores).add_(bias)
    return scores, allowed


def _seen(inputs: AttentionInputs, rows: slice) -> int:
    """How many keys causality hides from none of these rows."""
    return rows.start or 0 if inputs.causal else 0


def _bias(
    inputs: AttentionInputs, rows: slice, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor | None]:
    """The bias of these rows' scores from the key `_seen` on, and where the rows may attend.

    The second is None where every row may attend somewhere. Where a mask may hide a whole row,
    hidden scores get the least finite number rather than minus infinity: no NaN can come of it.
    """
    if inputs.causal:
        device = inputs.query.device
        positions = torch.arange(inputs.query.shape[-2], device=device)[rows]
        keys = torch.arange(inputs.key.shape[-2], device=device)[_seen(inputs, rows) :]
        later = positions[:, None] < keys
        return torch.zeros(later.shape, dtype=dtype, device=device).masked_fill_(later, -inf), None
    mask = inputs.mask
    if mask is None:
        return None, None
    if mask.shape[-2] > 1:
        mask = mask[..., rows, :]
    lowest = torch.finfo(dtype).min
    if mask.dtype != torch.bool:
        return mask.to(dtype).clamp_min(lowest), ~mask.isneginf()
    bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return bias.masked_fill_(~mask, lowest), mask


class Attention:
    """One call of an attention layer, computed by one backend. Each backend is a subclass."""

    name: str  # the backend's
    groups = False  # whether it takes keys and x that query heads share; else they are repeated
    every_value: Tensor | None = None  # the values of all keys, where there is a cache
    # Where a cache holds the tokens of this call alone, and outside of gradients: keeps operand
    # `index` of them, (B, H, N, D), for a kernel that makes all operands at once.
    store: Callable[[int, Tensor], object] | None = None

    @classmethod
    def check_available(cls) -> None:
        """Raise `GraphAttentionError` where this backend can never run: read at patch time."""

    @classmethod
    def automatic(cls, device: str, passes: int) -> bool:
        """Whether "auto" may take it on this type of device, for a filter that attends so many
        times."""
        return True

    @classmethod
    def takes(cls, inputs: AttentionInputs, passes: int) -> bool:
        """Whether "auto" may take it for this call, of a filter that attends so many times."""
        return True

    def __init__(self, inputs: AttentionInputs) -> None:
        self.inputs = inputs

    @property
    def matrix(self) -> Tensor:
        """A, (B, H, Nq, Nk): kept by the eager backend alone."""
        raise NotImplementedError(f"backend {self.name!r} keeps no attention matrix")

    def on_identity(self, value: Tensor) -> tuple[Attention, Tensor]:
        """(attend, rows): what a filter is called with for its matrix on `value`, (B, H, Nq, D).

        `rows` are those of the identity that belong to the queries, (B, H, Nq, Nk).
        """
        length = value.shape[-2]
        identity = torch.eye(length, dtype=value.dtype, device=value.device)
        return self, identity.expand(*value.shape[:2], length, length)

    def __call__(self, x: Tensor) -> Tensor:
        """`A x`, (B, H, Nq, D) from (B, H, Nk, D)."""
        raise NotImplementedError(f"backend {self.name!r} computes no A x: variants' kernels do")


class EagerAttention(Attention):
    """Keeps A: dropout is drawn once, and every call applies the same matrix."""

    name = "eager"
    groups = True

    _matrix: Tensor | None = None

    @property
    def matrix(self) -> Tensor:
        if self._matrix is None:  # no cached_property, whose lock torch.compile cannot trace
            self._matrix = self._compute_matrix()
        return self._matrix

    def _compute_matrix(self) -> Tensor:
        return attention_matrix(self.inputs)

    def __call__(self, x: Tensor) -> Tensor:
        return product(self.matrix, x)


class DelegateAttention(EagerAttention):
    """Calls the architecture's eager attention with each x in place of the values.

    That computes whatever it knows: soft-capped scores, sinks, masks of another kind. Under dropout
    it is called once, for A itself.
    """

    name = "delegate"
    groups = False

    @classmethod
    def automatic(cls, device: str, passes: int) -> bool:
        return False  # `choose` takes it where no other can compute the call

    def _compute_matrix(self) -> Tensor:
        return self.inputs.delegate_matrix()

    def __call__(self, x: Tensor) -> Tensor:
        if self.inputs.dropout > 0.0:
            return self.matrix @ x
        assert self.inputs.delegate is not None
        return self.inputs.delegate(x)
