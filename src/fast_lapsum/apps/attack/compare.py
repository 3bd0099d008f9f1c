"""All methods over a folder of pictures: one row per picture, setting, calls and method.

Every row is saved as soon as it is there, the whole file at once, so a run that is killed loses at
most the row it was in, and goes on from there. Rows of another model, seed, limit or machine are
never mixed: such a file is refused.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fast_lapsum.bench.results import write_json

from . import pictures
from .comparison_file import CompareError, Record, started
from .hard_support import HardSupport, hard_support
from .measures import measure, pixel_changes
from .memory import is_memory, limited_memory
from .methods import method
from .pictures import PictureError
from .protocol import Attack, Classifier, Limits, Result

_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")

Row = dict[str, Any]
Load = Callable[[int | None], Classifier]


class Plan(NamedTuple):
    """What is run; everything that decides what a row says."""

    model: str
    methods: tuple[str, ...]
    #: None is native resolution, a number the short side that the model resizes to.
    settings: tuple[int | None, ...]
    calls: tuple[int, ...]
    seconds: float
    gibibytes: float
    seed: int
    least_confidence: float
    #: Whether a picture is attacked only in the first setting in which the model is confident.
    each_once: bool


class Entry(NamedTuple):
    """A picture of the folder; the label is None where the model's own answer is taken."""

    path: Path
    label: int | None


class Case(NamedTuple):
    """A picture with the label that the model is confident of."""

    picture: str
    image: Tensor
    label: int


def setting_name(resize: int | None) -> str:
    """As tables call it.

    >>> setting_name(None), setting_name(256)
    ('native', 'short side 256')
    """
    return "native" if resize is None else f"short side {resize}"


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
        return [Entry(folder / name, int(index)) for name, index in listed if index]
    except ValueError as error:
        raise CompareError(f"{manifest}: class_index must be a whole number ({error})") from error


def run(
    folder: Path,
    plan: Plan,
    load: Load,
    path: Path,
    device: torch.device,
    report: Callable[[str], None],
    fresh: bool = False,
) -> Record:
    """Run what ``path`` does not hold yet, saving after every row; the whole record."""
    found = entries(folder)
    record = started(path, {**plan._asdict(), "device": str(device)}, fresh)
    attacks = {name: method(name) for name in plan.methods}
    done = {json.dumps(row["key"], sort_keys=True) for row in record["rows"]}
    confident: set[str] = set()
    for resize in plan.settings:
        classifier = load(resize)
        for entry in found:
            if plan.each_once and entry.path.name in confident:
                continue
            case = _case(classifier, entry, setting_name(resize), plan, record, report)
            write_json(path, record)
            if case is None:
                continue
            confident.add(case.picture)
            for key, attack in _keys(case, resize, plan, attacks):
                if json.dumps(key, sort_keys=True) in done:
                    continue
                row = {"key": key, **_row(attack, classifier, case, key["calls"], plan)}
                record["rows"].append(row)
                write_json(path, record)
                report(_line(row))
    record["complete"] = True
    write_json(path, record)
    return record


def _keys(
    case: Case, resize: int | None, plan: Plan, attacks: dict[str, Attack]
) -> Iterator[tuple[dict[str, Any], Attack]]:
    for calls in plan.calls:
        for name, attack in attacks.items():
            setting = setting_name(resize)
            key = {"picture": case.picture, "setting": setting, "calls": calls, "method": name}
            yield key, attack


def _case(
    classifier: Classifier,
    entry: Entry,
    setting: str,
    plan: Plan,
    record: Record,
    report: Callable[[str], None],
) -> Case | None:
    """The picture if the model is right and confident; what becomes of it goes on record."""
    note: dict[str, Any] = {"picture": entry.path.name, "setting": setting, "used": False}
    image: Tensor | None = None
    label = -1
    try:
        image = pictures.read(entry.path).to(classifier.device)
        with limited_memory(classifier.device, plan.gibibytes):
            probabilities = classifier.predict(image[None])[0]
        predicted = int(probabilities.argmax())
        label = predicted if entry.label is None else entry.label
        if not 0 <= label < len(probabilities):
            raise PictureError(
                f"{entry.path}: class_index {label}, expected 0 to {len(probabilities) - 1}"
            )
        note |= {
            "width": image.shape[2],
            "height": image.shape[1],
            "label": label,
            "label_name": classifier.label(label),
            "predicted": predicted,
            "confidence": float(probabilities[label]),
        }
        if predicted != label:
            note["why"] = f"the model says {classifier.label(predicted)}"
        elif note["confidence"] < plan.least_confidence:
            note["why"] = f"confidence {note['confidence']:.3f} is under {plan.least_confidence:g}"
        else:
            note["used"] = True
    except PictureError as error:
        note |= {"why": str(error), "bad": True}
    except Exception as error:
        if not is_memory(error):
            raise
        note["why"] = f"more than {plan.gibibytes:g} GiB for one call"
    kept = [
        one
        for one in record["pictures"]
        if (one["picture"], one["setting"]) != (entry.path.name, setting)
    ]
    record["pictures"] = [*kept, note]
    if image is None or not note["used"]:
        report(f"{entry.path.name}, {setting}: left out, {note['why']}")
        return None
    return Case(entry.path.name, image, label)


def _row(
    attack: Attack, classifier: Classifier, case: Case, calls: int, plan: Plan
) -> dict[str, Any]:
    limits = Limits(calls=calls, seconds=plan.seconds)
    gradients = classifier.gradients
    try:
        with limited_memory(classifier.device, plan.gibibytes):
            result = attack.run(
                classifier, case.image, case.label, None, limits, plan.seed, None, None
            )
            spent = classifier.gradients - gradients
            values = measured(classifier, case.image, case.label, None, result)
    except Exception as error:
        if is_memory(error):
            if classifier.device.type == "cuda":
                torch.cuda.empty_cache()  # for the next row
            return {"status": "oom", "reason": f"needs more than {plan.gibibytes:g} GiB"}
        message = " ".join(str(error).split()) or "no message"
        return {"status": "error", "reason": f"{type(error).__name__}: {message}"}
    values["gradients"] = spent
    values["timed_out"] = result.seconds >= plan.seconds
    return {"status": "ok", "values": values}


def measured(
    classifier: Classifier,
    image: Tensor,
    label: int,
    target: int | None,
    result: Result,
    mask: Tensor | None = None,
) -> dict[str, Any]:
    """All measures of a result, ready for JSON; taken from the picture saved and read back.

    L*, the fewest pixels at their colours that still fool, takes pixels in the order of the
    method's scores, or of their change where it has none. Its calls are counted apart.
    """
    found = measure(classifier, result.adversarial, image, label, target)
    values: dict[str, Any] = {
        "success": found.success,
        "success_before_saving": result.success,
        "B": found.budget,
        "L0": found.changed_pixels,
        "L_star": None,
        "L_star_calls": 0,
        "calls": result.calls,
        "seconds": result.seconds,
        "steps": result.steps,
        "predicted": found.predicted,
        "predicted_name": classifier.label(found.predicted),
        "confidence": found.confidence,
        "true_confidence": found.true_confidence,
    }
    if found.success:
        support = _support(classifier, image, label, target, result, mask)
        values |= {"L_star": support.pixels, "L_star_calls": support.calls}
    values["extra"] = _plain(result.extra)
    return values


def _support(
    classifier: Classifier,
    image: Tensor,
    label: int,
    target: int | None,
    result: Result,
    mask: Tensor | None,
) -> HardSupport:
    scores, colours = result.extra.get("scores"), result.extra.get("colours")
    if not isinstance(scores, Tensor) or not isinstance(colours, Tensor):
        scores, colours = pixel_changes(result.adversarial, image), result.adversarial
    return hard_support(classifier, image, scores, colours, label, target, mask)


def _plain(extra: dict[str, object]) -> dict[str, Any]:
    """What of ``extra`` fits into a results file: numbers, words and settings, no pictures."""
    found: dict[str, Any] = {}
    for name, value in extra.items():
        if isinstance(value, Tensor):
            if value.numel() != 1:
                continue
            value = value.item()
        if isinstance(value, float) and not math.isfinite(value):
            value = str(value)
        if isinstance(value, dict):
            found[name] = _plain(value)
        elif value is None or isinstance(value, (bool, int, float, str)):
            found[name] = value
    return found


def _line(row: Row) -> str:
    key = row["key"]
    where = f"{key['picture']}, {key['setting']}, {key['calls']} calls, {key['method']}"
    if row["status"] != "ok":
        return f"{where}: {row['status']}, {row['reason']}"
    values = row["values"]
    time = f"{values['calls']} calls, {values['seconds']:.1f} s"
    if values["timed_out"]:
        time += ", time is up"
    if not values["success"]:
        return f"{where}: not fooled, {time}"
    support = "" if values["L_star"] is None else f", L* = {values['L_star']:,}"
    return f"{where}: B = {values['B']:.1f}, L0 = {values['L0']:,}{support}, {time}"
