"""Scores as users have them and as attackers make them, one kind each, from a seeded generator."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

inf, nan = math.inf, math.nan


class Draw:
    """Random numbers of one shape, dtype, device and generator."""

    def __init__(self, rows: int, n: int, dtype: torch.dtype, generator: Generator) -> None:
        self.rows, self.n, self.dtype, self.generator = rows, n, dtype, generator
        self.device = generator.device

    def normal(self, columns: int | None = None) -> Tensor:
        """Standard normal numbers, one for every score or [rows, columns]."""
        return torch.randn((self.rows, columns or self.n), **self._where)

    def uniform(self, columns: int | None = None) -> Tensor:
        """Uniform numbers from 0 to 1."""
        return torch.rand((self.rows, columns or self.n), **self._where)

    def log_uniform(self, least: float, most: float, columns: int | None = None) -> Tensor:
        """Numbers of any order of magnitude between two."""
        exponent = math.log(least) + (math.log(most) - math.log(least)) * self.uniform(columns)
        return torch.exp(exponent)

    def places(self) -> Tensor:
        """One place in every row."""
        return (self.uniform(1) * self.n).long().clamp(max=self.n - 1)

    @property
    def _where(self) -> dict[str, Any]:
        return {"generator": self.generator, "dtype": self.dtype, "device": self.device}


def _student_t2(d: Draw) -> Tensor:
    return d.normal() / torch.sqrt(-torch.log1p(-d.uniform())).clamp(min=1e-9)


def _outlier(d: Draw, size: float) -> Tensor:
    return d.normal().scatter(1, d.places(), size)


def _spikes(d: Draw) -> Tensor:
    """A few scores of about 1 on a floor of about 1e-30."""
    return torch.where(d.uniform() < 0.02, d.normal().abs(), 1e-30 * d.uniform())


def _periodic(d: Draw) -> Tensor:
    """A sample with a fixed stride of a power of two would see one value of it only."""
    phase = 2 * math.pi / 64 * torch.arange(d.n, dtype=d.dtype, device=d.device)
    return torch.sin(phase) + 1e-3 * d.normal()


def _gap(d: Draw) -> Tensor:
    """Scores clipped at the top, hardly any for a while, then all others close together."""
    top = d.uniform() < 0.01
    return torch.where(top, 1.0, torch.where(d.uniform() < 1e-4, d.uniform(), 1e-3 * d.normal()))


def _ends(d: Draw, low: Tensor | float, high: Tensor | float) -> Tensor:
    """Normal scores among which some are the lowest or the highest number of the dtype."""
    end = torch.full((), torch.finfo(d.dtype).max, dtype=d.dtype, device=d.device)
    scores = torch.where(d.uniform() < low, -end, d.normal())
    return torch.where(d.uniform() < high, end, scores)


#: Rows of finite scores.
KINDS: dict[str, Callable[[Draw], Tensor]] = {
    "normal": lambda d: d.normal(),
    "normal of any scale": lambda d: d.normal() * d.log_uniform(1e-6, 1e6, 1),
    "uniform": lambda d: d.uniform(),
    "laplace": lambda d: torch.log(d.uniform().clamp(min=1e-30)) * (d.uniform() - 0.5).sign(),
    "relu, half zeros": lambda d: d.normal().relu(),
    "relu, nine tenths zeros": lambda d: (d.normal() - 1.28).relu(),
    "int8": lambda d: (24 * d.normal()).round().clamp(-128, 127) / 16,
    "bfloat16": lambda d: d.normal().bfloat16().to(d.dtype),
    "sixteen levels": lambda d: (16 * d.uniform()).floor() / 10,
    "cauchy": lambda d: torch.tan(math.pi * (d.uniform() - 0.5)),
    "student t2": _student_t2,
    "lognormal 3": lambda d: torch.exp(3 * d.normal()),
    "squared gradients": lambda d: (d.normal() * d.log_uniform(1e-5, 1e-1, 1)) ** 2,
    "outlier 1e4": lambda d: _outlier(d, 1e4),
    "outlier 1e30": lambda d: _outlier(d, 1e30),
    "two clusters": lambda d: 10 * (d.uniform() < 0.1) + 0.01 * d.normal(),
    "two clusters far apart": lambda d: 1e6 * (d.uniform() - d.uniform(1)).sign() + d.normal(),
    "three clusters": lambda d: 10 * (3 * d.uniform()).floor() + 0.1 * d.normal(),
    "spikes on a tiny floor": _spikes,
    "clipped at the top": lambda d: d.normal().clamp(max=1.0),
    "a gap below the top": _gap,
    "offset 1e4, spread 1e-3": lambda d: 1e4 + 1e-3 * d.normal(),
    "offset 1e8, spread 100": lambda d: 1e8 + 100 * d.normal(),
    "constant": lambda d: d.normal(1).expand(-1, d.n).contiguous(),
    "masked by the lowest number": lambda d: _ends(d, d.log_uniform(1e-3, 1.0, 1), 0.0),
    "both ends of the numbers": lambda d: _ends(d, 0.05, 0.05),
    "periodic": _periodic,
    "sorted": lambda d: d.normal().sort(-1).values,
}


def _some(d: Draw, share: float, value: float) -> Tensor:
    return d.normal().masked_fill(d.uniform() < share, value)


def _all(d: Draw, value: float) -> Tensor:
    return torch.full((d.rows, d.n), value, dtype=d.dtype, device=d.device)


def _nan_in_every_other_row(d: Draw) -> Tensor:
    is_spoiled = torch.arange(d.rows, device=d.device)[:, None] % 2 == 0
    return torch.where(is_spoiled, _outlier(d, nan), d.normal())


#: Rows with infinities and NaN: scores left out or taken whole, and rows without an answer.
NOT_FINITE: dict[str, Callable[[Draw], Tensor]] = {
    "one -inf": lambda d: _outlier(d, -inf),
    "half -inf": lambda d: _some(d, 0.5, -inf),
    "nearly all -inf": lambda d: _some(d, 0.999, -inf),
    "all -inf": lambda d: _all(d, -inf),
    "one +inf": lambda d: _outlier(d, inf),
    "a hundredth +inf": lambda d: _some(d, 0.01, inf),
    "half +inf": lambda d: _some(d, 0.5, inf),
    "half -inf, a tenth +inf": lambda d: _some(d, 0.5, -inf).masked_fill(d.uniform() < 0.1, inf),
    "one NaN": lambda d: _outlier(d, nan),
    "one NaN in every other row": _nan_in_every_other_row,
    "all NaN": lambda d: _all(d, nan),
}
