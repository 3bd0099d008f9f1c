"""All methods over a folder of pictures: one row per picture, setting, calls and method.

Every row is saved as soon as it is there (with several jobs, within a second or so), the whole file
at once, so a run that is killed loses at most the rows it was in, and goes on from there. Rows that
failed are then tried again. Rows of another model, seed, limit, machine, code or picture are never
mixed: such a file is refused.
"""

from __future__ import annotations

import csv
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fast_lapsum.bench.records import identity
from fast_lapsum.bench.results import write_json

from . import pictures
from .comparison_file import CompareError, Record, started
from .hard_support import HardSupport, hard_support
from .measures import measure, pixel_changes
from .memory import is_memory, limited_memory
from .methods import method
from .pictures import PictureError
from .protocol import Classifier, Limits, Result
from .workers import Died, Pool

#: With several jobs: rows come often, and the file grows.
_SECONDS_BETWEEN_SAVES = 1.0
_PICTURES_KEPT = 4
_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")

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


Ask = Callable[[Iterable[Any]], Iterator[tuple[Any, Any]]]


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
    settings = {**plan._asdict(), "model": model, "device": str(device), "jobs": jobs}
    record = started(path, settings, fresh)
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
