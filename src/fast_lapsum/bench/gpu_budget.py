"""The budget over many kinds of scores, budgets and temperatures, all on the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from fast_lapsum import soft_topk

from .gpu_bars import TEMPERATURES
from .gpu_parity import BUDGET_TOLERANCE, budget_errors

SEED = 1
Shape = tuple[int, ...]


def _uniform(shape: Shape, g: Generator) -> Tensor:
    return torch.rand(shape, generator=g, device=g.device)


def _normal(shape: Shape, g: Generator) -> Tensor:
    return torch.randn(shape, generator=g, device=g.device)


def _student_t2(shape: Shape, g: Generator) -> Tensor:
    return _normal(shape, g) / torch.sqrt(-torch.log1p(-_uniform(shape, g))).clamp(min=1e-6)


def _periodic(shape: Shape, g: Generator) -> Tensor:
    """Values that a sample with a fixed stride of a power of two would see only one of."""
    turn = 2 * math.pi * (torch.arange(shape[-1], device=g.device) % 64) / 64
    return torch.sin(turn) + 1e-3 * _normal(shape, g)


#: Float32 scores of any shape on the generator's device.
DISTRIBUTIONS: dict[str, Callable[[Shape, Generator], Tensor]] = {
    "gaussian": _normal,
    "student_t2": _student_t2,
    "log_normal": lambda shape, g: torch.exp(_normal(shape, g)),
    "cauchy": lambda shape, g: torch.tan(math.pi * (_uniform(shape, g) - 0.5)),
    "three_clusters": lambda shape, g: (
        10 * (3 * _uniform(shape, g)).floor() + 0.1 * _normal(shape, g)
    ),
    "sixteen_levels": lambda shape, g: (16 * _uniform(shape, g)).floor() / 10,
    "constant": lambda shape, g: torch.full(shape, 0.1, device=g.device),
    "sorted": lambda shape, g: _normal(shape, g).sort(-1).values,
    "periodic": _periodic,
}


def budgets(n: int) -> tuple[float, ...]:
    """One score, a fraction, a sixteenth, a half, and all but one."""
    return (1.0, 17.5, n / 16, n / 2, n - 1.0)


def check_budgets(
    shape: Sequence[int], device: torch.device, report: Callable[[str], None]
) -> list[dict[str, Any]]:
    """The worst |sum p - k| / k of every distribution, and where it was."""
    name_of_shape = " x ".join(f"{size:,}" for size in shape)
    generator = torch.Generator(device).manual_seed(SEED)
    points = [(k, t) for k in budgets(shape[-1]) for t in TEMPERATURES]
    entries = []
    for name, distribution in DISTRIBUTIONS.items():
        report(f"{name_of_shape}: budgets of {name} scores")
        scores = distribution(tuple(shape), generator)
        errors = torch.stack([budget_errors(soft_topk(scores, k, t), k).max() for k, t in points])
        # A NaN is the worst of all, and JSON has none.
        place = int(errors.nan_to_num(nan=math.inf).argmax())
        worst = float(errors[place])
        entries.append(
            {
                "shape": list(shape),
                "distribution": name,
                "points": len(points),
                "worst": worst if math.isfinite(worst) else None,
                "k": points[place][0],
                "temperature": points[place][1],
                "limit": BUDGET_TOLERANCE,
                "met": worst <= BUDGET_TOLERANCE,
            }
        )
    return entries
