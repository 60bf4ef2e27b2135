"""Each statistic on matrices whose answer is known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from hf_graphattn.diagnostics import measure

N = 6
IDENTITY = torch.eye(N, dtype=torch.float64)
UNIFORM = torch.full((N, N), 1 / N, dtype=torch.float64)
BLOCKS = torch.block_diag(UNIFORM[:3, :3], UNIFORM[:3, :3]) * 2  # two cliques of three
SHIFT = IDENTITY.roll(1, 0)  # every token looks at the next one
SIDES = torch.tensor([1.0] * 3 + [-1.0] * 3, dtype=torch.float64)[:, None]  # constant on a clique
RANK_ONE = torch.arange(1.0, N + 1, dtype=torch.float64)[:, None] * torch.tensor(
    [[3.0, 4.0]], dtype=torch.float64
)


def heads(*matrices: Tensor) -> Tensor:
    return torch.stack(matrices)


def energy(matrix: Tensor, values: Tensor, p: float) -> float:
    return measure.energy(matrix[None], measure.distances(values[None]), p).item()


def test_cosine_of_one_direction_of_orthogonal_and_of_opposite_tokens() -> None:
    assert measure.mean_cosine(RANK_ONE) == pytest.approx(1)
    assert measure.mean_cosine(IDENTITY) == pytest.approx(0)
    # Of the 30 ordered pairs 12 are alike and 18 opposite.
    assert measure.mean_cosine(SIDES) == pytest.approx((12 - 18) / 30)


def test_high_frequency_over_dc() -> None:
    assert measure.high_to_dc(UNIFORM) == pytest.approx(0)  # equal tokens
    assert measure.high_to_dc(SIDES) == math.inf  # no mean
    # f = 1..6: mean 3.5, so |DC|^2 = 6 * 12.25 and |HC|^2 = 91 - 73.5.
    assert measure.high_to_dc(RANK_ONE) == pytest.approx(math.sqrt(17.5 / 73.5))


def test_singular_values_and_effective_rank() -> None:
    one = measure.singular_values(RANK_ONE)
    assert one.tolist() == pytest.approx([5 * math.sqrt(91), 0], abs=1e-12)
    assert measure.effective_rank(one) == pytest.approx(1)
    assert measure.effective_rank(measure.singular_values(IDENTITY)) == pytest.approx(N)
    assert measure.effective_rank(measure.singular_values(BLOCKS)) == pytest.approx(2)
    assert measure.singular_values(RANK_ONE * math.nan).isnan().all()


def test_spectrum() -> None:
    found = measure.spectrum(heads(IDENTITY, UNIFORM, BLOCKS, SHIFT, UNIFORM - IDENTITY))
    expected = [[1] * 6, [1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [1] * 6, [1, 1, 1, 1, 1, 0]]
    torch.testing.assert_close(found, torch.tensor(expected).double(), atol=1e-12, rtol=0)
    broken = measure.spectrum(heads(IDENTITY * math.nan, IDENTITY))
    assert broken[0].isnan().all()
    assert broken[1].eq(1).all()


def test_fourier_response() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(N, N, dtype=torch.float64, generator=generator)
    found = measure.fourier_response(heads(IDENTITY, UNIFORM, SHIFT, UNIFORM - IDENTITY, rows))
    angles = torch.arange(N, dtype=torch.float64) * 2 * math.pi / N
    expected = [[1] * 4, [1, 0, 0, 0], [1] * 4, [0, 1, 1, 1]]  # of 0 to 3 periods over 6 tokens
    waves = [[rows @ (k * angles).cos(), rows @ (k * angles).sin()] for k in range(4)]
    expected += [[math.hypot(c.norm(), s.norm()) / math.sqrt(N) for c, s in waves]]
    target = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(found, target, atol=1e-12, rtol=0)


def test_entropy() -> None:
    found = measure.entropy(heads(IDENTITY, UNIFORM, BLOCKS))
    assert found.tolist() == pytest.approx([0, math.log(N), math.log(3)])


def test_uniform_entropy_is_the_most_that_the_zeros_allow() -> None:
    causal = torch.rand(N, N, dtype=torch.float64).tril()
    found = measure.uniform_entropy(heads(IDENTITY, UNIFORM, BLOCKS, causal))
    most = sum(math.log(n) for n in range(1, N + 1)) / N
    assert found.tolist() == pytest.approx([0, math.log(N), math.log(3), most])


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 2.5])
def test_energy(p: float) -> None:
    assert energy(IDENTITY, RANK_ONE, p) == 0  # a token is at no distance from itself
    assert energy(BLOCKS, SIDES, p) == 0  # nothing differs within a clique
    # Uniform: half of the pairs, 18 of 36, are 2 apart.
    assert energy(UNIFORM, SIDES, p) == pytest.approx(2**p * 18 / 36 / 2)
    # Neighbours of 1..6 times (3, 4) are 5 apart, the last and the first 25.
    assert energy(SHIFT, RANK_ONE, p) == pytest.approx((5 * 5**p + 25**p) / (2 * N))


def test_homophily_counts_pairs_closer_than_one() -> None:
    values = heads(SIDES / 4, SIDES, SIDES / 2)  # the two sides 0.5, 2 and exactly 1 apart
    found = measure.homophily(measure.distances(values))
    assert found.tolist() == pytest.approx([1, 12 / 30, 12 / 30])


def test_approximation_error() -> None:
    orders = tuple(range(1, 6))
    found = measure.approximation_error(heads(IDENTITY, UNIFORM, BLOCKS, SHIFT), orders)
    zero = torch.zeros(3, len(orders), dtype=torch.float64)
    torch.testing.assert_close(found[:3], zero, atol=1e-12, rtol=0)  # A^2 = A
    # Of a shift, A, A^2 and A^K have no entry in common: |2-K| + (K-1) + 1 from K = 3 on.
    assert found[3].tolist() == pytest.approx([0, 0, 4, 6, 8])


def test_spectra_of_several_lengths_meet_on_one_grid() -> None:
    straight = torch.linspace(5, 1, 7, dtype=torch.float64)
    expected = torch.linspace(5, 1, 9, dtype=torch.float64)
    torch.testing.assert_close(measure.on_grid(straight, 9), expected)
    torch.testing.assert_close(measure.on_grid(straight[:1], 9), expected[:1].expand(9))
    step = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    assert measure.on_grid(step, 5)[0].tolist() == [1, 0.75, 0.5, 0.25, 0]
