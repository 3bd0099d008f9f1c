"""Runs an experiment case by case, keeps what is finished, and goes on after anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from . import records
from .experiment import Case, Experiment, Record, Settings
from .process import WorkerProcess
from .results import write_json

Row = dict[str, Any]


class Step(NamedTuple):
    """Where a run stands; ``row`` is None when ``case`` begins."""

    case: Case
    row: Row | None
    #: Rows that are finished, those of earlier runs included.
    done: int
    total: int


class Run(NamedTuple):
    """An experiment that is ready to be measured, or is already."""

    experiment: Experiment
    #: Where a worker finds the experiment.
    module: str
    settings: Settings
    path: Path
    cases: list[Case]
    record: Record

    @property
    def missing(self) -> list[Case]:
        """Cases without a row, and those whose row is an error: it may be mended by now."""
        finished = {
            records.identity(row["key"]) for row in self.record["rows"] if row["status"] != "error"
        }
        return [case for case in self.cases if records.identity(case.key) not in finished]


def prepare(
    module: str, settings: Settings, path: Path, environment: dict[str, Any], *, fresh: bool = False
) -> Run:
    """Read what is there of a run; :class:`records.ResultsError` for a file that does not fit.

    ``fresh`` looks at no file; it is replaced when the run begins.
    """
    experiment: Experiment = import_module(module).EXPERIMENT
    cases = experiment.cases(settings)
    environment = json.loads(json.dumps(environment))  # as it comes back from a file
    if path.exists() and not fresh:
        record = records.continued(path, experiment.name, settings, environment, cases)
    else:
        record = records.new(experiment.name, settings, environment)
    return Run(experiment, module, settings, path, cases, record)


def run(
    prepared: Run,
    *,
    report: Callable[[Step], None] = lambda step: None,
    remark: Callable[[str], None] = lambda text: None,
) -> Record:
    """Measure what is missing, the whole file written after every case."""
    rows = {records.identity(row["key"]): row for row in prepared.record["rows"]}
    record = prepared.record
    missing = prepared.missing
    total = len(prepared.cases)
    done = total - len(missing)

    def save() -> None:
        in_order = (rows.get(records.identity(case.key)) for case in prepared.cases)
        record["rows"] = [row for row in in_order if row is not None]
        record["complete"] = len(record["rows"]) == total
        try:
            write_json(prepared.path, record)
        except OSError as error:
            reason = error.strerror or error
            raise records.ResultsError(f"{prepared.path} cannot be written: {reason}.") from error

    remarked = False
    save()  # a folder that cannot be written is known before anything is measured
    with WorkerProcess(prepared.module, prepared.settings) as worker:
        for case in missing:
            report(Step(case, None, done, total))
            reason = beyond_limit(case, prepared.cases, rows, prepared.settings.seconds)
            if reason:
                outcome: Row = {"status": "limit", "reason": reason}
            else:
                outcome = worker.measure(case)
                if worker.remark and not remarked:
                    remarked = True
                    remark(worker.remark)
            row = {"key": case.key, **outcome}
            rows[records.identity(case.key)] = row
            save()
            done += 1
            report(Step(case, row, done, total))
    return record


def beyond_limit(case: Case, cases: list[Case], rows: dict[str, Row], seconds: float) -> str:
    """Why a case is not worth trying, by what smaller ones of its chain did; "" if it is."""
    if not case.chain:
        return ""
    smaller = [
        (other, rows[records.identity(other.key)])
        for other in sorted(cases, key=lambda other: other.size)
        if other.chain == case.chain
        and other.size < case.size
        and records.identity(other.key) in rows
    ]
    for other, row in smaller:
        if row["status"] in ("oom", "timeout"):
            met = "out of memory" if row["status"] == "oom" else f"over {seconds:g} s"
            return f"{met} at n = {other.key.get('n', other.size):,}"
    timed = [
        (other.size, float(row["values"]["seconds"]["p50"]))
        for other, row in smaller
        if "seconds" in row.get("values", {})
    ]
    if len(timed) < 2:
        return ""
    # A straight line through the last two: at small sizes a call costs the same whatever n is.
    (size, before), (last_size, last) = timed[-2:]
    growth = max(last - before, 0.0) / (last_size - size)
    expected = last + growth * (case.size - last_size)
    return f"about {expected:.3g} s expected" if expected > seconds else ""
