"""One row of the comparison: a method on a picture, and all that is measured of it.

What goes wrong with a picture or a row is said in it, and the rest goes on.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..out_of_memory import is_memory
from . import pictures
from .hard_support import HardSupport, hard_support
from .measures import measure, pixel_changes
from .memory import limited_memory
from .methods import method
from .pictures import PictureError
from .protocol import Classifier, Limits, Result

_PICTURES_KEPT = 4

Row = dict[str, Any]
Note = dict[str, Any]
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


class Task(NamedTuple):
    """A row to be made: its key, the picture, and the label that the model is confident of."""

    key: dict[str, Any]
    path: Path
    resize: int | None
    label: int


def setting_name(resize: int | None) -> str:
    """As tables call it.

    >>> setting_name(None), setting_name(256)
    ('native', 'short side 256')
    """
    return "native" if resize is None else f"short side {resize}"


class Maker:
    """Examines pictures and makes rows, in whichever process; keeps models and some pictures."""

    def __init__(self, plan: Plan, load: Load, jobs: int) -> None:
        self.spoiled = False
        self._plan = plan
        self._load = load
        self._jobs = jobs
        self._attacks = {name: method(name) for name in plan.methods}
        self._classifiers: dict[int | None, Classifier] = {}
        self._pictures: OrderedDict[Path, Tensor] = OrderedDict()

    def __call__(self, task: Entry | Task) -> list[Note] | Row:
        """Notes on a picture, or a row without its key."""
        return self.examine(task) if isinstance(task, Entry) else self.row(task)

    def examine(self, entry: Entry) -> list[Note]:
        """Whether the model is right and confident, in every setting that is asked for."""
        notes = []
        for resize in self._plan.settings:
            note = {"picture": entry.path.name, "setting": setting_name(resize), "used": False}
            notes.append(note | self._note(self._classifier(resize), entry))
            if self._plan.each_once and notes[-1]["used"]:
                break
        return notes

    def row(self, task: Task) -> Row:
        """One method on one picture; whatever goes wrong is the row's."""
        classifier = self._classifier(task.resize)
        row = self._row(task, classifier)
        if classifier.device.type == "cuda":
            # After some CUDA errors every later call fails as well.
            self.spoiled = row["status"] == "error"
            if row["status"] == "oom" or (self._jobs > 1 and not self.spoiled):
                torch.cuda.empty_cache()  # for the next row, and the other processes
        return row

    def _row(self, task: Task, classifier: Classifier) -> Row:
        plan = self._plan
        attack = self._attacks[task.key["method"]]
        limits = Limits(calls=task.key["calls"], seconds=plan.seconds)
        gradients = classifier.gradients
        try:
            image = self._picture(task.path, classifier.device)
            with limited_memory(classifier.device, plan.gibibytes):
                result = attack.run(
                    classifier, image, task.label, None, limits, plan.seed, None, None
                )
                spent = classifier.gradients - gradients
                values = measured(classifier, image, task.label, None, result)
        except Exception as error:
            if is_memory(error):
                shared = self._jobs > 1 and classifier.device.type == "cuda"
                others = f", or than {self._jobs} jobs leave" if shared else ""
                reason = f"needs more than {plan.gibibytes:g} GiB{others}"
                return {"status": "oom", "reason": reason}
            return {"status": "error", "reason": one_line(error)}
        values["gradients"] = spent
        values["timed_out"] = result.seconds >= plan.seconds
        return {"status": "ok", "values": values}

    def _note(self, classifier: Classifier, entry: Entry) -> Note:
        note: Note = {}
        least = self._plan.least_confidence
        try:
            image = self._picture(entry.path, classifier.device)
            with limited_memory(classifier.device, self._plan.gibibytes):
                probabilities = classified(classifier, image, entry.path, "--settings N")
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
            elif note["confidence"] < least:
                note["why"] = f"confidence {note['confidence']:.3f} is under {least:g}"
            else:
                note["used"] = True
        except PictureError as error:
            note |= {"why": str(error), "bad": True}
            self.spoiled |= "CUDA error" in str(error.__cause__)
        except Exception as error:
            if not is_memory(error):
                raise
            needed = f"more than {self._plan.gibibytes:g} GiB for one call"
            note |= {"why": f"{entry.path}: {needed}", "bad": True}
        if note.get("bad") and classifier.device.type == "cuda" and not self.spoiled:
            torch.cuda.empty_cache()  # what the call that failed had
        return note

    def _classifier(self, resize: int | None) -> Classifier:
        if resize not in self._classifiers:
            self._classifiers[resize] = self._load(resize)
        return self._classifiers[resize]

    def _picture(self, path: Path, device: torch.device) -> Tensor:
        found = self._pictures.pop(path, None)
        if found is None:
            found = pictures.read(path).to(device)
        self._pictures[path] = found
        if len(self._pictures) > _PICTURES_KEPT:
            self._pictures.popitem(last=False)
        return found


def classified(classifier: Classifier, image: Tensor, path: Path, option: str) -> Tensor:
    """Probabilities [C] of a picture, or a PictureError where the model gives none.

    ``option`` is what makes the model see another size. Only a lack of memory is raised as it is.
    """
    try:
        probabilities = classifier.predict(image[None])[0]
    except Exception as error:  # models raise nearly anything
        if is_memory(error):
            raise
        size = f"{image.shape[2]} x {image.shape[1]} pixels"
        if classifier.resize is not None:
            size += f", the short side resized to {classifier.resize}"
        raise PictureError(
            f"{path}: {classifier.name} fails on {size} ({one_line(error)}); {option} may give it"
            " a size that it takes"
        ) from error
    if not probabilities.isfinite().all():
        raise PictureError(f"{path}: {classifier.name} gives probabilities that are no numbers")
    return probabilities


def one_line(error: Exception) -> str:
    """What kind of error, and what it says.

    >>> one_line(ValueError("two\\nlines"))
    'ValueError: two lines'
    """
    return f"{type(error).__name__}: {' '.join(str(error).split()) or 'no message'}"


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
    method's scores, then of their change, or of that alone where it has none. Its calls are
    counted apart.
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
