"""The hard mask of a GPU's long rows, which needs no GPU, against the one by a stable sort."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("triton", reason="the GPU backend needs Triton")

from fast_lapsum.solvers import backend
from fast_lapsum.triton.hard import write_hard_mask

ROWS = {
    "normal": torch.randn(4, 300, generator=torch.Generator().manual_seed(0)),
    "ties": torch.randint(3, (4, 300), generator=torch.Generator().manual_seed(1)).float(),
    "constant": torch.zeros(2, 300),
    "signed zeros": torch.tensor([0.0, -0.0, 0.0, -0.0, 1.0]).repeat(2, 1),
    "infinite": torch.tensor([math.inf, -math.inf, math.inf, 0.0, -math.inf, math.inf]).repeat(
        2, 1
    ),
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("name", ROWS)
def test_agrees_with_a_stable_sort(name: str, largest: bool, masked: bool) -> None:
    scores = ROWS[name]
    n = scores.shape[-1]
    mask = torch.arange(n).expand_as(scores) % 3 != 1 if masked else None
    valid = n if mask is None else int(mask[0].sum())
    threshold = torch.zeros(len(scores), 2)
    threshold[-1, 0] = math.nan  # no answer
    for k in {0, 1, 2, n // 3, valid - 1, valid}:
        found, wanted = torch.empty_like(scores), torch.empty_like(scores)
        write_hard_mask(found, scores, mask, largest, k, threshold)
        budget = torch.full((len(scores),), float(k), dtype=torch.float64)
        backend.write_hard_mask(wanted, scores, mask, largest, budget, threshold)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
        assert found[-1].isnan().all()
        assert (found[:-1].sum(-1) == k).all()


def test_any_shape_and_dtype() -> None:
    scores = torch.randn(2, 3, 50).bfloat16()
    out = torch.empty_like(scores)
    write_hard_mask(out, scores, None, True, 7, torch.zeros(2, 3, 2))
    assert (out.sum(-1) == 7).all()
