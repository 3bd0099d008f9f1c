"""All methods over a folder of pictures: one row per picture, setting, calls and method (rows.py).

Every row is saved as soon as it is there (with several jobs, within a second or so), the whole file
at once, so a run that is killed loses at most the rows it was in, and goes on from there. Rows that
failed are then tried again. Rows of another model, seed, limit, machine, code or picture are never
mixed: such a file is refused.
"""

from __future__ import annotations

import csv
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fast_lapsum.bench.display import number_of
from fast_lapsum.bench.records import identity
from fast_lapsum.bench.results import write_json

from . import pictures
from .comparison_file import CompareError, Record, started, weights
from .rows import Entry, Load, Maker, Note, Plan, Row, Task, setting_name
from .workers import Died, Pool

#: With several jobs: rows come often, and the file grows.
_SECONDS_BETWEEN_SAVES = 1.0
_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")

Ask = Callable[[Iterable[Any]], Iterator[tuple[Any, Any]]]


def entries(folder: Path) -> list[Entry]:
    """The pictures of ``folder``: those that manifest.csv has labels for, or all without one."""
    manifest = folder / "manifest.csv"
    if not manifest.exists():
        found = [
            Entry(one, None) for one in sorted(folder.iterdir()) if one.suffix.lower() in _SUFFIXES
        ]
        if not found:
            raise CompareError(f"{folder} has no pictures ({', '.join(_SUFFIXES)})")
        return found
    with manifest.open(newline="", encoding="utf-8") as lines:
        reader = csv.DictReader(lines)
        missing = {"file", "class_index"} - set(reader.fieldnames or ())
        if missing:
            raise CompareError(f"{manifest} has no column {', '.join(sorted(missing))}")
        listed = [(row["file"], row["class_index"]) for row in reader]
    try:
        labelled = [Entry(folder / name, int(index)) for name, index in listed if index]
    except ValueError as error:
        raise CompareError(f"{manifest}: class_index must be a whole number ({error})") from error
    for name, count in Counter(entry.path.name for entry in labelled).items():
        if count > 1:
            raise CompareError(f"{manifest} has {count} pictures of the name {name}, expected one")
    return labelled


def run(
    folder: Path,
    plan: Plan,
    load: Load,
    path: Path,
    device: torch.device,
    report: Callable[[str], None],
    fresh: bool = False,
    jobs: int = 1,
) -> Record:
    """Run what ``path`` does not hold yet, saving as rows are finished; the whole record.

    All pictures are examined first. With several ``jobs``, processes with a model of their own
    (``load`` has to be picklable) share the rows, those of most calls first.
    """
    found = entries(folder)
    # Where a model's folder lies is nobody's business in a results file.
    model = Path(plan.model).name if Path(plan.model).is_dir() else plan.model
    settings = {
        **plan._asdict(),
        "model": model,
        "weights": weights(plan.model),
        "device": str(device),
        "jobs": jobs,
    }
    record = started(path, settings, fresh)
    _forget_the_absent(found, record)
    digests = _digests(found, record, path)
    file = _File(path, record, 0.0 if jobs == 1 else _SECONDS_BETWEEN_SAVES)
    try:
        with _asked(partial(Maker, plan, load, jobs), jobs, file.save_if_due) as ask:
            notes = _examined(found, digests, plan, ask, record, file, report)
            _attacked(_tasks(found, notes, plan), ask, record, file, report, jobs)
        record["complete"] = True
        file.save_if_due(changed=True)
    finally:
        file.close()
    return record


def _forget_the_absent(found: list[Entry], record: Record) -> None:
    """What was said of pictures that have no rows and are not in the folder, or not any more."""
    known = {entry.path.name for entry in found} | {row["key"]["picture"] for row in record["rows"]}
    record["pictures"] = [note for note in record["pictures"] if note["picture"] in known]


def _digests(found: list[Entry], record: Record, path: Path) -> dict[str, str | None]:
    """Each picture's SHA-256, or what it was where there is none now; none with rows may change."""
    used = {row["key"]["picture"] for row in record["rows"]}
    before = {
        note["picture"]: note.get("sha256")
        for note in record["pictures"]
        if note["picture"] in used
    }
    digests = {entry.path.name: pictures.digest(entry.path) for entry in found}
    for entry in found:
        old, new = before.get(entry.path.name), digests[entry.path.name]
        if old is not None and new is not None and old != new:
            raise CompareError(
                f"{entry.path} is not the picture that the rows of {path} were made from (its"
                f" SHA-256 was {old[:16]}..., is {new[:16]}...). Give another --out, or --fresh to"
                " start over."
            )
    return {name: digest or before.get(name) for name, digest in digests.items()}


def _examined(
    found: list[Entry],
    digests: dict[str, str | None],
    plan: Plan,
    ask: Ask,
    record: Record,
    file: _File,
    report: Callable[[str], None],
) -> dict[tuple[str, str], Note]:
    """What becomes of every picture in every setting; it goes on record."""
    notes: dict[tuple[str, str], Note] = {}
    for entry, answer in ask(found):
        if isinstance(answer, Died):
            why = f"{entry.path}: {answer.reason}"
            left_out = {"picture": entry.path.name, "used": False, "why": why, "bad": True}
            answer = [{**left_out, "setting": setting_name(resize)} for resize in plan.settings]
        answer = [{**note, "sha256": digests[entry.path.name]} for note in answer]
        new = {(note["picture"], note["setting"]): note for note in answer}
        kept = [one for one in record["pictures"] if (one["picture"], one["setting"]) not in new]
        record["pictures"] = [*kept, *answer]
        notes |= new
        file.save_if_due(changed=True)
        for note in answer:
            if not note["used"]:
                report(f"{note['picture']}, {note['setting']}: left out, {note['why']}")
    return notes


def _tasks(found: list[Entry], notes: dict[tuple[str, str], Note], plan: Plan) -> Iterator[Task]:
    for resize in plan.settings:
        setting = setting_name(resize)
        for entry in found:
            picture = entry.path.name
            note = notes.get((picture, setting))
            if note is None or not note["used"]:
                continue
            for calls in plan.calls:
                for name in plan.methods:
                    key = {"picture": picture, "setting": setting, "calls": calls, "method": name}
                    yield Task(key, entry.path, resize, note["label"])


def _attacked(
    tasks: Iterable[Task],
    ask: Ask,
    record: Record,
    file: _File,
    report: Callable[[str], None],
    jobs: int,
) -> None:
    """Rows for the tasks that the record has none for yet, or none to be kept."""
    planned = list(tasks)
    kept = {identity(row["key"]): _is_kept(row, jobs) for row in record["rows"]}
    left = [task for task in planned if not kept.get(identity(task.key))]
    if jobs > 1:
        left.sort(key=lambda task: -task.key["calls"])  # or the end waits for one that began late
    finished = len(planned) - len(left)
    for task, answer in ask(left):
        if isinstance(answer, Died):
            answer = {"status": "error", "reason": answer.reason}
        row = {"key": task.key, "jobs": jobs, **answer}
        if identity(task.key) in kept:
            record["rows"] = [one for one in record["rows"] if one["key"] != task.key]
        record["rows"].append(row)
        finished += 1
        file.save_if_due(changed=True)
        report(f"[{finished}/{len(planned)}] {_line(row)}")


def _is_kept(row: Row, jobs: int) -> bool:
    """Whether a row would be no other if it was made again, for all that is known."""
    if row["status"] != "ok":
        return False  # memory may be free now, and who was killed may live
    return not row["values"]["timed_out"] or row["jobs"] == jobs


@contextmanager
def _asked(setup: Callable[[], Maker], jobs: int, idle: Callable[[], None]) -> Iterator[Ask]:
    """How tasks are answered: here, or by several processes."""
    if jobs == 1:
        make = setup()
        yield lambda tasks: ((task, make(task)) for task in tasks)
        return
    # torch knows how many cores there are for it, and whether the user wants fewer.
    with Pool(setup, jobs, max(1, torch.get_num_threads() // jobs)) as pool:
        yield lambda tasks: pool.run(tasks, idle)


class _File:
    """The results file: written when something changed, but not all the time."""

    def __init__(self, path: Path, record: Record, pause: float) -> None:
        self._path = path
        self._record = record
        self._pause = pause
        self._changed = False
        self._due = -math.inf

    def save_if_due(self, changed: bool = False) -> None:
        """Save changes unless the last time was just now."""
        self._changed |= changed
        if self._changed and time.monotonic() >= self._due:
            self._save()

    def close(self) -> None:
        """Save what is not saved yet."""
        if self._changed:
            self._save()

    def _save(self) -> None:
        start = time.monotonic()
        write_json(self._path, self._record)
        self._changed = False
        end = time.monotonic()
        # A file that takes long to write is written less often.
        self._due = end + self._pause * max(1.0, 10 * (end - start))


def _line(row: Row) -> str:
    key = row["key"]
    where = (
        f"{key['picture']}, {key['setting']}, {number_of(key['calls'], 'call')}, {key['method']}"
    )
    if row["status"] != "ok":
        return f"{where}: {row['status']}, {row['reason']}"
    values = row["values"]
    time = f"{number_of(values['calls'], 'call')}, {values['seconds']:.1f} s"
    if values["timed_out"]:
        time += ", time is up"
    if not values["success"]:
        return f"{where}: not fooled, {time}"
    support = "" if values["L_star"] is None else f", L* = {values['L_star']:,}"
    return f"{where}: B = {values['B']:.1f}, L0 = {values['L0']:,}{support}, {time}"
