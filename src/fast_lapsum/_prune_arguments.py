"""Arguments of pruning: which of them are wrong, and why."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from ._arguments import check_number

#: Such as "2:4".
_PATTERN = re.compile(r"(\d+):(\d+)")


def checked_names(names: Any) -> list[str]:
    if isinstance(names, str):
        raise TypeError(f"names must be a list of names of parameters, got the string {names!r}")
    if isinstance(names, (int, float)):
        raise TypeError(f"names must be strings, got {names!r}: did you mean density={names!r}?")
    if not isinstance(names, Iterable):
        raise TypeError(f"names must be strings, got {type(names).__name__}")
    found = list(names)
    for name in found:
        if not isinstance(name, str):
            raise TypeError(f"names must be strings, got {name!r} among them")
    return found


def checked_scope(scope: str, density: float | None) -> tuple[int, int] | None:
    """N and M of a pattern, or None."""
    if scope in ("global", "layer"):
        if density is None:
            raise ValueError(f"density must be given for scope={scope!r}, got density=None")
        return None
    pattern = _PATTERN.fullmatch(scope) if isinstance(scope, str) else None
    if pattern is None or not 0 < int(pattern[1]) <= int(pattern[2]):
        raise ValueError(
            f"scope must be 'global', 'layer' or a pattern such as '2:4', got scope={scope!r}"
        )
    kept, size = int(pattern[1]), int(pattern[2])
    if density is not None and density != kept / size:
        raise ValueError(f"density must be None for scope={scope!r}, got density={density}")
    return kept, size


def checked_density(density: float) -> float:
    if not 0 <= check_number("density", density) <= 1:
        raise ValueError(f"density must lie in [0, 1], got density={density}")
    return float(density)


def check_groups(name: str, weight: Tensor, size: int) -> None:
    if weight.dim() < 2 or weight.shape[1] % size:
        raise ValueError(
            f"names must be of parameters whose second dimension, the inputs, is a multiple of "
            f"{size}, got {name!r} of shape {tuple(weight.shape)}"
        )
