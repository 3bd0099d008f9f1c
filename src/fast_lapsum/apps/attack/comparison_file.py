"""The results file of ``attack-bench``: continued only where its rows belong to the same plan."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import fast_lapsum
from fast_lapsum.bench import environment
from fast_lapsum.bench.records import PASSING

FORMAT = "fast-lapsum attack"
VERSION = 1
#: What must not change; more methods, calls and settings than before only add rows. With other jobs
#: a row has other seconds, and where time was up another result: every row has the jobs that it was
#: made with.
FIXED = (
    *("model", "weights", "seconds", "gibibytes", "seed", "least_confidence", "each_once"),
    "device",
)

#: Parts of the package that no row depends on: they may change between two runs.
_APART = (
    "bench",
    "apps/coder",
    *(f"apps/attack/{name}.py" for name in ("commands", "figures", "tables", "tables_text")),
)
_SOURCES = (".py", ".cpp", ".hpp")

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


@cache
def code() -> str:
    """A mark of the installed sources that decide what a row says: another one, other code.

    A commit says less: it is the same for all uncommitted changes, and a package installed without
    its repository has none.
    """
    package = Path(fast_lapsum.__file__).parent
    found = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        name = path.relative_to(package)
        if path.suffix in _SOURCES and not any(name.is_relative_to(part) for part in _APART):
            found.update(
                f"{name.as_posix()} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode()
            )
    return found.hexdigest()[:16]


def started(path: Path, plan: dict[str, Any], fresh: bool) -> Record:
    """A new record, or the one in ``path`` if its rows belong to this plan."""
    settings = json.loads(json.dumps(plan))  # tuples become lists, as in the file
    here = environment.describe()
    if fresh or not path.exists():
        return {
            "format": FORMAT,
            "version": VERSION,
            "complete": False,
            "settings": settings,
            "environment": here,
            "code": code(),
            "pictures": [],
            "rows": [],
        }
    record = read(path)
    differences = [
        f"{name} was {record['settings'].get(name)!r}, is {settings[name]!r}"
        for name in FIXED
        if record["settings"].get(name) != settings[name]
    ] + [
        f"{name} was {record['environment'].get(name)!r}, is {here[name]!r}"
        for name in here
        if name not in PASSING and record["environment"].get(name) != here[name]
    ]
    if "code" not in record:
        differences.append("it does not say by which code (files of earlier versions do not)")
    elif record["code"] != code():
        differences.append(
            f"by other code (the mark of the sources was {record['code']}, is {code()})"
        )
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
