"""One worker of the hunt: makes its batches, solves and judges them, tells what it found."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from .check import Verdict, against_reference, judge, solve
from .functions import function_against_reference, has_reference, judge_function, prepared
from .rows import Batch, Spec, make
from .wrong_rows import Found

#: Wrong rows of one batch that are kept.
MOST_OF_A_BATCH = 8
#: Rows of one batch that are compared with the reference: one of those over so many scores, which
#: take a while, and none of the longest.
SAMPLED_ROWS = 2
LONG_SCORES, MOST_SCORES = 70_000, 1 << 22


class Job(NamedTuple):
    """What a worker has to know."""

    device: str
    solver: str
    threads: int
    sample: int  # one batch in so many is compared with the reference
    function: str = "mask"


class Done(NamedTuple):
    """What a worker tells of a batch."""

    spec: Spec
    wrong: int
    found: list[Found]
    worst: float  # error of a sum over its bound
    misfit: float  # error of a p over its bound
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
        if job.function != "mask":
            batch = prepared(job.function, batch)
        with torch.no_grad():
            verdict = judged(job, batch)
        worst, misfit = (
            float(x.nan_to_num(nan=torch.inf).max()) for x in (verdict.over, verdict.misfit)
        )
        found = []
        for index in verdict.wrong.nonzero()[:MOST_OF_A_BATCH, 0].tolist():
            error = float(verdict.error[index])
            found.append(Found(spec, index, batch, error, verdict.reason(index)))
        is_comparable = has_reference(job.function, batch.scores.dtype)
        sampled = sampled_rows(spec, job.sample) if is_comparable else 0
        found += _differing(job, spec, batch, sampled)
        count = max(int(verdict.wrong.sum()), len(found))
        yield Done(spec, count, found, worst, misfit, sampled, time.perf_counter() - start)


def judged(job: Job, batch: Batch) -> Verdict:
    """What is said of the rows of a batch, whichever function is hunted."""
    if job.function == "mask":
        return judge(batch, solve(batch, job.solver))
    return judge_function(job.function, batch, job.solver)


def compared(job: Job, row: Batch) -> list[str]:
    """What of a batch of one row is not as the reference has it."""
    if not has_reference(job.function, row.scores.dtype):
        return []
    if job.function == "mask":
        return against_reference(row, job.solver)
    return function_against_reference(job.function, row, job.solver)


def sampled_rows(spec: Spec, one_in: int) -> int:
    """How many rows of a batch are compared with the reference.

    Batches are chosen by a hash of their number: kinds and calls come round with the number itself.
    """
    mixed = ((spec.seed * 1_000_003 + spec.number + 1) * 0x9E3779B97F4A7C15) % (1 << 64)
    mixed = ((mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9) % (1 << 64)
    if (mixed >> 32) % one_in or spec.n > MOST_SCORES:
        return 0
    return min(SAMPLED_ROWS if spec.n <= LONG_SCORES else 1, spec.rows)


def _differing(job: Job, spec: Spec, batch: Batch, rows: int) -> list[Found]:
    """Rows of the batch, spread over it, whose p or gradients are not the reference's."""
    found = []
    for number in range(rows):
        index = number * (spec.rows - 1) // max(rows - 1, 1)
        reasons = compared(job, batch.row(index))
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
