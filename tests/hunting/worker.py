"""One worker of the hunt: makes its batches, solves and judges them, tells what it found."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from .check import against_reference, judge, solve
from .rows import Batch, Spec, make
from .wrong_rows import Found

#: Wrong rows of one batch that are kept.
MOST_OF_A_BATCH = 8
#: Rows of one batch that are compared with the reference, and up to how many scores.
SAMPLED_ROWS = 2
SAMPLED_SCORES = 70_000


class Job(NamedTuple):
    """What a worker has to know."""

    device: str
    solver: str
    threads: int
    sample: int  # one batch in so many is compared with the reference


class Done(NamedTuple):
    """What a worker tells of a batch."""

    spec: Spec
    wrong: int
    found: list[Found]
    worst: float  # error over bound
    sampled: int
    seconds: float


def work(job: Job, specs: list[Spec]) -> Iterator[Done]:
    """Batch after batch."""
    device = torch.device(job.device)
    if device.type == "cpu":
        torch.set_num_threads(job.threads)
    warnings.simplefilter("ignore", RuntimeWarning)  # numpy's, from the interpreter
    for spec in specs:
        start = time.perf_counter()
        batch = make(spec, device)
        with torch.no_grad():
            wrong, error, over = judge(batch, solve(batch, job.solver))
        worst = float(over.nan_to_num(nan=torch.inf).max())
        found = []
        for index in wrong.nonzero()[:MOST_OF_A_BATCH, 0].tolist():
            reason = f"sum off by {float(error[index]):.3g}, {float(over[index]):.3g} of its bound"
            found.append(Found(spec, index, batch, float(error[index]), reason))
        sampled = 0
        if spec.number % job.sample == 0 and spec.n <= SAMPLED_SCORES:
            sampled = min(SAMPLED_ROWS, spec.rows)
            found += _differing(job, spec, batch, sampled)
        count = max(int(wrong.sum()), len(found))
        yield Done(spec, count, found, worst, sampled, time.perf_counter() - start)


def _differing(job: Job, spec: Spec, batch: Batch, rows: int) -> list[Found]:
    """Rows of the batch, spread over it, whose p or gradients are not the reference's."""
    found = []
    for number in range(rows):
        index = number * (spec.rows - 1) // max(rows - 1, 1)
        reasons = against_reference(batch.row(index), job.solver)
        if reasons:
            found.append(Found(spec, index, batch, 0.0, "; ".join(reasons)))
    return found


def run(job: Job, specs: list[Spec], tell: Callable[[Done | str | None], None]) -> None:
    """The same in a process of its own: None at the end, the traceback where it fails."""
    try:
        for done in work(job, specs):
            tell(done)
        tell(None)
    except KeyboardInterrupt:
        pass
    except BaseException:
        tell(traceback.format_exc())
