"""A row's bits are its own: they depend neither on its neighbours nor on its place in a batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cases import FULL_DTYPES, generator, normal, num_threads
from fast_lapsum import log_soft_topk, select_topk, soft_topk, threshold
from fast_lapsum.backends.cpu import loader

pytestmark = pytest.mark.skipif(
    not loader.status().available, reason="plain torch adds up as torch does"
)
#: Rows that are solved several at a time, one at a time, and with a sample; each with its budget.
LENGTHS = [
    (1, 0.5),
    (8, 2),
    (64, 6),
    (197, 50),
    (256, 8.5),
    (511, 40),
    (700, 50),
    (1024, 50),
    (5000, 200),
]
CALLS = [(1.0, False), (0.1, False), (0.01, False), (0.0, False), (0.1, True)]


def solve(scores: Tensor, k: float, t: float, hard: bool, dim: int = -1) -> dict[str, Tensor]:
    """What all functions give, rows along the first dimension."""
    leaf = scores.detach().requires_grad_()
    # Of each row's own scores, so that rows which are equal get equal gradients.
    upstream = torch.cos(3 * scores)
    p, b = soft_topk(leaf, k, t, dim=dim, hard=hard, return_threshold=True)
    found = {"mask": p, "mask's gradient": torch.autograd.grad(p, leaf, upstream)[0]}
    if not hard:
        log = log_soft_topk(leaf, k, t, dim=dim)
        found |= {"log": log, "log's gradient": torch.autograd.grad(log, leaf, upstream)[0]}
        alone = threshold(leaf, k, t, dim=dim)
        assert torch.equal(alone, b)
        (found["threshold's gradient"],) = torch.autograd.grad(alone.sum(), leaf)
    if k == int(k):
        selected = select_topk(leaf, int(k), t, dim=dim)
        found |= {"places": selected.indices, "weights": selected.weights}
        (found["weights' gradient"],) = torch.autograd.grad(
            selected.weights, leaf, upstream.nan_to_num().gather(dim, selected.indices)
        )
        rows = scores.movedim(dim, -1)
        start = torch.cos(rows[..., 0].nan_to_num()).abs().double() % 1
        found["sample"] = torch.ops.fast_lapsum.sample_topk(
            rows, None, k, None, t, None, start, True, rows.dtype
        ).movedim(-1, dim)
    return {name: x.detach().movedim(dim, -1) for name, x in found.items()} | {"threshold": b}


def assert_same(actual: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert actual.keys() == wanted.keys()
    for name, got in actual.items():
        want = wanted[name]
        assert torch.equal(got, want), f"{name}: {(got != want).sum()} of {got.numel()} differ"


def calls(k: float) -> list[tuple[float, float, bool]]:
    return [(k, t, hard) for t, hard in CALLS if k == int(k) or not hard]


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@pytest.mark.parametrize(("n", "k"), LENGTHS, ids=str)
def test_equal_rows_get_equal_bits(n: int, k: float, dtype: torch.dtype) -> None:
    row = normal(n, dtype=dtype)
    for call in calls(k):
        found = solve(row.expand(37, n).contiguous(), *call)
        assert_same(found, {name: x[:1].expand_as(x) for name, x in found.items()})


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@pytest.mark.parametrize(("n", "k"), LENGTHS, ids=str)
def test_permuting_a_batch_permutes_the_result(n: int, k: float, dtype: torch.dtype) -> None:
    # Rows that are alike, rows that are not, and rows with no plain answer, among each other.
    scores = normal(41, n, dtype=dtype)
    scores[::5] = 3 + 10 * scores[::5]
    scores[7::11, n // 2] = torch.inf
    scores[8::11, n // 3] = -torch.inf
    order = torch.randperm(41, generator=generator(2))
    for _, t, hard in calls(k):
        budget = min(k, n - 1)
        wanted = solve(scores, budget, t, hard)
        permuted = {name: x[order] for name, x in wanted.items()}
        assert_same(solve(scores[order], budget, t, hard), permuted)


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@pytest.mark.parametrize(("n", "k"), LENGTHS, ids=str)
def test_a_row_alone_gets_the_bits_it_has_in_a_batch(n: int, k: float, dtype: torch.dtype) -> None:
    scores = normal(21, n, dtype=dtype)
    for call in calls(k):
        wanted = solve(scores, *call)
        for size in (1, 3, 5, 13):
            parts = [solve(part, *call) for part in scores.split(size)]
            assert_same({name: torch.cat([x[name] for x in parts]) for name in wanted}, wanted)


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@pytest.mark.parametrize(("n", "k"), LENGTHS, ids=str)
def test_bits_do_not_depend_on_the_dimension(n: int, k: float, dtype: torch.dtype) -> None:
    for rows in (3, 37):
        scores = normal(rows, n, dtype=dtype)
        for call in calls(k):
            wanted = solve(scores, *call)
            assert_same(solve(scores.mT.contiguous(), *call, dim=0), wanted)


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@pytest.mark.parametrize(
    ("shape", "k"),
    [
        *(((1, 300_001), 900), ((700, 200), 50), ((70, 2000), 90)),
        # Tiles of a little work, and fewer rows than are many.
        *(((600, 197), 50), ((5, 30_000), 90)),
    ],
)
def test_bits_do_not_depend_on_the_number_of_threads(
    shape: tuple[int, int], k: float, dtype: torch.dtype
) -> None:
    scores = normal(*shape, dtype=dtype)
    for call in calls(k):
        found = []
        for threads in (1, 2):
            with num_threads(threads):
                found.append(solve(scores, *call))
        assert_same(*found)
