"""Which class to go for: short attempts at several, then every call that is left for the best.

The class of the nearest logit need not be the one that costs least: on one photograph the sixth of
the others takes a third of its B. How little an attempt of a few steps fools with tells which, and
of more steps tells better: there may be several heats, each among the best of the one before.
Leaving the true class in whatever direction is one aim among the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from .protocol import Progress, Result


class Heat(NamedTuple):
    """Attempts at so many aims, the best of the heat before, of so many steps each.

    The aims of the first heat are None, away from the true class, and the likeliest other classes.
    """

    aims: int
    steps: int


class Attempt(Protocol):
    """An attack on one picture that goes for one class, or away from the true one."""

    done: bool

    @property
    def lowest(self) -> float:
        """B of the best picture so far, inf while none fools."""

    def tried(self) -> Tensor:
        """What the classifier is to be shown; the picture itself at first."""

    def log_q(self, logits: Tensor) -> Tensor:
        """What is to be lowered."""

    def learn(self, tried: Tensor, logits: Tensor, log_q: Tensor, gradient: Tensor) -> Progress:
        """One step."""

    def result(self, seconds: float) -> Result:
        """The best picture so far, or the last."""


class Race:
    """All attempts on one picture, one after the other; itself an attempt.

    Args:
        begin: makes an attempt at this class, of so many steps; None is away from the true class.
        label: the true class, never gone for.
        target: the only class that counts, or None.
        steps: of all attempts together.
        heats: before the last attempt, which has the steps that are left. Empty: no race.
    """

    def __init__(
        self,
        begin: Callable[[int | None, int], Attempt],
        label: int,
        target: int | None,
        steps: int,
        heats: Sequence[Heat],
    ) -> None:
        self._begin = begin
        self._label, self._total = label, steps
        self._heats = list(heats) if target is None else []
        self._by_aim: dict[int | None, float] = {}  # the lowest B that each was reached with
        self._waiting: list[int | None] = []  # aims of this heat that have not run
        self._steps = steps  # of an attempt of this heat
        self._step = 0
        self._found: Result | None = None
        self.lowest = math.inf
        self.done = False
        self._go_for(target)

    def tried(self) -> Tensor:
        """What the classifier is to be shown. An attempt that is over makes place for the next."""
        if self._step == self._end or self._attempt.done:
            self._go_for(self._next())
        return self._attempt.tried()

    def log_q(self, logits: Tensor) -> Tensor:
        """What is to be lowered. The first logits, of the picture itself, name the classes."""
        if self._step == 0 and self._heats and logits.shape[-1] > 2:
            order = logits.detach().argsort(descending=True, stable=True).tolist()
            aims = [None, *(index for index in order if index != self._label)]
            self._by_aim = dict.fromkeys(aims[: self._heats[0].aims], math.inf)
            self._go_for(self._next())
        return self._attempt.log_q(logits)

    def learn(self, tried: Tensor, logits: Tensor, log_q: Tensor, gradient: Tensor) -> Progress:
        """One step of the attempt that runs."""
        told = self._attempt.learn(tried, logits, log_q, gradient)
        self._step += 1
        found = self._attempt.lowest
        is_over = self._step == self._end or self._attempt.done
        if is_over:
            self._keep()
        self.done = found == 0 or (is_over and self._end == self._total)
        best = min(self.lowest, found)
        return told._replace(
            step=self._step, calls=self._step, best_budget=None if best == math.inf else best
        )

    def result(self, seconds: float) -> Result:
        """The best picture of all attempts; where none fools, the last one tried."""
        self._keep()
        found = self._found or self._attempt.result(seconds)
        return found._replace(calls=self._step, seconds=seconds, steps=self._step)

    def _keep(self) -> None:
        """What the attempt that ran has found, if that is the best."""
        found = self._attempt.lowest
        if self._aim in self._by_aim:
            self._by_aim[self._aim] = min(found, self._by_aim[self._aim])
        if found < self.lowest:
            self.lowest = found
            self._found = self._attempt.result(0.0)

    def _next(self) -> int | None:
        """The aim whose turn it is."""
        if not self._waiting:
            heat = self._heats.pop(0) if self._heats else Heat(1, self._total)
            best = sorted(self._by_aim, key=self._by_aim.__getitem__)[: heat.aims]
            # Aims that so few steps do not reach are no better than any.
            is_blind = self._step > 0 and self.lowest == math.inf
            self._waiting = [None] if is_blind else best
            self._steps = self._total if is_blind else heat.steps
        return self._waiting.pop(0)

    def _go_for(self, aim: int | None) -> None:
        self._aim = aim
        self._end = min(self._step + self._steps, self._total)  # the step that it ends with
        self._attempt = self._begin(aim, self._end - self._step)
