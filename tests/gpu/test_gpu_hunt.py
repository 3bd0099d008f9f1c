"""Rows that once came back wrong, and a slice of the hunt, on the GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hunting import wrong_rows
from hunting.check import judge, solve
from hunting.plan import Size, specs
from hunting.worker import Job, work

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.parametrize("kept", ["on-chip-wrong", "short-rows-wrong"])
@pytest.mark.parametrize("copies", [1, 1000])
def test_kept_rows_are_right(kept: str, copies: int) -> None:
    for entry, batch in wrong_rows.read(DATA / f"{kept}.json"):
        many = batch._replace(
            scores=batch.scores.cuda().expand(copies, -1).contiguous(),
            mask=None if batch.mask is None else batch.mask.cuda().expand(copies, -1),
        )
        verdict = judge(many, solve(many))
        assert not verdict.wrong.any(), f"{wrong_rows.name(entry)}: {verdict.reason(0)}"


def test_equal_scores_of_short_rows_have_equal_p() -> None:
    """All threads of a warp go the same way: none has a threshold of its own."""
    g = torch.Generator("cuda").manual_seed(0)
    for n in (8, 15, 16, 31, 32):
        scores = torch.randint(0, 6, (200_000, n), generator=g, device="cuda") / 10
        k = torch.randint(1, 2 * n, (200_000,), generator=g, device="cuda") / 2
        t = 10 ** (-4 * torch.rand(200_000, generator=g, device="cuda"))
        batch = wrong_rows.Batch(scores, k, t, None, True)
        p = solve(batch)
        assert not judge(batch, p)[0].any()
        order = scores.argsort(dim=-1, stable=True)
        ordered, q = scores.gather(-1, order), p.gather(-1, order)
        is_equal = ordered[:, 1:] == ordered[:, :-1]
        assert torch.equal(q[:, 1:][is_equal], q[:, :-1][is_equal])


def test_a_slice_of_the_hunt_finds_nothing() -> None:
    size = Size(200_000, 500, 1 << 24, ("float32", "float64"), ("numbers", "per row"))
    found = list(work(Job("cuda", "auto", 1, 50), specs(7, size)))
    assert not [wrong_rows.name(row.entry) for done in found for row in done.found]
