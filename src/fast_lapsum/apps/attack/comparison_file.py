"""The results file of ``attack-bench``: continued only where its rows belong to the same plan."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from fast_lapsum.bench import environment, sources
from fast_lapsum.bench.records import changed

FORMAT = "fast-lapsum attack"
VERSION = 1
#: What must not change; more methods, calls and settings than before only add rows. With other jobs
#: a row has other seconds, and where time was up another result: every row has the jobs that it was
#: made with.
FIXED = (
    *("model", "weights", "seconds", "gibibytes", "seed", "least_confidence", "each_once"),
    "device",
)

Record = dict[str, Any]


class CompareError(Exception):
    """The folder or the results file cannot be used; the message says why and what to do."""


def weights(model: str) -> str | None:
    """A mark of the files in a model's folder; None for a model that is known by its name."""
    folder = Path(model)
    if not folder.is_dir():
        return None
    found = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        found.update(f"{path.relative_to(folder).as_posix()} ".encode())
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                found.update(part)
    return found.hexdigest()[:16]


def started(path: Path, plan: dict[str, Any], fresh: bool) -> Record:
    """A new record, or the one in ``path`` if its rows belong to this plan."""
    settings = json.loads(json.dumps(plan))  # tuples become lists, as in the file
    here = environment.describe()
    made_by = sources.describe("attack-bench", settings["device"])
    if fresh or not path.exists():
        return {
            "format": FORMAT,
            "version": VERSION,
            "complete": False,
            "settings": settings,
            "environment": here,
            "sources": made_by,
            "pictures": [],
            "rows": [],
        }
    record = read(path)
    differences = [
        f"{name} was {record['settings'].get(name)!r}, is {settings[name]!r}"
        for name in FIXED
        if record["settings"].get(name) != settings[name]
    ]
    differences += changed(record, here, made_by)
    if "sources" not in record:
        differences.append("it does not say by which sources (files of earlier versions do not)")
    if differences:
        raise CompareError(
            f"{path} was made otherwise: {'; '.join(differences)}. Rows of both would mix: give"
            " another --out, or --fresh to start over."
        )
    return {**record, "complete": False, "settings": settings}


def read(path: Path) -> Record:
    """The record in ``path``, its shape checked."""
    try:
        record = json.loads(path.read_text())
    except OSError as error:
        raise CompareError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise CompareError(f"{path} is damaged or no results file: not JSON ({error})") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise CompareError(f'{path} is no results file: it lacks "format": "{FORMAT}"')
    if record.get("version") != VERSION:
        raise CompareError(f"{path} has version {record.get('version')!r}, expected {VERSION}")
    for name, kind in (
        ("settings", dict),
        ("environment", dict),
        ("pictures", list),
        ("rows", list),
    ):
        if not isinstance(record.get(name), kind):
            raise CompareError(f"{path} is damaged: {name} is missing or no {kind.__name__}")
    return record
