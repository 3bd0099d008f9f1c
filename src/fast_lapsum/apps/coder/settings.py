"""What ``fit`` is asked for, and what it answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch

from .blocks import anneal
from .code import Code


@dataclass(frozen=True)
class Settings:
    """What to train.

    Attributes:
        bits: the budget B that the finished code keeps: of addresses and values in the plain coder,
            of the whole file in the best one. A picture too small for it gets an empty code.
        atoms: k. None takes one atom per 16 bits (the paper's 10^4 for 1.6e5), or 10 in a grey
            picture, in the plain coder, and in the best one as many as pay for themselves at the
            step that meets the budget.
        plain: the paper's coder (block atoms in RGB, counted rate) instead of the best one.
        steps: the steps of training, before the values are polished; None takes 200 in the plain
            coder and 40 in the best one, whose start is closer to its end.
        seed: of the dither.
        device: where to train.
        hard: forward the hard mask; False trains on the soft mask and hardens at the end.
        switching: the plain coder's mask learns from what switching an atom would change, else from
            the slope of the squared error at the mask as it is, -2 <v, c>. For atoms that are on
            that is the paper's straight-through estimator; for those that are off it is not: the
            paper takes their stored value v, here it is the one they would start from, c / n.
        start_temperature: of the selection at the first step.
        end_temperature: and at the last; equal to the first for a fixed temperature.
    """

    bits: float
    atoms: int | None = None
    plain: bool = False
    steps: int | None = None
    seed: int = 0
    device: str = "cpu"
    hard: bool = True
    switching: bool = True
    start_temperature: float = 1.0
    end_temperature: float = 0.05

    @property
    def step_count(self) -> int:
        """The steps of training."""
        return self.steps or (200 if self.plain else 40)

    def temperature(self, step: int) -> float:
        """Of the selection at a step."""
        return anneal(step, self.step_count, self.start_temperature, self.end_temperature)

    def __post_init__(self) -> None:
        if not self.bits > 0:
            raise ValueError(f"bits must be positive, got bits={self.bits}")
        if self.atoms is not None and self.atoms < 1:
            raise ValueError(f"atoms must be at least 1, got atoms={self.atoms}")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps must be at least 1, got steps={self.steps}")


class Progress(NamedTuple):
    """Where training stands."""

    step: int
    steps: int
    psnr: float  # dB, of the hard code with the quantiser's noise
    bits: float  # its counted rate
    seconds_left: float


ProgressCallback = Callable[[Progress], None]


class Profile:
    """Seconds of the training steps, in all and in the operator's forward and backward.

    The first step is in none of the numbers: it pays for compilation and warm-up, once. Where there
    is no other, all of them are 0.
    """

    def __init__(self, device: torch.device) -> None:
        self.steps = 0  # without the first
        self.seconds = 0.0
        self.operator_seconds = 0.0
        self._begin = 0.0
        self._on_gpu = device.type == "cuda"
        self._pending: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def operator(self) -> Iterator[None]:
        """Counts what runs inside as the operator's. On a GPU by events: nothing waits."""
        if not self._on_gpu:
            begin = time.perf_counter()
            yield
            self.operator_seconds += time.perf_counter() - begin
            return
        first = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        last = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        first.record()
        yield
        last.record()
        self._pending.append((first, last))

    def start(self) -> None:
        """Open the books after the first step; the device has to be done with it."""
        self.operator_seconds = 0.0
        self._pending.clear()
        self._begin = time.perf_counter()

    def finish(self, steps: int) -> None:
        """Close the books after so many steps since ``start``; the device has to be done."""
        if steps > 0:
            self.steps, self.seconds = steps, time.perf_counter() - self._begin
            self.operator_seconds += sum(a.elapsed_time(b) for a, b in self._pending) / 1000
        self._pending.clear()

    @property
    def share(self) -> float:
        """The operator's share of a training step."""
        return self.operator_seconds / self.seconds if self.seconds else 0.0

    @property
    def step_ms(self) -> float:
        """Milliseconds of a step."""
        return 1000 * self.seconds / max(1, self.steps)

    @property
    def operator_ms(self) -> float:
        """Milliseconds of the operator in a step."""
        return 1000 * self.operator_seconds / max(1, self.steps)


class Fit(NamedTuple):
    """A finished code with what is known about it."""

    code: Code
    psnr: float  # dB, of the decoder's picture
    bits: float  # the rate that training counted
    atoms: int
    seconds: float
    profile: Profile
    head_bits: float  # header and heads of the bands in plain; in best they are in ``bits``
    file_bits: float  # what the file takes, by the entropy coder

    @property
    def counted(self) -> float:
        """The bits of the file by training's count."""
        return self.bits + self.head_bits
