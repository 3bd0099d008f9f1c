"""The C++ steps of a search over many ranks: what plain torch makes of the same messages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fast_lapsum._sharded_rounds import pack, search
from fast_lapsum.backends.common import compute_dtype
from fast_lapsum.backends.cpu import kernel, shard_entry
from fast_lapsum.backends.shards import Rows, Sizes, Solved
from fast_lapsum.backends.torch import shard_entry as plain
from sharded_cases import Case, adversarial_cases, corner_cases, distribution_cases

pytestmark = pytest.mark.skipif(not kernel.supports(torch.empty(1)), reason="needs the C++ kernel")
RANKS = 3


def converse(case: Case, temperature: Tensor, steps: Any) -> tuple[list[Solved], int]:
    """What each rank finds, all of them in this process, and the number of messages."""
    kept = compute_dtype(case.scores.dtype)
    rows = Rows(len(case.k), case.scores.dtype, RANKS, looks=True)
    scale = plain.Asked.of(case.k, temperature, kept).scale
    searches = [
        search(
            shard_entry.Shard(case.part(case.scores, rank, RANKS), scale, None, True),
            case.k,
            temperature,
            rows,
            steps,
        )
        for rank in range(RANKS)
    ]
    said, found, messages = [next(one) for one in searches], [], 0
    while said:
        gathered, said, messages = torch.stack(said), [], messages + 1
        for one in searches:
            try:
                said.append(one.send(gathered))
            except StopIteration as stop:
                found.append(stop.value)
    return found, messages


def cases() -> list[Case]:
    return [*corner_cases(), *distribution_cases(), *adversarial_cases(150)]


@pytest.mark.parametrize("limit", ["soft", "hard"])
def test_steps_are_those_of_plain_torch(limit: str) -> None:
    """Thresholds to rounding, counts and ties exactly, and as many messages."""
    for case in cases():
        t = case.temperature if limit == "soft" else torch.zeros_like(case.temperature)
        (want, *_), messages = converse(case, t, plain.Steps)
        (got, *others), own_messages = converse(case, t, shard_entry.Steps)
        assert own_messages == messages, case.name
        for other in others:  # the same bits on all ranks
            for a, b in zip(got, other, strict=True):
                assert torch.equal(a.nan_to_num(), b.nan_to_num()), case.name
        in_limit = (t < torch.finfo(compute_dtype(case.scores.dtype)).tiny) | want.hi.isinf()
        close = {"rtol": 1e-13, "equal_nan": True}
        b, own_b = (torch.where(in_limit, x.hi, x.hi + x.lo) for x in (want, got))
        # The curve may be flat: then the threshold is far off before the budget is.
        slack = 1e-9 * t.clamp(min=1e-300) + 1e-13 * b.abs()
        off = (b - own_b).abs()
        is_same = (b == own_b) | (b.isnan() & own_b.isnan()) | (off <= slack)
        assert bool(is_same.all()), f"{case.name}: {b[~is_same]} {own_b[~is_same]} at {t[~is_same]}"
        for name in ("valid_count", "has_nan", "is_used_up"):
            assert torch.equal(getattr(got, name), getattr(want, name)), f"{case.name}: {name}"
        for name in ("lo", "log_share", "wanted_ties", "ties"):
            a, b = (getattr(x, name)[..., in_limit] for x in (got, want))
            torch.testing.assert_close(a, b, atol=0, msg=f"{case.name}: {name}", **close)


def test_messages_need_not_be_aligned() -> None:
    """Bytes of an odd number of halves put the numbers of the next rank anywhere."""
    nodes = torch.tensor([[2.0, 1.0, -1.0]], dtype=torch.float16)
    said = pack(torch.tensor([3.0, 3.0, 2.0, 1.0, 2.0, 0.5], dtype=torch.float64), nodes)
    assert said.numel() % 8 != 0
    k, t = torch.tensor([2.0]).double(), torch.tensor([0.5]).double()
    found = []
    for steps in (plain.Steps, shard_entry.Steps):
        one: Any = steps(k, t, Rows(1, torch.float16, 2, looks=True), Sizes(3, 3, 5))
        one.begin(torch.stack((said, said)))
        found.append((one.low, one.high, one.pivots, one.is_open))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
