"""Checks of what a caller passes: every error names the argument, its value and what is expected.

Nothing here looks at the numbers inside a tensor: on a GPU that would wait for the device.
``_values.py`` does, where the caller asks for it.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from .backends.common import DTYPES, max_temperature

#: One dimension, several that share one budget, or all there are.
Dim = int | Sequence[int] | None
#: What a value per row must do; other rows than those of dense scores have their own words.
PER_ROW = "broadcast to the shape of scores without dim, {shape}"


def is_dtensor(value: object) -> bool:
    """Whether it is a DTensor; torch.distributed.tensor is loaded only by those who make one."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def check_dims(scores: Tensor, dim: Dim) -> int | tuple[int, ...]:
    """The selected dimensions counted from the front: one, or several in the caller's order."""
    if dim is not None and not isinstance(dim, (tuple, list)):
        return check_scores(scores, dim)  # type: ignore[arg-type]
    dims = check_scores(scores, -1) + 1
    found = tuple(range(dims)) if dim is None else tuple(check_scores(scores, one) for one in dim)
    _check_each_once(found, dim)
    return found if len(found) > 1 else found[0]


def check_dim_kinds(dim: Dim) -> Dim:
    """``dim`` with Python's numbers. What can be told without scores: they are whole, each once."""
    if dim is None:
        return None
    several = isinstance(dim, (tuple, list))
    found = [_whole(one) for one in (dim if several else (dim,))]  # type: ignore[union-attr]
    _check_each_once(found, dim)
    return tuple(found) if several else found[0]


def _check_each_once(found: Sequence[int], dim: Dim) -> None:
    if not found or len(set(found)) < len(found):
        raise ValueError(f"dim must name at least one dimension, and each once, got dim={dim}")


def check_scores(scores: Tensor, dim: int) -> int:
    """The selected dimension counted from the front."""
    if not isinstance(scores, Tensor):
        raise TypeError(f"scores must be a torch.Tensor, got {type(scores).__name__}")
    if scores.dtype not in DTYPES:
        *names, last = (str(dtype).removeprefix("torch.") for dtype in (*DTYPES, scores.dtype))
        raise TypeError(f"scores must be one of {', '.join(names)}, got {last}")
    if scores.layout != torch.strided or scores.is_nested:
        raise TypeError(f"scores must be a dense tensor, got {_kind(scores)}")
    if type(dim) is not int:
        dim = _whole(dim)
    dims = scores.dim()
    if dims == 0:
        raise ValueError("scores must have at least one dimension, got a scalar tensor")
    if not -dims <= dim < dims:
        raise ValueError(
            f"dim must lie in [{-dims}, {dims - 1}] for scores of shape {tuple(scores.shape)}, "
            f"got dim={dim}"
        )
    return dim % dims


def _whole(dim: object) -> int:
    """An index of another type, such as numpy's."""
    if not isinstance(dim, (bool, Tensor)):
        try:
            return operator.index(dim)  # type: ignore[arg-type]
        except TypeError:
            pass
    raise TypeError(f"dim must be an int, a tuple of ints or None, got {type(dim).__name__}")


def _kind(scores: Tensor) -> str:
    return "a nested tensor" if scores.is_nested else f"layout {scores.layout}"


#: Larger whole numbers have no place in torch's.
MOST_INTEGER = 2**63 - 1


def check_number(name: str, value: object) -> float:
    """A real number as a float."""
    if isinstance(value, int) and abs(value) > MOST_INTEGER:  # torch takes it as a float alone
        most = int(sys.float_info.max)
        return float(max(-most, min(value, most)))
    if isinstance(value, (int, float, torch.SymInt, torch.SymFloat)):
        if not isinstance(value, bool):
            return value  # type: ignore[return-value]
    elif hasattr(value, "__float__") and getattr(value, "shape", ()) == ():  # a numpy scalar
        kind = str(getattr(value, "dtype", ""))
        if kind != "bool":
            return float(value)
    raise TypeError(f"{name} must be a number or a tensor, got {type(value).__name__}")


def check_flag(name: str, value: object) -> bool:
    """True or False, of Python's or numpy's: other objects would count as True."""
    if value is True or value is False:
        return value
    if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise TypeError(f"{name} must be True or False, got {value!r}")


def check_budget_number(
    k: float, count: int, hard: bool, clamp: bool = False, counted: str = "per row"
) -> None:
    """0 <= k <= count, and k whole where the mask is hard; clamped it may be any k >= 0.

    ``counted`` says for an error where so many scores are.
    """
    if clamp:
        if not k >= 0:
            raise ValueError(f"k must be at least 0, got k={k}")
        return
    if not 0 <= k <= count:
        raise ValueError(f"k must lie in [0, {count}] for {count} scores {counted}, got k={k}")
    if hard and not isinstance(k, (int, torch.SymInt)) and not k.is_integer():
        raise ValueError(f"k must be a whole number for a hard mask of exactly k ones, got k={k}")


def check_whole_number(k: object, dim: object) -> int:
    """The one k of a selection, and the one dimension it is made along."""
    if dim is None or isinstance(dim, (tuple, list)):
        raise TypeError(
            "dim must be an int: an index along several dimensions at once would have no meaning; "
            f"flatten them into one, got dim={dim}"
        )
    if isinstance(k, Tensor):
        raise TypeError(
            "k must be one whole number, the same for all rows, because the result has k places "
            f"along dim, got a tensor of shape {tuple(k.shape)}"
        )
    if isinstance(k, (bool, str)) or k is None:
        raise TypeError(f"k must be a whole number of scores to select, got {k!r}")
    number = check_number("k", k)
    if isinstance(number, (int, torch.SymInt)):
        return number
    if not number.is_integer():
        raise ValueError(f"k must be a whole number of scores to select, got k={number}")
    return int(number)


def check_temperature_number(temperature: float, dtype: torch.dtype) -> None:
    """0 <= temperature <= the highest one for scores of this dtype."""
    if not 0 <= temperature <= max_temperature(dtype):
        raise ValueError(
            f"temperature must be finite and lie in [0, {max_temperature(dtype):.3g}] for "
            f"{str(dtype).removeprefix('torch.')} scores, got temperature={temperature}"
        )


def check_per_row(
    name: str,
    value: Tensor,
    scores: Tensor,
    rows_shape: torch.Size,
    expectation: str = PER_ROW,
) -> Tensor:
    """A real tensor on the scores' device with one value per row, as a view where possible.

    ``expectation`` is what an error says that it must do.
    """
    if value.dtype == torch.bool:
        raise TypeError(f"{name} must be a number or a tensor of numbers, got a tensor of bool")
    if value.is_complex():
        raise TypeError(f"{name} must be real, got {str(value.dtype).removeprefix('torch.')}")
    if value.device != scores.device:
        if value.dim() > 0 or value.is_meta:
            raise ValueError(
                f"{name} must be on the device of scores ({scores.device}), got {value.device}"
            )
        value = value.to(scores.device, non_blocking=True)
    value = value.to(torch.float32 if scores.device.type == "mps" else torch.float64).resolve_neg()
    if value.shape == rows_shape:
        return value
    try:
        return value.expand(rows_shape)
    except RuntimeError:
        raise ValueError(
            f"{name} must {expectation.format(shape=tuple(rows_shape))}, "
            f"got shape {tuple(value.shape)}"
        ) from None


def check_warm_start(
    warm_start: Tensor, scores: Tensor, rows_shape: torch.Size, expectation: str = PER_ROW
) -> Tensor:
    """An earlier threshold, one per row."""
    if not isinstance(warm_start, Tensor):
        raise TypeError(f"warm_start must be a torch.Tensor, got {type(warm_start).__name__}")
    return check_per_row("warm_start", warm_start.detach(), scores, rows_shape, expectation)


def check_mask(mask: Tensor, scores: Tensor) -> Tensor:
    """A boolean tensor expanded to the scores' shape; True marks the scores that take part."""
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask must be a torch.Tensor, got {type(mask).__name__}")
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be bool, got {str(mask.dtype).removeprefix('torch.')}")
    if mask.device != scores.device:
        raise ValueError(
            f"mask must be on the device of scores ({scores.device}), got {mask.device}"
        )
    try:
        return mask.expand(scores.shape)
    except RuntimeError:
        raise ValueError(
            f"mask must broadcast to the shape of scores, {tuple(scores.shape)}, "
            f"got shape {tuple(mask.shape)}"
        ) from None
