"""A rank that ends, does not call or calls for something else: the others end with an error."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import faults
import ranks as processes

pytestmark = processes.NEEDS_GLOO
RANKS = 3
#: Of the group, and what a process may take beyond it, on a machine that has other work: seconds.
TIMEOUT, SLACK = 3.0, 5.0
#: Twice each, and 20 times where there is time.
TIMES = [2, pytest.param(20, marks=pytest.mark.slow)]


def _run(
    function: Callable[..., Any], arguments: Sequence[Any], codes: dict[int, int], says: str
) -> None:
    """Every rank but some ends by an error that says this, in time, and no process is left."""

    def run(argument: Any) -> list[processes.Ended]:
        return processes.run_to_the_end(function, RANKS, argument, limit=60, timeout=TIMEOUT)

    with ThreadPoolExecutor(2) as pool:  # they wait, mostly
        runs = list(pool.map(run, arguments))
    for rank, one in ((rank, one) for ended in runs for rank, one in enumerate(ended)):
        assert one.code == codes.get(rank, 1), (rank, one)
        with pytest.raises(ProcessLookupError):
            os.kill(one.pid, 0)
        if rank in codes:
            continue
        found = re.search(r"CallError: ([\d.]+) s, (.*)", one.error, re.DOTALL)
        assert found, one.error
        assert float(found[1]) < TIMEOUT + SLACK, (rank, found[0])
        assert re.search(says, found[2]), found[2]
    assert multiprocessing.active_children() == []


ANOTHER_RANK = (
    r"(?s)(Connection closed by peer|Timed out waiting|Connection reset by peer|Broken pipe)"
    r".*a collective of fast_lapsum, on rank \d of 3 in the group named '0': another rank has ended"
)


@pytest.mark.parametrize("times", TIMES)
def test_a_rank_is_killed_in_the_middle_of_a_call(times: int) -> None:
    """At the first message, at a later one, or at that of the gradient."""
    collectives = [1 + i % 3 for i in range(times)]
    _run(faults.killed, collectives, {faults.VICTIM: -9}, ANOTHER_RANK)


@pytest.mark.parametrize("times", TIMES)
def test_a_rank_never_calls(times: int) -> None:
    arguments = [TIMEOUT + 3] * times
    _run(faults.never_calls, arguments, {faults.VICTIM: 0}, ANOTHER_RANK)


@pytest.mark.parametrize("times", TIMES)
def test_a_rank_has_another_k(times: int) -> None:
    says = (
        r"ValueError: k must be the same on all ranks of group, got 7 on ranks 0, 2, \d+ on rank 1"
    )
    _run(faults.another_k, range(10, 10 + times), {}, says)
