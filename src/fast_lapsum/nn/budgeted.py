"""What layers with a budget and a temperature have in common: both are given, set and annealed."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .._arguments import check_number
from ..backends.common import row_dtype
from .kept import Keeping

#: A budget is taken for a whole number at most this far from it.
_FARTHEST_SNAP = 0.25


class Tempered(Keeping):
    """A layer whose temperature is a number, or a tensor of one value, that can be set.

    A :class:`~torch.nn.Parameter` is a parameter of the layer and receives gradients; what is not
    is a buffer and part of the state dict. It stays float32 or float64 under ``layer.half()``.
    """

    def __init__(self, temperature: float | Tensor) -> None:
        super().__init__()
        self._keep("given_temperature", checked_value("temperature", temperature))

    @property
    def temperature(self) -> float | Tensor:
        """The temperature: a number, or a tensor if it was given as one."""
        return self._read("given_temperature")

    @temperature.setter
    def temperature(self, value: float | Tensor) -> None:
        self._set("given_temperature", checked_value("temperature", value))

    def __setattr__(self, name: str, value: Any) -> None:
        # torch would register a Parameter under the name of the property.
        if name in ("k", "temperature"):
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def _check_number(self, name: str, value: float) -> None:
        checked_value(name.removeprefix("given_"), value)


class Budgeted(Tempered):
    """A layer whose budget k is a number, or a tensor of one value, like its temperature."""

    #: The least number that k may be.
    _least_k = 0

    def __init__(self, k: float | Tensor, temperature: float | Tensor) -> None:
        super().__init__(temperature)
        self._keep("given_k", checked_value("k", k, self._least_k))

    @property
    def k(self) -> float | Tensor:
        """The budget: a number, or a tensor if it was given as one."""
        return self._read("given_k")

    @k.setter
    def k(self, value: float | Tensor) -> None:
        self._set("given_k", checked_value("k", value, self._least_k))

    def _check_number(self, name: str, value: float) -> None:
        if name == "given_k":
            checked_value("k", value, self._least_k)
        else:
            super()._check_number(name, value)

    def _of_call(self) -> tuple[float | Tensor, float | Tensor]:
        """k and the temperature as a call takes them."""
        return self._value("given_k"), self._value("given_temperature")


def checked_value(name: str, value: float | Tensor, least: int = 0) -> float | Tensor:
    """A number that is at least that and finite, or a real tensor of one value."""
    if isinstance(value, Tensor):
        if value.is_complex() or not (value.is_floating_point() or value.dtype.itemsize > 1):
            dtype = str(value.dtype).removeprefix("torch.")
            raise TypeError(f"{name} must be a number or a tensor of real numbers, got {dtype}")
        if value.dim():
            raise ValueError(
                f"{name} must be a number or a tensor of one value without dimensions, "
                f"got shape {tuple(value.shape)}"
            )
        return value
    number = float(check_number(name, value))
    if not least <= number < math.inf:
        raise ValueError(f"{name} must be finite and at least {least}, got {name}={value}")
    return number


def checked_count(name: str, value: object) -> int:
    """A whole number over 0."""
    number = check_number(name, value)
    if number % 1 or not 0 < number < math.inf:
        raise ValueError(f"{name} must be a whole number over 0, got {name}={value}")
    return int(number)


def check_tensor(name: str, value: object) -> None:
    """TypeError for what is no tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")


def checked_choice(name: str, value: object, choices: tuple[str, ...]) -> str:
    """One of some words."""
    if value not in choices:
        expected = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {expected}, got {name}={value!r}")
    return str(value)


def shown(value: float | Tensor) -> str:
    """A value as ``print`` shows it."""
    if not isinstance(value, Tensor):
        return f"{value:g}"
    return "meta" if value.is_meta else f"{value.item():g}"


def whole_budget(k: float | Tensor, rows: int | Tensor) -> float | Tensor:
    """``k`` for each of so many rows, rounded down for a hard mask.

    A product that is a whole number but for rounding, such as 100 times 0.29, is that number.
    Rounding leaves the gradient alone.
    """
    total = total_budget(k, rows)
    if isinstance(total, Tensor):
        fixed = total.detach()
        return total + torch.where(fixed.isfinite(), fixed.floor() - fixed, 0.0)
    return math.floor(total * (1 + 1e-12))


def total_budget(k: float | Tensor, rows: int | Tensor) -> float | Tensor:
    """``k`` for each of so many rows; a tensor that is whole but for rounding is whole.

    Its rounding is that of k, which is coarser in float32, and that of a product of widest numbers.
    """
    eps = 0.0
    if isinstance(k, Tensor):
        eps = torch.finfo(k.dtype).eps if k.is_floating_point() else 0.0
        k = k.to(row_dtype(k))
    if isinstance(rows, Tensor):
        rows = rows.to(row_dtype(rows))
    total = k * rows
    if not isinstance(total, Tensor):
        return total
    fixed = total.detach()
    nearest = fixed.round()
    slack = (eps / 2 + 2 * torch.finfo(total.dtype).eps) * nearest
    is_whole = (fixed - nearest).abs() <= slack.clamp(max=_FARTHEST_SNAP)
    return total + torch.where(is_whole, nearest - fixed, 0.0)


def check_spent(k: float | Tensor, budget: float | Tensor, scores: int, per_row: int) -> None:
    """ValueError for a k whose budget, of a row or a batch, is more than there are scores.

    The function that would refuse the budget knows only that, and a user only k.
    """
    if isinstance(k, Tensor) or isinstance(budget, Tensor) or budget <= scores:
        return
    raise ValueError(f"k must lie in [0, {per_row}] for {per_row} scores per row, got k={k:.15g}")


def rounded_up(value: float | Tensor) -> float | Tensor:
    """The next whole number; one that is whole but for rounding, such as 1.1 times 100, is that.

    A tensor's own rounding counts, which is coarser in float32.
    """
    if isinstance(value, Tensor):
        return (value * (1 - 4 * torch.finfo(value.dtype).eps)).ceil()
    return math.ceil(value * (1 - 1e-12))
