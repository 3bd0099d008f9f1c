"""What all baselines share: one way to try a picture, to stop, to count and to keep the best.

A picture is always tried as it would be saved, in whole 255ths, and its gradient is taken there
(straight through the rounding). So one call tells a baseline both where to go and whether a result
holds on disk, and none of its calls is spent on checking.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..measures import budget, round_to_8_bits
from ..protocol import (
    LEAD,
    Attack,
    Best,
    Classifier,
    Limits,
    Meter,
    Progress,
    ProgressHook,
    Result,
    check_goal,
    has_won,
    lead,
)

Loss = Callable[[Tensor], Tensor]


class Trial(NamedTuple):
    """One picture that was tried: logits [C], and the gradient [3, H, W] of the loss there."""

    logits: Tensor
    won: bool
    gradient: Tensor


class Search:
    """One attack on one picture.

    The picture is rounded to 8 bits first, so that B counts no change that nobody made. ``mask``
    [H, W] says which pixels may change; gradients are zero elsewhere. Where nothing is limited,
    ``default_calls`` are.
    """

    def __init__(
        self,
        classifier: Classifier,
        image: Tensor,
        label: int,
        target: int | None,
        limits: Limits,
        progress: ProgressHook | None,
        mask: Tensor | None,
        default_calls: int,
    ) -> None:
        if limits == Limits():
            limits = Limits(calls=default_calls)
        image = round_to_8_bits(image)
        self.classifier = classifier
        self.image = image
        self.label = label
        self.target = target
        self.mask = mask
        self.meter = Meter(classifier, limits)
        self.best = Best(image)
        self.steps = 0
        self._limits = limits
        self._default_calls = default_calls
        self._progress = progress
        self._last = image

    def allows(self, calls: int = 1) -> bool:
        """Whether the limits leave room for one more step of so many calls."""
        return self.meter.allows(calls, self.steps)

    @property
    def planned(self) -> int:
        """How many calls there will be at most: what a schedule is stretched over."""
        given = [n for n in (self._limits.calls, self._limits.steps) if n is not None]
        return max(1, min(given, default=self._default_calls))

    def free_pixels(self) -> int:
        """How many pixels may change."""
        height, width = self.image.shape[1:]
        return height * width if self.mask is None else int(self.mask.sum())

    def logits(self, images: Tensor) -> Tensor:
        """Logits [N, C], one call per picture; a goal that is none of the C classes is refused."""
        logits = self.classifier.logits(images)
        check_goal(logits.shape[-1], self.label, self.target)
        return logits

    def try_change(self, change: Tensor, loss: Loss, k: float | None = None) -> Trial:
        """One call at image + ``change``, and one gradient of ``loss`` of the logits [C]."""
        picture = round_to_8_bits(self.image + change).requires_grad_()
        logits = self.logits(picture[None])[0]
        (gradient,) = torch.autograd.grad(loss(logits), picture)
        won = self.note(picture.detach(), logits.detach(), k)
        return Trial(logits.detach(), won, self.inside(gradient))

    def gradients(self, picture: Tensor, differences: Loss) -> Trial:
        """One call at ``picture``, and a gradient [M, 3, H, W] for each of M ``differences``.

        Not rounded and not kept: for steps towards a boundary that are no results by themselves.
        """
        picture = picture.detach().requires_grad_()
        logits = self.logits(picture[None])[0]
        values = differences(logits)
        found = [
            torch.autograd.grad(value, picture, retain_graph=index + 1 < len(values))[0]
            for index, value in enumerate(values)
        ]
        self.steps += 1
        won = has_won(logits.detach(), self.label, self.target)
        return Trial(logits.detach(), won, self.inside(torch.stack(found)))

    def try_only(self, picture: Tensor) -> Trial:
        """One call at ``picture``, without a gradient."""
        rounded = round_to_8_bits(picture)
        with torch.no_grad():
            logits = self.logits(rounded[None])[0]
        return Trial(logits, self.note(rounded, logits), torch.empty(0))

    def inside(self, values: Tensor) -> Tensor:
        """``values`` [..., H, W], zero where nothing may change."""
        return values if self.mask is None else values * self.mask

    def result(self, extra: dict[str, object]) -> Result:
        """The best picture, or the last one that was tried."""
        return self.best.result(self._last, self.meter, self.steps, extra)

    def note(self, rounded: Tensor, logits: Tensor, k: float | None = None) -> bool:
        """Count a step, keep the picture if it is the best, and tell whether it won."""
        won = has_won(logits, self.label, self.target)
        self.best.offer(rounded, won)
        self._last = rounded
        self.steps += 1
        if self._progress is not None:
            predicted = int(logits.argmax())
            self._progress(
                Progress(
                    step=self.steps,
                    calls=self.meter.calls,
                    predicted=predicted,
                    confidence=float(torch.softmax(logits, -1)[predicted]),
                    success=won,
                    budget=budget(rounded, self.image),
                    best_budget=None if self.best.adversarial is None else self.best.budget,
                    k=k,
                )
            )
        return won


def searching(
    name: str, paper: str, default_calls: int, body: Callable[[Search, int], Result]
) -> Attack:
    """The attack that makes ``body`` search, with a seed for what is random in it."""

    def run(
        classifier: Classifier,
        image: Tensor,
        label: int,
        target: int | None,
        limits: Limits,
        seed: int,
        progress: ProgressHook | None,
        mask: Tensor | None,
    ) -> Result:
        search = Search(classifier, image, label, target, limits, progress, mask, default_calls)
        return body(search, seed)

    return Attack(name, paper, run)


def margin(logits: Tensor, label: int, target: int | None) -> Tensor:
    """How far the attack is from its goal, in logits: positive until it has won.

    z_y - max_{j != y} z_j without a target y', max_{j != y'} z_j - z_y' with one, plus ``LEAD``.
    """
    return LEAD - lead(logits, label, target)


def cross_entropy(logits: Tensor, label: int, target: int | None) -> Tensor:
    """To be raised: -log p_y of the true class, or log p_y' of the target."""
    wanted = label if target is None else target
    # Not by log_softmax: where p_y rounds to 1, its gradient has lost the true class.
    logits = logits.double()
    others = torch.cat([logits[:wanted], logits[wanted + 1 :]])
    loss = F.softplus(torch.logsumexp(others, -1) - logits[wanted])
    return loss if target is None else -loss


class SparsitySearch:
    """The smallest number of pixels k that fools: a bracket, then bisection, for methods given k.

    Up by a factor of 4 until it fools, down by a factor of ``shrink`` until it fails, then the
    geometric mean.
    """

    def __init__(self, most: int, first: int, shrink: float) -> None:
        self.k = max(1, min(first, most))
        self._most = most
        self._shrink = shrink
        self._failed = 0
        self._fooled: int | None = None

    def fooled(self, pixels: int) -> None:
        """This k fooled, with so many pixels changed in fact: less is wanted."""
        self._fooled = max(1, min(pixels, self.k))
        self._next()

    def failed(self) -> None:
        """This k did not fool: more is needed."""
        self._failed = self.k
        self._next()

    @property
    def done(self) -> bool:
        """Whether there is no k left to try: all pixels failed, or neighbours decided."""
        if self._fooled is None:
            return self._failed >= self._most
        return self._fooled - self._failed <= max(1, 0.02 * self._fooled)

    def reopen(self) -> None:
        """Nothing is left to try, but calls are: what failed before may fool with more steps."""
        self._failed = 0 if self._fooled is not None else self._failed // 4
        self._next()

    def _next(self) -> None:
        if self._fooled is None:
            self.k = min(self._most, 4 * self.k)
        elif self._failed == 0:
            self.k = max(1, int(self._shrink * self._fooled))
        else:
            self.k = max(self._failed + 1, round((self._failed * self._fooled) ** 0.5))
