"""Rows sorted by digits are those of a stable sort, whatever the scores and the threads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cases import FULL_DTYPES, generator, normal, num_threads
from fast_lapsum.backends.common import compute_dtype
from fast_lapsum.backends.cpu import loader, ranking_kernel

pytestmark = pytest.mark.skipif(not loader.status().available, reason="needs the C++ kernel")

#: Around where rows are sorted by digits, where digits grow, and where threads share a row.
LENGTHS = (1, 127, 128, 129, 511, 512, 2047, 2048, 5000, 200_000)
KINDS = ("normal", "tied", "one score", "sorted", "turned round", "close", "all bits", "zeros")


def draw(kind: str, n: int, dtype: torch.dtype) -> Tensor:
    """Three rows of a kind; ``all bits`` has NaN of both signs, infinities, denormal numbers."""
    scores = normal(3, n, seed=n, dtype=torch.float64)
    if kind == "tied":
        scores = scores.round()
    elif kind == "one score":
        scores = scores[:, :1].expand(-1, n)
    elif kind == "sorted":
        scores = scores.sort(-1).values
    elif kind == "turned round":
        scores = scores.sort(-1, descending=True).values
    elif kind == "close":
        scores = 1 + scores * 1e-7
    elif kind == "zeros":
        scores = torch.where(scores > 0, 0.0, torch.where(scores > -1, -0.0, scores))
    elif kind == "all bits":
        widths = {2: torch.int16, 4: torch.int32, 8: torch.int64}
        bits = widths[dtype.itemsize]
        least, most = torch.iinfo(bits).min, torch.iinfo(bits).max
        drawn = torch.randint(least, most, (3, n), dtype=bits, generator=generator(n))
        return drawn.view(dtype)
    return scores.to(dtype)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
def test_order_is_that_of_a_stable_sort(kind: str, n: int, dtype: torch.dtype) -> None:
    scores = draw(kind, n, dtype)
    for descending in (False, True):
        signed = -scores if descending else scores
        ordered, order = ranking_kernel.order_rows(scores, descending)
        wanted = torch.sort(signed, dim=-1, stable=True)
        assert ordered.dtype == compute_dtype(dtype)
        assert torch.equal(ordered.nan_to_num(), wanted.values.to(ordered.dtype).nan_to_num())
        assert torch.equal(ordered.isnan(), wanted.values.isnan())
        # torch promises no order of ties where it sorts
        if n >= ranking_kernel.BY_DIGITS_FROM[ordered.dtype]:
            assert torch.equal(order, wanted.indices)


#: The first is so long that threads share it whatever else the machine does.
SHAPES = ((1, 1_100_000), (1, 300_000), (3, 300_000), (2000, 300), (100, 5000))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_threads_change_nothing(shape: tuple[int, int]) -> None:
    scores = normal(*shape, seed=7).mul(50).round()  # with ties
    found = []
    for threads in (1, 2, 3, 7):
        with num_threads(threads):
            found.append(ranking_kernel.order_rows(scores, False))
    for ordered, order in found[1:]:
        assert torch.equal(ordered, found[0][0])
        assert torch.equal(order, found[0][1])


def test_scores_may_lie_anywhere() -> None:
    whole = normal(300, 6, seed=1)
    given = (whole.mT, whole.mT[::2], whole.mT[:, ::2], whole[:, :1].mT.expand(4, -1), whole[:, 0])
    for scores in given:
        kept = scores.clone()
        ordered, order = ranking_kernel.order_rows(scores, False)
        wanted = torch.sort(scores, dim=-1, stable=True)
        assert torch.equal(ordered, wanted.values)
        assert torch.equal(order, wanted.indices)
        assert torch.equal(scores, kept)
