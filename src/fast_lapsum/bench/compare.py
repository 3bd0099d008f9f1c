"""What changed between two sets of results."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text

from . import records, sources
from .experiment import Record
from .records import ResultsError
from .tables import milliseconds

#: Records by (device type, experiment).
Collection = dict[tuple[str, str], Record]


class Change(NamedTuple):
    """One row, or one value of it, on both sides; None where a side has none."""

    key: dict[str, Any]
    what: str
    old: str
    new: str
    #: New over old median of a timing.
    ratio: float | None = None
    #: "slower" or "faster" where p20..p80 of both sides are apart; "new", "lost", "status".
    mark: str = ""

    @property
    def is_telling(self) -> bool:
        """Whether a reader who asks what changed wants to see it."""
        return self.mark not in ("new", "lost") and (self.ratio is None or bool(self.mark))


def load(reference: str) -> Collection:
    """The records of a results file, of a folder of them, or of ``results/`` at a git commit.

    A path that exists is taken as such, also if there is a commit of that name. Hidden files are
    passed over: a run that was killed while it wrote may leave one.
    """
    path = Path(reference)
    if path.is_dir():
        found = (file for file in sorted(path.rglob("*.json")) if not file.name.startswith("."))
        return _collection(((str(file), file.read_bytes()) for file in found), reference)
    if path.exists():
        record = records.read(path)
        return {(records.device_type(record), record["experiment"]): record}
    return _collection(_files_of_commit(reference), reference)


def changes(old: Record, new: Record) -> list[Change]:
    """Row by row: timings always, other numbers and statuses where they differ."""
    before, after = (
        {records.identity(row["key"]): row for row in record["rows"]} for record in (old, new)
    )
    found: list[Change] = []
    for name in dict.fromkeys([*before, *after]):
        one, other = before.get(name), after.get(name)
        if one is None:
            assert other is not None
            found.append(Change(other["key"], "row", "", _state(other), mark="new"))
        elif other is None:
            found.append(Change(one["key"], "row", _state(one), "", mark="lost"))
        elif one["status"] != other["status"]:
            found.append(Change(one["key"], "status", _state(one), _state(other), mark="status"))
        elif one["status"] == "ok":
            found.extend(_value_changes(one, other))
    return found


def summary(found: list[Change], rows: int) -> str:
    """All changes in numbers.

    >>> summary([Change({}, "seconds", "1", "2", 2.0, "slower"), Change({}, "row", "", "1")], 7)
    '1 slower, 1 other in 7 rows'
    >>> summary([Change({}, "seconds", "1", "1", 1.0)], 7)
    'nothing changed in 7 rows'
    """
    counts: dict[str, int] = {}
    for change in found:
        if change.mark or change.ratio is None:
            mark = {"": "other", "status": "of another status"}.get(change.mark, change.mark)
            counts[mark] = counts.get(mark, 0) + 1
    told = ", ".join(f"{count} {mark}" for mark, count in counts.items())
    return f"{told or 'nothing changed'} in {rows} rows"


def conditions(old: Record, new: Record) -> Iterator[tuple[str, str, str]]:
    """What differs of sources, environment and settings: name, old, new."""
    if sources.mark(old) != sources.mark(new):
        yield "sources", sources.mark(old), sources.mark(new)
    for part in ("environment", "settings"):
        for name in dict.fromkeys([*old[part], *new[part]]):
            one, other = old[part].get(name), new[part].get(name)
            if one != other and name not in records.PASSING:
                yield name, _text(one), _text(other)


def conditions_table(title: str, old: Record, new: Record) -> Table | None:
    """The differences of sources, environment and settings; None where there are none."""
    rows = list(conditions(old, new))
    if not rows:
        return None
    table = Table(title=title, title_justify="left")
    for header in ("measured with other", "old", "new"):
        table.add_column(header, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def changes_table(title: str, found: list[Change]) -> Table:
    """The changes of one experiment."""
    table = Table(title=title, title_justify="left")
    for header in ("row", "value", "old", "new", "new / old", ""):
        right = header in ("old", "new", "new / old")
        table.add_column(header, justify="right" if right else "left")
    styles = {"faster": "green", "slower": "bold red", "lost": "yellow", "status": "yellow"}
    for change in found:
        table.add_row(
            Text(records.label(change.key)),
            change.what,
            Text(change.old),
            Text(change.new),
            "" if change.ratio is None else f"{change.ratio:.2f}",
            Text(change.mark, style=styles.get(change.mark, "")),
        )
    return table


def _collection(files: Iterator[tuple[str, bytes]], reference: str) -> Collection:
    found: Collection = {}
    for name, content in files:
        if _is_foreign(content):
            continue
        record = records.parse(content, name)
        place = (records.device_type(record), record["experiment"])
        if place in found:
            raise ResultsError(
                f"{reference} has two results files of {place[1]} on {place[0]}: name one of them."
            )
        found[place] = record
    if not found:
        raise ResultsError(f"{reference} has no results file: make some with fast-lapsum bench.")
    return found


def _is_foreign(content: bytes) -> bool:
    """JSON of something else, as a folder may well hold; a damaged file is not passed over."""
    try:
        record = json.loads(content)
    except ValueError:
        return False
    return not isinstance(record, dict) or record.get("format") != records.FORMAT


def _files_of_commit(reference: str) -> Iterator[tuple[str, bytes]]:
    try:
        _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{reference}^{{commit}}")
    except (OSError, subprocess.CalledProcessError):
        raise ResultsError(
            f"'{reference}' is no results file, no folder, and no commit of a git repository here."
        ) from None
    listed = _git("ls-tree", "-r", "-z", "--name-only", "--full-tree", reference, "results")
    for name in listed.decode().split("\0"):
        if name.endswith(".json"):
            yield f"{reference}:{name}", _git("show", f"{reference}:{name}")


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], capture_output=True, check=True).stdout


def _value_changes(one: dict[str, Any], other: dict[str, Any]) -> Iterator[Change]:
    for name in dict.fromkeys([*one["values"], *other["values"]]):
        old, new = one["values"].get(name), other["values"].get(name)
        if _is_timing(old) and _is_timing(new):
            ratio = new["p50"] / old["p50"] if old["p50"] else None
            mark = ""
            if new["p20"] > old["p80"]:
                mark = "slower"
            elif new["p80"] < old["p20"]:
                mark = "faster"
            times = (milliseconds(old["p50"]), milliseconds(new["p50"]))
            yield Change(one["key"], name, *times, ratio, mark)
        elif old != new:
            yield Change(one["key"], name, _text(old), _text(new))


def _is_timing(value: Any) -> bool:
    return isinstance(value, dict) and {"p20", "p50", "p80"} <= set(value)


def _state(row: dict[str, Any]) -> str:
    timing: Any = row["values"].get("seconds") if row["status"] == "ok" else None
    return milliseconds(timing["p50"]) if _is_timing(timing) else str(row["status"])


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value)
