"""A checked call of ranks, sorts and quantiles: arguments, the dimension brought last, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _ranking_autograd
from ._arguments import (
    check_flag,
    check_mask,
    check_number,
    check_per_row,
    check_scores,
    check_temperature_number,
)
from .backends.common import row_dtype

Number = int | float

#: Kernels count the scores of a row in 32 bits.
MOST_SCORES = 2**31 - 1
#: A mass is taken for a whole number at most this far from it: well before those that lie half-way.
FARTHEST_SNAP = 0.25


def check_one_dim(scores: Tensor, dim: object) -> int:
    """The one dimension of a call, counted from the front."""
    if dim is None or isinstance(dim, (tuple, list)):
        raise TypeError(f"dim must be an int, got dim={dim}; flatten several dimensions into one")
    dim = check_scores(scores, dim)  # type: ignore[arg-type]
    if scores.shape[dim] > MOST_SCORES:
        raise ValueError(
            f"scores must have at most {MOST_SCORES} scores along dim={dim}, "
            f"got shape {tuple(scores.shape)}"
        )
    return dim


def given_temperature(scores: Tensor, temperature: Number | Tensor) -> Tensor | float:
    """One temperature for each row of scores, rows last, or the one number for all of them.

    A tensor's negative or NaN temperature makes its row NaN.
    """
    if isinstance(temperature, Tensor):
        return check_per_row("temperature", temperature, scores, scores.shape[:-1])
    number: Any = check_number("temperature", temperature)
    check_temperature_number(number, scores.dtype)
    if isinstance(number, torch.SymFloat):  # a product is what a compiler follows as it changes
        one = torch.ones((), dtype=row_dtype(scores), device=scores.device)
        return (one * number).expand(scores.shape[:-1])  # type: ignore[operator]
    return float(number)


def last(tensor: Tensor, dim: int) -> Tensor:
    """The dimension brought last; nothing is done, and noted by autograd, where it is."""
    return tensor if dim == tensor.dim() - 1 else tensor.movedim(dim, -1)


def back(tensor: Tensor, dim: int) -> Tensor:
    """The last dimension brought back to where it was."""
    return tensor if dim == tensor.dim() - 1 else tensor.movedim(-1, dim)


def soft_rank(
    scores: Tensor,
    temperature: Number | Tensor,
    dim: int,
    descending: bool,
    mask: Tensor | None,
) -> Tensor:
    """See ``ranking.soft_rank``."""
    dim, descending = check_one_dim(scores, dim), check_flag("descending", descending)
    mask = None if mask is None else last(check_mask(mask, scores), dim)
    rows = last(scores, dim)
    t = given_temperature(rows, temperature)
    return back(_ranking_autograd.soft_rank(rows, t, mask, descending), dim)


def soft_sort(scores: Tensor, temperature: Number | Tensor, dim: int, descending: bool) -> Tensor:
    """See ``ranking.soft_sort``."""
    dim, descending = check_one_dim(scores, dim), check_flag("descending", descending)
    rows = last(scores, dim)
    t = given_temperature(rows, temperature)
    return back(_ranking_autograd.soft_thresholds(rows, t, None, descending), dim)


def soft_quantile(
    scores: Tensor, q: Number | Tensor, temperature: Number | Tensor, dim: int
) -> Tensor:
    """See ``ranking.soft_quantile``."""
    dim = check_one_dim(scores, dim)
    rows = last(scores, dim)
    n = rows.shape[-1]
    if n == 0:
        raise ValueError(
            f"scores must have at least one score along dim={dim}, got shape {tuple(scores.shape)}"
        )
    t = given_temperature(rows, temperature)
    masses = _quantile_masses(q, rows)
    if not masses.dim():
        return _ranking_autograd.soft_thresholds(rows, t, masses[None], False)[..., 0]
    # Gradients are summed over thresholds that ascend.
    masses, place = masses.sort()
    b = _ranking_autograd.soft_thresholds(rows, t, masses, False)
    return b.movedim(-1, 0)[place.argsort()]


def _number_mass(q: float, n: int) -> float:
    """q n, or the whole number that it is as far as q can tell.

    >>> 0.29 * 100, _number_mass(0.29, 100)
    (28.999999999999996, 29.0)
    """
    mass = q * n
    whole = float(round(mass))
    slack = min(mass * torch.finfo(torch.float64).eps, FARTHEST_SNAP)
    return whole if 0 < whole < n and abs(mass - whole) <= slack else mass


def _snapped(q: Tensor, n: int) -> Tensor:
    """The same of a tensor, as far as its dtype can tell, on its device."""
    masses = q.to(row_dtype(q)) * n
    whole = masses.round()
    slack = (masses * torch.finfo(q.dtype).eps).clamp(max=FARTHEST_SNAP)
    is_whole = (whole > 0) & (whole < n) & ((masses - whole).abs() <= slack)
    return torch.where(is_whole, whole, masses)


def _quantile_masses(q: Any, rows: Tensor) -> Tensor:
    """q n for every quantile, on the device of the scores; NaN for what is no quantile.

    Whole numbers as far as q can tell: i / n, rounded, has the mass i.
    """
    wide, n = row_dtype(rows), rows.shape[-1]
    least = torch.finfo(wide).tiny  # quotients by what is smaller may overflow
    if not isinstance(q, Tensor):
        number = check_number("q", q)
        _check_quantile(number, n, least)
        if type(number) is float and type(n) is int:
            return torch.full((), _number_mass(number, n), dtype=wide, device=rows.device)
        q = torch.full((), number, dtype=wide, device=rows.device)  # a compiler's has no value
        return _snapped(q, n)
    if q.dim() > 1:
        raise ValueError(f"q must be a number or a 1-D tensor, got shape {tuple(q.shape)}")
    if not q.is_floating_point():
        raise TypeError(f"q must hold floating-point numbers, got {str(q.dtype)[6:]}")
    if q.requires_grad:
        raise ValueError("q must not require a gradient: quantiles have none for it; detach() it")
    if q.device.type == "cpu" and not torch.compiler.is_compiling() and q.device == rows.device:
        for number in q.reshape(-1).tolist():
            _check_quantile(number, n, least)
    if q.device != rows.device:
        raise ValueError(f"q must be on the device of scores ({rows.device}), got {q.device}")
    masses = _snapped(q, n)
    return torch.where((masses >= least) & (masses < n), masses, torch.nan)


def _check_quantile(q: Any, n: Any, least: float) -> None:
    if not 0 < q < 1:
        raise ValueError(f"q must lie in (0, 1), without its ends, got q={q}")
    if type(q) is float and type(n) is int and q * n < least:
        raise ValueError(f"q n must be a normal number, at least {least:.3g}, got q={q} and n={n}")
