"""Results files, checked before anything is drawn: a damaged one is named, never half shown."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from .. import records, sources
from ..experiment import Record
from ..records import ResultsError
from ..stale import KEPT_FILE

#: Benchmarks whose results are tables of their own, with nothing to draw.
TABLES = ("cliffs", "compiled", "layers", "ragged", "ranking", "ranks")

#: Parts of a key that are numbers above zero in every experiment that has them.
NUMBERS = ("n", "B", "k", "temperature")

#: Of a timing.
PERCENTILES = ("p20", "p50", "p80")

#: What ``bench functions`` calls itself in its file.
FUNCTIONS = "functions"

#: Null where an answer was not a number: JSON has no infinity.
UNMEASURABLE = ("budget_error",)


class Shape(NamedTuple):
    """What the rows of an experiment must have for its figures and tables."""

    key: tuple[str, ...]
    values: tuple[str, ...]


SHAPES = {
    "large-n": Shape(("solver", "n"), ("seconds", "relative_error")),
    "operators": Shape(("method", "pass", "n"), ("seconds",)),
    "budget": Shape(("method", "n"), ("mass", "relative_error")),
    "robustness": Shape(
        ("distribution", "n", "sampler"), ("trials", "coverage", "fallback", "budget_error")
    ),
    "forward": Shape(("sweep", "B", "n", "k", "temperature", "variant"), ("seconds", "error")),
    "backward": Shape(("sweep", "B", "n", "k", "temperature", "variant"), ("seconds", "error")),
    "ablation": Shape(("table", "B", "n", "variant"), ("seconds", "error")),
    "gradcheck": Shape(("B", "n", "k", "temperature"), ("absolute_error", "relative_error")),
    "dftopk": Shape(("method", "n"), ("seconds",)),
}


class Device(NamedTuple):
    """Everything measured on one device."""

    #: "cpu" or "cuda".
    kind: str
    #: What the hardware calls itself.
    name: str
    #: The kind, numbered from the second of a kind on: part of the figures' names.
    slug: str
    #: By experiment, in the order of SHAPES.
    records: dict[str, Record]
    #: The record of ``bench cpu`` or ``bench gpu`` on the same hardware.
    timings: Record | None
    #: The record of ``bench functions`` in the same folder.
    functions: Record | None = None

    @property
    def bytes_per_second(self) -> float | None:
        """The rate of a copy, bytes read plus bytes written, where it was measured."""
        copy = (self.timings or {}).get("copy")
        rate = copy.get("bytes_per_second") if isinstance(copy, dict) else None
        return float(rate) if _is_number(rate) and rate > 0 else None


def load(paths: Iterable[Path]) -> list[Device]:
    """The devices of all results files in these folders (or named by themselves), the CPU first."""
    found = list(paths)
    groups: dict[tuple[str, str, Path], dict[str, Record]] = {}
    timings: dict[tuple[str, str], Record] = {}
    for path in _files(found):
        record = _read(path)
        if record.get("benchmark") in TABLES:
            continue
        if record.get("benchmark") == FUNCTIONS:
            _check_functions(path, record)
            kind = record["sources"]["device"]
            _add(groups, kind, path, FUNCTIONS, record)
        elif "benchmark" in record:
            _check_timings(path, record)
            kind = "cpu" if record["benchmark"] == "cpu" else "cuda"
            timings[kind, _hardware(kind, record)] = record
        else:
            _check(path, record)
            kind = records.device_type(record)
            _add(groups, kind, path, record["experiment"], record)
    if not groups and not timings:
        raise ResultsError(
            f"no results in {', '.join(map(str, found))}; measure first: "
            "fast-lapsum bench all --quick"
        )
    return list(_devices(groups, timings))


def _add(
    groups: dict[tuple[str, str, Path], dict[str, Record]],
    kind: str,
    path: Path,
    name: str,
    record: Record,
) -> None:
    """Put a record beside the others of its device and folder."""
    group = groups.setdefault((kind, _hardware(kind, record), path.parent), {})
    if name in group:
        raise ResultsError(
            f"{path} is a second file of {name} for the same device in {path.parent}, expected one."
        )
    group[name] = record


def _devices(
    groups: dict[tuple[str, str, Path], dict[str, Record]], timings: dict[tuple[str, str], Record]
) -> Iterator[Device]:
    named = [(kind, name, found) for (kind, name, _), found in groups.items()]
    seen = {(kind, name) for kind, name, _ in named}
    named += [(kind, name, {}) for kind, name in timings if (kind, name) not in seen]
    counts: dict[str, int] = {}
    for kind, name, found in sorted(named, key=lambda entry: entry[0]):
        counts[kind] = counts.get(kind, 0) + 1
        slug = kind if counts[kind] == 1 else f"{kind}-{counts[kind]}"
        ordered = {experiment: found[experiment] for experiment in SHAPES if experiment in found}
        yield Device(kind, name, slug, ordered, timings.get((kind, name)), found.get(FUNCTIONS))


def has_results(folder: Path) -> bool:
    """Whether there is anything in a folder, as ``bench`` writes it, to make a report of."""
    return folder.is_dir() and any(True for _ in _files([folder]))


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            below = [*path.glob("*.json"), *path.glob("cpu/*.json"), *path.glob("cuda/*.json")]
            # A hidden file is one that somebody is just writing.
            shown = (file for file in below if not file.name.startswith("."))
            yield from sorted(file for file in shown if file.name != KEPT_FILE)
        elif path.exists():
            yield path
        else:
            raise ResultsError(
                f"{path} does not exist; expected a folder of results files, "
                "as written by: fast-lapsum bench all --quick"
            )


def _read(path: Path) -> Record:
    """A record of ``bench cpu`` or ``bench gpu`` as it is, any other checked for its format."""
    try:
        content = path.read_bytes()
        record = json.loads(content)
    except OSError as error:
        raise ResultsError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError:
        record = None
    if isinstance(record, dict) and "format" not in record and "benchmark" in record:
        return record
    return records.parse(content, str(path))


def _check(path: Path, record: Record) -> None:
    experiment, device = record["experiment"], record["settings"]["device"]
    if experiment not in SHAPES:
        raise ResultsError(
            f"{path} holds the experiment {experiment!r}, expected one of {', '.join(SHAPES)}."
        )
    if not isinstance(device, str) or records.device_type(record) not in ("cpu", "cuda"):
        raise ResultsError(f"{path} has settings.device {_short(device)}, expected cpu or cuda.")
    for name in ("repeats", "max_n", "seconds", "gibibytes", "seed"):
        if not _is_number(record["settings"][name]):
            found = _short(record["settings"][name])
            raise ResultsError(f"{path} is damaged: settings.{name} is {found}, expected a number.")
    for index, row in enumerate(record["rows"]):
        problem = _problem(row, SHAPES[experiment])
        if problem:
            raise ResultsError(f"{path} is damaged: rows[{index}].{problem}.")


def _problem(row: dict[str, Any], shape: Shape) -> str | None:
    """What is wrong with a row, beginning with the place in it; None where nothing is."""
    for name in shape.key:
        part = row["key"].get(name)
        if name in NUMBERS and not (_is_number(part) and part > 0):
            return f"key.{name} is {_short(part)}, expected a number above 0"
        if name not in NUMBERS and not isinstance(part, str):
            return f"key.{name} is {_short(part)}, expected text"
    for name in shape.values if row["status"] == "ok" else ():
        value = row["values"].get(name)
        if name == "seconds":
            if not _is_timing(value):
                return f"values.seconds is {_short(value)}, expected p20, p50 and p80 above 0"
        elif not _is_number(value) and not (value is None and name in UNMEASURABLE):
            return f"values.{name} is {_short(value)}, expected a number"
    return None


def _check_timings(path: Path, record: Record) -> None:
    if record["benchmark"] not in ("cpu", "gpu"):
        raise ResultsError(
            f"{path} has the benchmark {_short(record['benchmark'])}, expected cpu, gpu or "
            f"{FUNCTIONS}."
        )
    _check_cases(path, record)


def _check_functions(path: Path, record: Record) -> None:
    known = sources.known(record)
    if known is None or known["device"] not in ("cpu", "cuda"):
        raise ResultsError(f"{path} is damaged: it does not say on which device it was measured.")
    _check_cases(path, record)
    if record.get("compared") not in PERCENTILES:
        found = _short(record.get("compared"))
        raise ResultsError(
            f"{path} is damaged: compared is {found}, expected one of {', '.join(PERCENTILES)}."
        )
    for index, case in enumerate(record["cases"]):
        lines = case.get("lines")
        if not isinstance(lines, list) or not all(map(_is_limit, lines)):
            raise ResultsError(f"{path} is damaged: cases[{index}] has no limits or a bad one.")


def _is_limit(line: Any) -> bool:
    if not isinstance(line, dict) or line.get("met", "") not in (True, False, None):
        return False
    return all(isinstance(line.get(name), str) for name in ("call", "at_most"))


def _check_cases(path: Path, record: Record) -> None:
    if not isinstance(record.get("environment"), dict) or not isinstance(record.get("cases"), list):
        raise ResultsError(f"{path} is damaged: it lacks the environment or the list of cases.")
    for index, case in enumerate(record["cases"]):
        timings = case.get("timings", {}) if isinstance(case, dict) and "case" in case else None
        if not isinstance(timings, dict) or not all(map(_is_timing, timings.values())):
            raise ResultsError(f"{path} is damaged: cases[{index}] has no name or a bad timing.")


def _hardware(kind: str, record: Record) -> str:
    environment = record["environment"]
    if kind == "cpu":
        return str(environment.get("cpu") or "CPU")
    gpus = environment.get("gpus")
    return str(gpus[0]) if isinstance(gpus, list) and gpus else "GPU"


def _is_timing(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    percentiles = [value.get(name) for name in PERCENTILES]
    return all(_is_number(part) and part > 0 for part in percentiles)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
