"""What every attack is given and hands back, and how classifier calls are counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .measures import budget, round_to_8_bits

#: What an attack has to win by, in logits. Convolutions differ by less between machines, batch
#: sizes and calls: a picture that wins by less may not when its file is classified again.
LEAD = 0.05


class Limits(NamedTuple):
    """Where an attack stops, whichever comes first; None is no limit of that kind."""

    calls: int | None = None
    seconds: float | None = None
    steps: int | None = None


class Progress(NamedTuple):
    """What an attack says after a step about the picture it has just tried."""

    step: int
    calls: int
    predicted: int
    confidence: float
    success: bool
    budget: float
    best_budget: float | None
    k: float | None = None
    temperature: float | None = None


class Result(NamedTuple):
    """The end of one attack on one picture.

    ``adversarial`` is the picture of the lowest B that fools, in whole 255ths; where none fooled it
    is the last one tried, and ``success`` is False. ``success`` holds for the rounded picture.
    """

    adversarial: Tensor
    success: bool
    calls: int
    seconds: float
    steps: int
    extra: dict[str, object]


ProgressHook = Callable[[Progress], None]
# (classifier, image [3, H, W] in [0, 1], true label, target or None, limits, seed, progress or
# None, boolean mask [H, W] of the pixels that may change or None) -> result
Run = Callable[
    ["Classifier", Tensor, int, int | None, Limits, int, ProgressHook | None, Tensor | None], Result
]


class Attack(NamedTuple):
    """A method under the name that tables show, and the paper it was written from."""

    name: str
    paper: str
    run: Run


class Classifier:
    """Pictures in [0, 1] to logits, whatever the model wants to be fed; counts what it is asked.

    A call is one forward pass of one picture. A gradient is one backward pass of one picture
    through such a call, counted when the gradient of the picture is computed.

    Args:
        model: gives logits [N, C] (or an object with ``logits``) for pictures [N, 3, h, w].
        labels: names of the classes, in order.
        prepare: differentiable, from pictures in [0, 1] to what the model is fed.
        name: for records and messages.
    """

    def __init__(
        self,
        model: nn.Module,
        labels: Sequence[str] = (),
        prepare: Callable[[Tensor], Tensor] | None = None,
        name: str = "model",
    ) -> None:
        self.model = model.eval().requires_grad_(False)
        self.labels = tuple(labels)
        self.name = name
        self._prepare = prepare
        self.calls = 0
        self.gradients = 0

    @property
    def device(self) -> torch.device:
        """Where the model's weights are; the pictures have to be there too."""
        found = next(self.model.parameters(), None)
        return torch.device("cpu") if found is None else found.device

    @property
    def resize(self) -> int | None:
        """The short side that pictures are resized to for the model, None for native resolution."""
        return getattr(self._prepare, "resize", None)

    def label(self, index: int) -> str:
        """The class's name, or its number where the model has no names."""
        return self.labels[index] if index < len(self.labels) else f"class {index}"

    def logits(self, images: Tensor) -> Tensor:
        """Logits [N, C], differentiable in ``images`` [N, 3, H, W]; one call per picture."""
        if images.dim() != 4 or images.shape[1] != 3:
            raise ValueError(f"images must be [N, 3, H, W], got shape {tuple(images.shape)}")
        self.calls += images.shape[0]
        if images.requires_grad:
            images = images.view_as(images)
            images.register_hook(self._count_gradients)  # type: ignore[no-untyped-call]
        fed = images if self._prepare is None else self._prepare(images)
        out = self.model(fed)
        logits: Tensor = out if isinstance(out, Tensor) else out.logits
        return logits.float() if logits.dtype.itemsize < 4 else logits

    def predict(self, images: Tensor) -> Tensor:
        """Softmax probabilities [N, C], without a gradient; one call per picture."""
        with torch.no_grad():
            return torch.softmax(self.logits(images), -1)

    def _count_gradients(self, gradient: Tensor) -> None:
        self.gradients += gradient.shape[0]


def check_goal(classes: int, label: int, target: int | None) -> None:
    """Refuse a class that the model does not have: Python would count -1 from the end."""
    for name, index in (("label", label), ("target", target)):
        if index is not None and not 0 <= index < classes:
            raise ValueError(f"{name} must be a class from 0 to {classes - 1}, got {name}={index}")


def lead(logits: Tensor, label: int, target: int | None) -> Tensor:
    """By how much logits [C] favour another class over the true one, or the target over all.

    >>> logits = torch.tensor([1.0, 3.0, 2.5])
    >>> lead(logits, 1, None).item(), lead(logits, 1, 0).item()
    (-0.5, -2.0)
    """
    check_goal(logits.shape[-1], label, target)
    wanted = label if target is None else target
    others = torch.cat([logits[:wanted], logits[wanted + 1 :]])
    difference = logits[wanted] - others.max()
    return -difference if target is None else difference


def has_won(logits: Tensor, label: int, target: int | None) -> bool:
    """Whether logits [C] are another class's than the true one, or the target's, by ``LEAD``."""
    return bool(lead(logits, label, target) >= LEAD)


class Meter:
    """Calls and seconds since it was made, held against the limits."""

    def __init__(self, classifier: Classifier, limits: Limits) -> None:
        self._classifier = classifier
        self._limits = limits
        self._calls = classifier.calls
        self._start = time.perf_counter()

    @property
    def calls(self) -> int:
        """Calls so far."""
        return self._classifier.calls - self._calls

    @property
    def calls_left(self) -> int | None:
        """Calls that are still allowed, or None where they are not limited."""
        return None if self._limits.calls is None else self._limits.calls - self.calls

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return time.perf_counter() - self._start

    def allows(self, calls: int = 1, step: int = 0) -> bool:
        """Whether so many more calls stay inside the limits before step number ``step``."""
        limits = self._limits
        if limits.calls is not None and self.calls + calls > limits.calls:
            return False
        if limits.seconds is not None and self.seconds >= limits.seconds:
            return False
        return limits.steps is None or step < limits.steps


class Best:
    """The picture of the lowest B that fools, among those that were tried in whole 255ths."""

    def __init__(self, image: Tensor) -> None:
        self._image = image
        self.adversarial: Tensor | None = None
        self.budget = float("inf")

    def offer(self, tried: Tensor, won: bool, spent: float | None = None) -> bool:
        """Keep ``tried`` [3, H, W] if it won with a lower B; it must be rounded to 8 bits.

        Who knows B already gives it as ``spent``: to add it up reads the picture, and waits.
        """
        if not won:
            return False
        spent = budget(tried, self._image) if spent is None else spent
        if spent >= self.budget:
            return False
        self.adversarial, self.budget = tried.detach().clone(), spent
        return True

    def result(
        self, last: Tensor, meter: Meter, steps: int, extra: dict[str, object] | None = None
    ) -> Result:
        """The best picture, or ``last`` rounded where none fooled."""
        won = self.adversarial is not None
        found = round_to_8_bits(last.detach()) if self.adversarial is None else self.adversarial
        return Result(found, won, meter.calls, meter.seconds, steps, extra or {})
