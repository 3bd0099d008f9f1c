"""One picture from file to files: checked, attacked, saved, read back, drawn, recorded."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from torch import Tensor

from fast_lapsum.bench import environment, sources
from fast_lapsum.bench.display import LiveBar, number_of
from fast_lapsum.bench.results import write_json

from ..out_of_memory import is_memory
from . import figures, pictures
from .classifiers import Resize, load_classifier
from .measures import pixel_changes
from .memory import memory_that_is_free
from .pictures import PictureError
from .profile import Profile, StepClock, has_operator, profile
from .protocol import Attack, Classifier, Limits, Result
from .protocol import Progress as Step
from .rows import classified, measured, one_line

FORMAT = "fast-lapsum attacked picture"
VERSION = 1
_SECONDS_BETWEEN_LINES = 5.0


class Job(NamedTuple):
    """What is done to every picture of one command."""

    attack: Attack
    method: str
    limits: Limits
    label: str | None
    target: str | None
    region: Path | None
    least_confidence: float
    seed: int
    out: Path
    profile: bool


class Ending(NamedTuple):
    """How it ended; ``problem`` says why a picture was not attacked."""

    fooled: bool
    problem: str = ""


def load(model: str, resize: Resize, device: torch.device) -> Classifier:
    """The classifier; apart, so that tests can hand in their own."""
    return load_classifier(model, resize=resize, device=device)


def attack_file(path: Path, job: Job, classifier: Classifier, console: Console) -> Ending:
    """Attack one picture and write its files, or say why not."""
    try:
        with memory_that_is_free(classifier.device):
            return _attack_file(path, job, classifier, console)
    except PictureError as error:
        return Ending(False, str(error))
    except Exception as error:  # of any kind, from models and methods: other pictures may do
        problem = f"{job.method} fails on {path}: {one_line(error)}"
        out_of_memory = is_memory(error)
    if out_of_memory:
        problem = f"{path}: more memory is needed than there is; {_with_less(classifier)}"
        if classifier.device.type == "cuda":
            torch.cuda.empty_cache()  # not before: the error held on to what had been computed
    return Ending(False, problem)


def _with_less(classifier: Classifier) -> str:
    if classifier.resize is None:
        return "--resize N may take less"
    return f"the short side is resized to {classifier.resize}, and a smaller one may take less"


def _attack_file(path: Path, job: Job, classifier: Classifier, console: Console) -> Ending:
    image = pictures.read(path).to(classifier.device)
    region = None
    if job.region is not None:
        region = pictures.read_mask(job.region, *image.shape[1:]).to(classifier.device)
    before = classified(classifier, image, path, "--resize N")
    label, target = _goal(path, job, classifier, before)
    with _Display(console, path.name, classifier, job.limits) as display:
        clock = StepClock(display.step)
        result = job.attack.run(
            classifier, image, label, target, job.limits, job.seed, clock, region
        )
    measures = measured(classifier, image, label, target, result, region)
    timed = None
    if job.profile and has_operator(result) and clock.seconds:
        timed = profile(result, clock.seconds, region)
    try:
        record = _write(
            path, job, classifier, image, label, target, before, result, measures, timed
        )
    except OSError as error:
        return Ending(False, f"{path}: {job.out} cannot be written, {error.strerror or error}")
    _say(console, _summary(path, record))
    if job.profile:
        _say(console, _profile_sentence(job.method, result, timed))
    return Ending(bool(record["measures"]["success"]))


def _profile_sentence(method: str, result: Result, timed: Profile | None) -> str:
    if not has_operator(result):
        return f"profile: {method} has no operator"
    if timed is None:
        return "profile: one step is too few to be timed"
    return timed.sentence()


def class_index(text: str, classifier: Classifier, count: int, option: str) -> int:
    """A class by number or by name; a name may be one of several between commas."""
    if text.isdecimal():
        if int(text) < count:
            return int(text)
        raise PictureError(f"{option} {text}: expected 0 to {count - 1}, or a class's name")
    wanted = text.strip().lower()
    names = [[part.strip().lower() for part in name.split(",")] for name in classifier.labels]
    found = [index for index, parts in enumerate(names) if wanted in (*parts, ", ".join(parts))]
    if len(found) == 1:
        return found[0]
    if found:
        raise PictureError(f"{option} '{text}' is the name of classes {found}: give the number")
    near = [classifier.label(i) for i, parts in enumerate(names) if wanted in " ".join(parts)][:5]
    hint = f"; near: {'; '.join(near)}" if near else ""
    raise PictureError(f"{option} '{text}' is no class of {classifier.name}{hint}")


def _goal(
    path: Path, job: Job, classifier: Classifier, probabilities: Tensor
) -> tuple[int, int | None]:
    """The true class and the target, once it is sure that there is something to attack."""
    count = len(probabilities)
    predicted = int(probabilities.argmax())
    confidence = float(probabilities[predicted])
    label, target = predicted, None
    if job.label is not None:
        label = class_index(job.label, classifier, count, "--label")
    if job.target is not None:
        target = class_index(job.target, classifier, count, "--target")
    if predicted != label:
        raise PictureError(
            f"{path}: the model already says {classifier.label(predicted)} ({confidence:.3f}),"
            f" not {classifier.label(label)}: nothing to attack"
        )
    if confidence < job.least_confidence:
        raise PictureError(
            f"{path}: the model is only {confidence:.3f} sure of {classifier.label(label)}, and"
            f" {job.least_confidence:g} is asked for: --resize may suit the picture better, and"
            " --least-confidence 0 attacks all the same"
        )
    if target == label:
        raise PictureError(f"{path}: --target {classifier.label(target)} is what the model says")
    return label, target


def _write(
    path: Path,
    job: Job,
    classifier: Classifier,
    image: Tensor,
    label: int,
    target: int | None,
    before: Tensor,
    result: Result,
    measures: dict[str, Any],
    timed: Profile | None,
) -> dict[str, Any]:
    """All files into a folder of their own, then into place: nothing appears half-written."""
    record: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "picture": path.name,
        "width": image.shape[2],
        "height": image.shape[1],
        "model": classifier.name,
        "resize": classifier.resize,
        "method": job.method,
        "paper": job.attack.paper,
        "limits": job.limits._asdict(),
        "seed": job.seed,
        "region": None if job.region is None else job.region.name,
        "label": label,
        "label_name": classifier.label(label),
        "target": target,
        "target_name": None if target is None else classifier.label(target),
        "confidence_before": float(before[label]),
        "measures": measures,
        "profile": None if timed is None else timed.record(),
        "files": {},
        "environment": environment.describe(),
        "sources": sources.describe("attack", str(classifier.device)),
    }
    job.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=job.out) as name:
        unfinished = Path(name)
        if measures["success"]:
            _write_pictures(unfinished, path, classifier, image, result, record)
        write_json(unfinished / f"{path.stem}.json", record)
        if (job.out / f"{path.stem}.json").exists():  # of an earlier run, with its pictures
            for old in set(_names(path).values()) - set(record["files"].values()):
                (job.out / old).unlink(missing_ok=True)
        for made in sorted(unfinished.iterdir()):
            made.replace(job.out / made.name)
    return record


def _names(path: Path) -> dict[str, str]:
    """The pictures that come of one."""
    return {kind: f"{path.stem}-{kind}.png" for kind in ("attacked", "change", "zoom", "figure")}


def _write_pictures(
    folder: Path,
    path: Path,
    classifier: Classifier,
    image: Tensor,
    result: Result,
    record: dict[str, Any],
) -> None:
    files = _names(path)
    saved = folder / files["attacked"]
    pictures.write(saved, result.adversarial)
    if not _verified(saved, classifier, result, record):
        saved.unlink()
        record["measures"] |= {"success": False, "L_star": None}
        return
    changes = pixel_changes(result.adversarial, image)
    figures.write_heat(folder / files["change"], changes)
    region = figures.write_zoom(folder / files["zoom"], changes, image, result.adversarial)
    measures = record["measures"]
    figures.write_side_by_side(
        folder / files["figure"],
        image,
        result.adversarial,
        f"{record['label_name']} {record['confidence_before']:.3f}",
        f"{measures['predicted_name']} {measures['confidence']:.3f}",
        f"{path.name}: B = {measures['B']:,.1f} fully changed pixels of"
        f" {record['width'] * record['height']:,}, {measures['L0']:,} pixels touched",
    )
    record["files"] = files
    record["zoom"] = region._asdict()
    record["scale"] = {"from": figures.LEAST_CHANGE, "to": 1.0, "kind": "logarithmic"}


def _verified(saved: Path, classifier: Classifier, result: Result, record: dict[str, Any]) -> bool:
    """Read the file that was written and ask the model again: whether it is what it should be."""
    again = pictures.read(saved).to(classifier.device)
    probabilities = classifier.predict(again[None])[0]
    predicted = int(probabilities.argmax())
    # In levels: 255ths may differ in their last bit from one device to another.
    same = np.array_equal(pictures.levels(again), pictures.levels(result.adversarial))
    target = record["target"]
    fools = predicted != record["label"] if target is None else predicted == target
    record["verified"] = {
        "same_pixels": same,
        "predicted": predicted,
        "confidence": float(probabilities[predicted]),
        "same_prediction": predicted == record["measures"]["predicted"],
    }
    return same and fools


def _summary(path: Path, record: dict[str, Any]) -> str:
    found = record["measures"]
    spent = f"{number_of(found['calls'], 'call')}, {found['seconds']:.1f} s"
    if "verified" in record and not found["success"]:
        return f"{path.name}: the picture does not fool once it is saved and read back, {spent}"
    if not found["success"]:
        return f"{path.name}: still {record['label_name']} after {spent}"
    support = "" if found["L_star"] is None else f", L* = {found['L_star']:,}"
    return (
        f"{path.name}: {record['label_name']} {record['confidence_before']:.3f} ->"
        f" {found['predicted_name']} {found['confidence']:.3f} in the saved file,"
        f" B = {found['B']:,.1f}, L0 = {found['L0']:,}{support}, {spent}"
    )


class _Display(LiveBar):
    """Live progress: a line that changes on a terminal, a line every few seconds elsewhere."""

    def __init__(self, console: Console, name: str, classifier: Classifier, limits: Limits) -> None:
        columns = (TextColumn(name, markup=False), BarColumn(bar_width=16), TimeElapsedColumn())
        total = limits.calls or limits.steps
        super().__init__(console, *columns, start="starting", total=total)
        self._name = name
        self._classifier = classifier
        self._last = time.monotonic()
        self._by_calls = limits.calls is not None

    def step(self, step: Step) -> None:
        """Show where the attack stands."""
        text = progress_text(step, self._classifier)
        done = step.calls if self._by_calls else step.step
        self._bar.update(self._task, completed=done, description=text)
        now = time.monotonic()
        if not self._console.is_terminal and now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = now
            _say(self._console, f"{self._name}: {text}")


def progress_text(step: Step, classifier: Classifier) -> str:
    """Step, predicted class, confidence, k, t, B and the best B so far, in one line."""
    parts = [
        f"step {step.step}",
        f"{classifier.label(step.predicted)} {step.confidence:.3f}",
        "" if step.k is None else f"k {step.k:,.4g}",
        "" if step.temperature is None else f"t {step.temperature:.3g}",
        f"B {step.budget:,.1f}",
        "not fooled yet" if step.best_budget is None else f"best {step.best_budget:,.1f}",
    ]
    return ", ".join(part for part in parts if part)


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
