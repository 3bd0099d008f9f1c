"""Seeded rows as users have them and as attackers make them, with budgets and temperatures."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Generator, Tensor

inf, nan = math.inf, math.nan


class Spec(NamedTuple):
    """A batch in a few words: everything in it follows from them and from the device."""

    seed: int
    number: int
    kind: str
    call: str
    dtype: str
    n: int
    rows: int


class Batch(NamedTuple):
    """Arguments of one call: k and temperature are numbers or have one value per row."""

    scores: Tensor
    k: Tensor | float
    temperature: Tensor | float
    mask: Tensor | None
    largest: bool

    def row(self, index: int) -> Batch:
        """One of its rows, as a batch of one."""
        here = slice(index, index + 1)
        return Batch(
            self.scores[here],
            self.k[here] if isinstance(self.k, Tensor) else self.k,
            self.temperature[here] if isinstance(self.temperature, Tensor) else self.temperature,
            None if self.mask is None else self.mask[here],
            self.largest,
        )


class Draw:
    """Random numbers of one shape, dtype, device and generator."""

    def __init__(self, rows: int, n: int, dtype: torch.dtype, generator: Generator) -> None:
        self.rows, self.n, self.dtype, self.generator = rows, n, dtype, generator
        self.device = generator.device

    def normal(self, columns: int | None = None) -> Tensor:
        return torch.randn((self.rows, columns or self.n), **self._where)

    def uniform(self, columns: int | None = None) -> Tensor:
        return torch.rand((self.rows, columns or self.n), **self._where)

    def log_uniform(self, least: float, most: float, columns: int | None = None) -> Tensor:
        exponent = math.log(least) + (math.log(most) - math.log(least)) * self.uniform(columns)
        return torch.exp(exponent)

    def places(self) -> Tensor:
        """One place in every row."""
        return (self.uniform(1) * self.n).long().clamp(max=self.n - 1)

    @property
    def _where(self) -> dict:  # type: ignore[type-arg]
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

#: How a call is made: with numbers, with a value per row, and with what else may be in it.
CALLS = ("numbers", "per row", "per row", "smallest", "masked", "infinities")


def make(spec: Spec, device: torch.device) -> Batch:
    """The batch that a spec stands for."""
    g = Generator(device).manual_seed((spec.seed * 1_000_003 + spec.number) % (1 << 62))
    dtype = getattr(torch, spec.dtype)
    base = torch.float64 if dtype == torch.float64 else torch.float32
    draw = Draw(spec.rows, spec.n, base, g)
    scores = KINDS[spec.kind](draw)
    # Rounding to fewer digits must not make a score infinite.
    limit = min(torch.finfo(dtype).max, torch.finfo(base).max)
    scores = scores.clamp(-limit, limit).to(dtype)
    mask = None
    if spec.call == "infinities":
        share = draw.log_uniform(1e-4, 1, 1)
        scores = scores.masked_fill(draw.uniform() < share, -inf)
        scores = scores.masked_fill(draw.uniform() < draw.log_uniform(1e-4, 0.5, 1), inf)
        # Few rows have a NaN, and they are to be seen.
        has_nan = draw.uniform(1) < 0.03
        places = torch.arange(spec.n, device=device) == draw.places()
        scores = scores.masked_fill(has_nan & places, nan)
    if spec.call == "masked":
        mask = draw.uniform() < draw.uniform(1)
    largest = spec.call != "smallest"
    one = Draw(spec.rows, 1, torch.float64, g)
    if spec.call == "numbers":
        first = Draw(1, 1, torch.float64, g)
        count = torch.full((1, 1), float(spec.n), dtype=torch.float64, device=device)
        k, t = float(_budgets(first, count)), float(_temperatures(first))
        return Batch(scores, k, t, mask, largest)
    valid = count_valid(scores, mask, largest)
    return Batch(scores, _budgets(one, valid)[:, 0], _temperatures(one)[:, 0], mask, largest)


def count_valid(scores: Tensor, mask: Tensor | None, largest: bool) -> Tensor:
    """How many scores of each row take part, [rows, 1]; NaN counts."""
    takes_part = scores != (-inf if largest else inf)
    takes_part = takes_part if mask is None else takes_part & mask
    return takes_part.sum(-1, keepdim=True, dtype=torch.float64)


def _budgets(d: Draw, valid: Tensor) -> Tensor:
    """Whole, fractional and extreme budgets of rows with so many scores, [rows, 1]."""
    whole = torch.exp(d.uniform() * torch.log(valid.clamp(min=1))).floor()
    choices = (
        whole,
        whole,
        valid - whole,
        whole - 0.5,
        (valid / 2).floor(),
        d.uniform() * valid,
        whole + 1e-6 * (d.uniform() - 0.5),
        (valid / 16).floor(),
        d.log_uniform(1e-6, 1.0),
        valid - d.log_uniform(1e-6, 1.0),
    )
    k = torch.gather(torch.cat(choices, -1), 1, (len(choices) * d.uniform()).long())
    corner = d.uniform()
    k = torch.where(corner < 0.01, 0.0, torch.where(corner > 0.99, valid, k))
    return torch.minimum(k.clamp(min=0), valid)


def _temperatures(d: Draw) -> Tensor:
    """From 1e-6 to 30, seldom far beyond, seldom 0, [rows, 1]."""
    t = d.log_uniform(1e-6, 30.0)
    chance = d.uniform()
    t = torch.where(chance < 0.02, d.log_uniform(1e-20, 1e6), t)
    return torch.where(chance > 0.99, 0.0, t)
