"""Results files: read with suspicion, continued only where nothing that matters has changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from . import sources
from .experiment import Case, Record, Settings

FORMAT = "fast-lapsum results"
VERSION = 1
STATUSES = ("ok", "oom", "timeout", "limit", "unavailable", "error")
#: Differs from minute to minute, and says nothing about what was measured.
PASSING = ("load_average",)


class ResultsError(Exception):
    """A results file cannot be used; the message names it, what is wrong and what to do."""


def identity(key: dict[str, Any]) -> str:
    """A row's key as text.

    >>> identity({"n": 10, "method": "LML"})
    '{"method": "LML", "n": 10}'
    """
    return json.dumps(key, sort_keys=True)


def label(key: dict[str, Any]) -> str:
    """A row's key for people.

    >>> label({"method": "LML", "n": 100000, "temperature": 0.5})
    'LML, n = 100,000, temperature = 0.5'
    """
    return ", ".join(
        str(value) if isinstance(value, str) else f"{name} = {_number(value)}"
        for name, value in key.items()
    )


def device_type(record: Record) -> str:
    """The kind of device that a record was measured on: cpu or cuda."""
    return str(record["settings"]["device"]).partition(":")[0]


def read(path: Path) -> Record:
    """The record in ``path``, its shape checked."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ResultsError(f"{path} cannot be read: {error.strerror}.") from error
    return parse(content, str(path))


def parse(content: bytes, name: str) -> Record:
    """The record in the bytes of a file called ``name``."""
    try:
        record = json.loads(content)
    except ValueError as error:  # also bytes that are no text
        raise ResultsError(f"{name} is damaged or no results file: not JSON ({error}).") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ResultsError(f'{name} is no results file: it lacks "format": "{FORMAT}".')
    if record.get("version") != VERSION:
        raise ResultsError(
            f"{name} has version {record.get('version')!r} of the format, expected {VERSION}."
        )
    damage = _damage(record)
    if damage:
        raise ResultsError(f"{name} is damaged: {damage}.")
    return record


def new(experiment: str, settings: Settings, environment: dict[str, Any]) -> Record:
    """A record without rows."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "experiment": experiment,
        "complete": False,
        "settings": settings._asdict(),
        "environment": environment,
        "sources": sources.describe(experiment, settings.device),
        "rows": [],
    }


def continued(
    path: Path, experiment: str, settings: Settings, environment: dict[str, Any], cases: list[Case]
) -> Record:
    """The record in ``path``, if its rows are what would be measured now; else ResultsError."""
    try:
        record = read(path)
        found = record["experiment"]
        if found != experiment:
            raise ResultsError(f"{path} holds the experiment {found}, not {experiment}.")
        differences = [
            *_differences(record["settings"], settings._asdict()),
            *changed(record, environment, sources.describe(experiment, settings.device)),
        ]
        if differences:
            listed = "; ".join(differences)
            raise ResultsError(f"{path} was measured under other conditions: {listed}.")
        known = {identity(case.key) for case in cases}
        strange = [row["key"] for row in record["rows"] if identity(row["key"]) not in known]
        if strange:
            raise ResultsError(
                f"{path} has rows that this version does not measure: {label(strange[0])}"
                + (f" and {len(strange) - 1} more." if len(strange) > 1 else ".")
            )
    except ResultsError as error:
        remedy = "It is left as it is: start over with --fresh, or name another file with --out."
        raise ResultsError(f"{error} {remedy}") from error
    return record


def changed(record: Record, environment: dict[str, Any], here: dict[str, str]) -> list[str]:
    """What of environment and sources is not as it was when the rows of a record were made.

    Where a record knows its sources they are compared in place of the commit, which is another
    after any change, and the same for all that is not committed.
    """
    old, new = _lasting(record["environment"]), _lasting(environment)
    if "sources" not in record:
        return _differences(old, new)
    differences = _differences({**old, "commit": None}, {**new, "commit": None})
    if record["sources"] != here:
        differences.append(
            f"the sources that its figures depend on were {sources.mark(record)}, are"
            f" {here['hash']}"
        )
    return differences


def _number(value: int | float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _damage(record: Record) -> str:
    """What is wrong with the shape of a record, or nothing."""
    shape: dict[str, type] = {
        "experiment": str,
        "complete": bool,
        "settings": dict,
        "environment": dict,
        "rows": list,
    }
    for name, kind in shape.items():
        if not isinstance(record.get(name), kind):
            return f"{name} is missing or no {kind.__name__}"
    if set(record["settings"]) != set(Settings._fields):
        found = ", ".join(record["settings"])
        return f"settings are {found}, expected {', '.join(Settings._fields)}"
    seen: set[str] = set()
    for index, row in enumerate(record["rows"]):
        if not isinstance(row, dict) or not isinstance(row.get("key"), dict):
            return f"row {index} has no key"
        if row.get("status") not in STATUSES:
            return f"row {index} has the status {row.get('status')!r}"
        content = "values" if row["status"] == "ok" else "reason"
        if not isinstance(row.get(content), dict if content == "values" else str):
            return f"row {index} is {row['status']} without its {content}"
        if identity(row["key"]) in seen:
            return f"row {index} repeats {label(row['key'])}"
        seen.add(identity(row["key"]))
    return ""


def _lasting(environment: dict[str, Any]) -> dict[str, Any]:
    """What must be the same for rows to belong together."""
    return {name: value for name, value in environment.items() if name not in PASSING}


def _differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    return [
        f"{name} was {old.get(name)!r}, is {new.get(name)!r}"
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    ]
