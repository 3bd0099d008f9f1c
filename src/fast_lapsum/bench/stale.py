"""The results files of a folder, and which of them are still true of the code.

Some are of earlier code on purpose: a failure that was mended since, or a comparison that takes
long, whose own sources have not changed. A folder's kept.json names them, each with the reason.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text

from . import records, sources

DAMAGED = "damaged"
#: Of earlier code, and named in kept.json.
KEPT = "kept"
KEPT_FILE = "kept.json"
_STYLES = {sources.CURRENT: "green", KEPT: "dim", sources.STALE: "bold red", DAMAGED: "bold red"}
#: How the files of the apps were to be told before they said of which kind they are. Not taken from
#: the apps: they need packages that may not be installed.
_OLD_FORMATS = {
    "fast-lapsum encode": "encode",
    "fast-lapsum attacked picture": "attack",
    "fast-lapsum attack": "attack-bench",
}
_COMMIT_DIGITS = 12


class Entry(NamedTuple):
    """One results file; empty text for what it does not say."""

    path: Path
    kind: str
    state: str
    commit: str = ""
    date: str = ""
    #: Why it is kept although it is not current.
    reason: str = ""


class KeptError(ValueError):
    """A kept.json that cannot be true; the message says why."""


def find(folder: Path) -> list[Entry]:
    """Every results file below ``folder``, by path.

    Hidden files, which a killed run may leave, and JSON of something else are passed over.
    """
    paths = (path for path in sorted(folder.rglob("*.json")) if not path.name.startswith("."))
    entries = [entry for entry in map(_entry, paths) if entry is not None]
    whys = _reasons(folder / KEPT_FILE)
    places = [entry.path.relative_to(folder).as_posix() for entry in entries]
    if missing := sorted(set(whys) - set(places)):
        raise KeptError(f"{folder / KEPT_FILE} names {missing[0]}, which is no results file here.")
    return [_kept(entry, whys.get(place)) for entry, place in zip(entries, places, strict=True)]


def table(entries: list[Entry]) -> Table:
    """One line for each file."""
    shown = Table(title="Results files", title_justify="left")
    for header in ("file", "kind", "state", "commit", "date"):
        shown.add_column(header, overflow="fold")
    for entry in entries:
        state = Text(entry.state, style=_STYLES.get(entry.state, "yellow"))
        shown.add_row(Text(str(entry.path)), entry.kind, state, entry.commit, entry.date)
    return shown


def summary(entries: list[Entry]) -> str:
    """All states in numbers.

    >>> summary([Entry(Path("a.json"), "cpu", "stale"), Entry(Path("b.json"), "gpu", "stale")])
    '2 results files: 2 stale'
    """
    counts = Counter(entry.state for entry in entries)
    told = ", ".join(f"{count} {state}" for state, count in counts.items())
    return f"{len(entries)} results file{'s' * (len(entries) != 1)}: {told}"


def reasons(entries: list[Entry]) -> str:
    """Why files are kept, one line each.

    >>> reasons([Entry(Path("a.json"), "cpu", "kept", reason="of a slower machine")])
    'a.json is kept: of a slower machine'
    """
    return "\n".join(f"{entry.path} is kept: {entry.reason}" for entry in entries if entry.reason)


def _reasons(path: Path) -> dict[str, str]:
    """Files by their paths, and why each is kept."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise KeptError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(v, str) and v for v in found.values()):
        raise KeptError(f"{path} has to be an object of paths with a reason each.")
    return found


def _kept(entry: Entry, reason: str | None) -> Entry:
    """A file that is damaged is not kept, and one that is current needs no reason."""
    if reason is None or entry.state not in (sources.STALE, sources.UNKNOWN):
        return entry
    return entry._replace(state=KEPT, reason=reason)


def _entry(path: Path) -> Entry | None:
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return Entry(path, "", DAMAGED)
    if not isinstance(record, dict) or not isinstance(record.get("environment"), dict):
        return None
    kind = _kind(record)
    if kind is None:
        return None
    commit, _, changes = str(record["environment"].get("commit") or "").partition("+")
    return Entry(
        path,
        kind,
        sources.state(record),
        commit[:_COMMIT_DIGITS] + (f"+{changes}" if changes else ""),
        str(record.get("created") or "").partition("T")[0],
    )


def _kind(record: dict[str, Any]) -> str | None:
    """What kind of results file it is; None for JSON of something else."""
    known = sources.known(record)
    if known is not None:
        return known["kind"]
    if record.get("benchmark") in ("cpu", "gpu"):
        return str(record["benchmark"])
    form = record.get("format")
    if form == records.FORMAT:
        return str(record.get("experiment"))
    if form == 1 and "codecs" in record:
        return "coder-report"
    return _OLD_FORMATS.get(form) if isinstance(form, str) else None
