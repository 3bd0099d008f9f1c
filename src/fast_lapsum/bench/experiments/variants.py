"""The stages of the paper's ablation as this package has them, and how one of them is timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fast_lapsum import soft_topk
from fast_lapsum.backends.triton import loader

from ..experiment import Settings, Unavailable
from ..peers.bisection import bisection
from ..peers.official_lapsum import lapsum_serial, lapsum_vectorised
from ..peers.protocol import MaskFunction
from .clock import timed
from .selection import SanityError

#: In the order of the paper's tables: each is meant to be faster than the one before.
VARIANTS = ("bisection", "scan", "block scan", "fused", "sort-free")
#: How far a mask may be from the one in float64: all stages compute the same operator.
MASK_TOLERANCE = 1e-4
#: The same for a gradient, relative to its largest entry.
GRADIENT_TOLERANCE = 1e-3

METHOD = (
    "Standard normal float32 scores; t is the paper's -alpha. Bisection: 65 full sums, in plain "
    "torch and float64. Sort-free: soft_topk as called. On a CPU scan is a sort and one search per "
    "row, one row after the other, block scan the same for all rows at once by logcumsumexp and "
    "searchsorted (both forms of the official LapSum, in plain torch), fused the sort_scan solver "
    "of this package (float64, plain torch). On a GPU each of the three is torch.sort and a Triton "
    "kernel with one program per row: one score after the other; a parallel scan of the row; the "
    "same with the mask written by that launch, where the other two take torch operations for it. "
    "Times are medians of the wall time of an eager call, the device idle at both ends of a "
    "sample; the paper's are means over 20 calls of its CUDA kernels. No time is reported for a "
    "variant whose result differs from the same operator in float64."
)


class Problem(NamedTuple):
    """A batch of one of the paper's grids."""

    batch: int
    n: int
    k: int
    temperature: float


class Batch(NamedTuple):
    """What every variant is given, [B, n] each, and what it should come to in float64."""

    scores: Tensor
    cotangent: Tensor
    mask: Tensor
    gradient: Tensor


@lru_cache(maxsize=1)
def batch_of(problem: Problem, device: str, seed: int) -> Batch:
    """Equal numbers on every device; only the last ones are kept."""
    generator = torch.Generator().manual_seed(seed)
    shape = (problem.batch, problem.n)
    scores, cotangent = (torch.randn(shape, generator=generator).to(device) for _ in range(2))
    wide = scores.double().requires_grad_()
    mask = soft_topk(wide, problem.k, problem.temperature)
    (gradient,) = torch.autograd.grad(mask, wide, cotangent.double())
    return Batch(scores, cotangent, mask.detach(), gradient)


def functions(device: str) -> Mapping[str, MaskFunction]:
    """The variants on this kind of device, by name; without Triton a GPU lacks the kernels."""
    on_gpu = torch.device(device).type != "cpu"
    stages = _triton_stages() if on_gpu else _torch_stages()
    return {"bisection": bisection, **stages, "sort-free": soft_topk}


def _torch_stages() -> dict[str, MaskFunction]:
    return {
        "scan": lapsum_serial,
        "block scan": lapsum_vectorised,
        "fused": lambda scores, k, t: soft_topk(scores, k, t, solver="sort_scan"),
    }


def _triton_stages() -> dict[str, MaskFunction]:
    if loader.entry() is None:
        return {}
    from .. import scan_kernels

    return {
        "scan": lambda scores, k, t: scan_kernels.soft_topk(scores, k, t, "scan"),
        "block scan": lambda scores, k, t: scan_kernels.soft_topk(scores, k, t, "block scan"),
        "fused": lambda scores, k, t: scan_kernels.soft_topk(scores, k, t, "fused"),
    }


def variant_function(variant: str, device: str) -> MaskFunction:
    """One of them, or :class:`Unavailable`."""
    found = functions(device).get(variant)
    if found is None:
        raise Unavailable(f"its kernel needs Triton; {loader.description()}")
    return found


def forward_values(variant: str, problem: Problem, settings: Settings) -> dict[str, Any]:
    """Time of the mask alone, and the largest difference from the mask by bisection."""
    batch = batch_of(problem, settings.device, settings.seed)
    function = variant_function(variant, settings.device)
    call = _call(function, batch.scores, problem)
    mask = call()
    _check(variant, "mask", mask, batch.mask, MASK_TOLERANCE)
    base = bisection(batch.scores, problem.k, problem.temperature)
    error = float((mask - base).abs().max())
    return {"seconds": timed(call, settings)._asdict(), "error": error}


def backward_values(variant: str, problem: Problem, settings: Settings) -> dict[str, Any]:
    """Time of mask and gradient, and the gradient's largest difference from that of the scan."""
    batch = batch_of(problem, settings.device, settings.seed)
    gradient_call = _gradient_call(variant, batch, problem, settings.device)
    gradient = gradient_call()
    limit = GRADIENT_TOLERANCE * float(batch.gradient.abs().max())
    _check(variant, "gradient", gradient, batch.gradient, limit)
    scan = _gradient_call("scan", batch, problem, settings.device)()
    error = float((gradient - scan).abs().max())
    return {"seconds": timed(gradient_call, settings)._asdict(), "error": error}


def _call(function: MaskFunction, scores: Tensor, problem: Problem) -> Callable[[], Tensor]:
    return lambda: function(scores, problem.k, problem.temperature)


def _gradient_call(
    variant: str, batch: Batch, problem: Problem, device: str
) -> Callable[[], Tensor]:
    leaf = batch.scores.detach().requires_grad_()
    forward = _call(variant_function(variant, device), leaf, problem)
    return lambda: torch.autograd.grad(forward(), leaf, batch.cotangent)[0]


def _check(variant: str, what: str, found: Tensor, expected: Tensor, limit: float) -> None:
    difference = float((found.detach() - expected).abs().max())
    if not difference <= limit:
        raise SanityError(
            f"{variant}: its {what} is {difference:.2g} from the one in float64, expected at most "
            f"{limit:.2g}"
        )
