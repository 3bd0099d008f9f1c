"""Interpreted kernels of rows over many ranks: parts so small that short rows have several."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from fast_lapsum.backends.triton import shard_entry, shard_results, shard_rows
from fast_lapsum.backends.triton.shard_plan import ShardPlan

RANKS = 3

#: One warp, few scores at a time: several tiles for each of two programs, and lists that overflow.
PLAN = ShardPlan(chunks=2, warps=1, read=2, depth=6, bins=64)
make = functools.partial(shard_entry.Shard, plan=PLAN)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of some hundred scores have several pieces and programs, samples several blocks."""
    monkeypatch.setattr(shard_results, "PIECE", 1024)
    monkeypatch.setattr(shard_rows, "_SAMPLED", 128)
    monkeypatch.setattr(shard_rows, "_PLACED", 32)
