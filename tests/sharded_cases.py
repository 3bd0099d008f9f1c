"""Calls on rows that are spread over ranks: the whole rows, and where each rank's part ends.

Every process makes all of them from seeds, takes its part, and calls. `test_sharded.py` puts the
parts together again and compares them with the reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cases import (
    DISTRIBUTIONS,
    DTYPES,
    TEMPERATURES,
    budgets,
    corners,
    generator,
    normal,
    torture,
)

FUNCTIONS = ("mask", "log", "threshold", "hard")
#: How a row is cut: as evenly as it goes, unevenly, and with empty parts.
CUTS = ("even", "uneven", "one has all", "first is empty")


class Case(NamedTuple):
    """A call: whole rows [rows, n] in their dtype, budgets and temperatures [rows], and options."""

    name: str
    function: str
    scores: Tensor
    k: Tensor
    temperature: Tensor
    cut: str
    options: Mapping[str, Any] = MappingProxyType({})
    mask: Tensor | None = None

    def bounds(self, ranks: int) -> list[int]:
        """Where the part of each rank begins, and the end."""
        return cut_places(self.scores.shape[-1], ranks, self.cut)

    def part(self, whole: Tensor, rank: int, ranks: int) -> Tensor:
        """The part of a rank, along the last dimension."""
        first, last = self.bounds(ranks)[rank : rank + 2]
        return whole[..., first:last]

    def grad(self, ranks: int) -> Tensor:
        """The gradient of whole rows; of thresholds each rank has its own, [ranks, rows]."""
        shape = self.scores.shape
        if self.function == "threshold":
            return normal(ranks, shape[0], seed=7, dtype=torch.float64)
        return normal(*shape, seed=7, dtype=torch.float64).to(self.scores.dtype)

    def masked(self) -> Tensor:
        """The rows with what is left out as -inf, the selected side up."""
        side = 1 if self.options.get("largest", True) else -1
        rows = side * self.scores
        return rows if self.mask is None else rows.masked_fill(~self.mask, -math.inf)


def cut_places(n: int, ranks: int, cut: str) -> list[int]:
    """Where the part of each rank begins, and the end."""
    if cut == "uneven":
        shares = [(i / ranks) ** 2 for i in range(ranks + 1)]
    elif cut == "one has all":
        shares = [0.0] * (ranks - 1) + [0.0, 1.0] if ranks % 2 else [0.0] + [1.0] * ranks
    elif cut == "first is empty":
        shares = [0.0] + [i / max(ranks - 1, 1) for i in range(ranks)]
    else:
        shares = [i / ranks for i in range(ranks + 1)]
    places = [int(share * n) for share in shares]
    return [*places[:-1], n]


def all_cases(adversarial_rows: int) -> Iterator[Case]:
    """The table of cases of the other tests, and so many adversarial rows."""
    yield from corner_cases()
    yield from distribution_cases()
    yield from option_cases()
    yield from symmetric_cases()
    yield from adversarial_cases(adversarial_rows)


def corner_cases() -> Iterator[Case]:
    """What can be odd in a row, of each dtype and function: NaN, infinities, no answer."""
    for number, dtype in enumerate(DTYPES):
        for place, function in enumerate(FUNCTIONS):
            rows, k, t = corners(67, dtype)
            cut = CUTS[(number + place) % len(CUTS)]
            yield Case(f"corners {function} {dtype}", function, rows, k, t, cut)


def distribution_cases() -> Iterator[Case]:
    """Short rows at every budget and temperature, and longer ones at some."""
    for number, (name, make) in enumerate(DISTRIBUTIONS.items()):
        for n, ts in ((67, TEMPERATURES), (3000, (1e-3, 1.0))):
            dtype = torch.float64 if number % 3 == 0 else torch.float32
            ks = budgets(n) if n < 100 else [1.0, n / 16, n / 3, n - 1e-6]
            pairs = [(k, t) for k in ks for t in ts]
            k, t = (torch.tensor(x, dtype=torch.float64) for x in zip(*pairs, strict=True))
            rows = make(n, generator(n)).to(dtype).expand(len(pairs), n)
            function = "mask" if n > 100 else FUNCTIONS[number % 3]
            yield Case(f"{name} {n}", function, rows, k, t, CUTS[number % 4])
    for n in (65, 3000):  # ties across ranks
        rows = (3 * normal(8, n, seed=n)).round().float()
        k = torch.tensor([0, 1, n // 3, n // 2, n // 2 + 1, n - 1, n, n // 7], dtype=torch.float64)
        t = torch.full((8,), 0.5, dtype=torch.float64)
        for cut in CUTS:
            yield Case(f"tied {n} {cut}", "hard", rows, k, t, cut)


def option_cases() -> Iterator[Case]:
    """Masks, the smallest, and budgets over what there is."""
    k, t = torch.tensor([2.5, 7.0, 20.0]).double(), torch.tensor([0.0, 0.3, 5.0]).double()
    rows = normal(3, 90, seed=3, dtype=torch.float32)
    keep = torch.arange(90) % 3 != 1
    for function in FUNCTIONS:
        whole = k.floor() if function == "hard" else k
        options = {"largest": False}
        yield Case(f"smallest {function}", function, rows, whole, t, "uneven", options)
        yield Case(f"masked {function}", function, rows, whole, t, "even", {}, keep.expand(3, 90))
        yield Case(
            f"masked smallest {function}",
            function,
            rows,
            whole,
            t,
            "even",
            options,
            keep.expand(3, 90),
        )
        over = torch.tensor([2.5, 90.0, 1e6]).double()
        yield Case(f"clamped {function}", function, rows, over, t, "uneven", {"clamp": True})


def symmetric_cases() -> Iterator[Case]:
    """Rows whose threshold is their own middle, where the mass is the budget but for rounding.

    There it may be over the budget in one measurement and under it in the next, and it is flat.
    """
    for number, dtype in enumerate(DTYPES):
        for rows in (1, 2, 3, 4, 64):
            half = normal(rows, 3, seed=10 * number + rows)
            scores = torch.cat((half, torch.zeros(rows, 1), -half), -1).to(dtype)
            k = torch.full((rows,), 3.5, dtype=torch.float64)
            t = 10 ** torch.linspace(-2, 1, rows + 2, dtype=torch.float64)[1:-1]
            cut = CUTS[(number + rows) % len(CUTS)]
            yield Case(f"symmetric, {rows} rows, {dtype}", "mask", scores, k, t, cut)


def adversarial_cases(count: int) -> Iterator[Case]:
    """Rows of any length, distribution, budget and temperature, of alternating dtypes and cuts."""
    for number, batch in enumerate(torture(22, count, largest_n=1500)):
        dtype = torch.float32 if number % 2 else torch.float64
        names = f"adversarial {number}, {batch.scores.shape[-1]} scores"
        rows = batch.scores.to(dtype)
        yield Case(names, "mask", rows, batch.k, batch.temperature, CUTS[number % 4])
