"""Seeded rows as users have them and as attackers make them, with budgets and temperatures."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from fast_lapsum.bench.score_kinds import KINDS, Draw

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


def in_full(scores: Tensor) -> torch.autocast:
    """Where calls with half-precision scores answer in float32."""
    return torch.autocast(scores.device.type, enabled=scores.dtype.itemsize == 2)


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
