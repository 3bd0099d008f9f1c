"""What `bench functions` times: every function as one operator call, checked before it is timed.

Operators, because autograd's own threads and streams would hinder a capture in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .parity import ParityError

WITH_BACKWARD = " forward+backward"
MASK, MASK_WITH_BACKWARD = "mask", "mask" + WITH_BACKWARD
HARD, THRESHOLD, SAMPLE, SELECT = "hard", "threshold", "sample", "select"
#: ``hard_topk_mask``, which has no soft mask's gradient to care for.
HARD_ALONE = "hard mask"
LOG, LOG_WITH_BACKWARD = "log", "log" + WITH_BACKWARD
#: Along the first dimension, and the same rows lying in a row each.
FIRST_DIM, TRANSPOSED = "mask along dim 0", "mask of the transposed"
TOPK, SOFTMAX = "torch.topk", "torch.softmax"
TEMPERATURE = 0.1
#: Where the half-way mark of a random mask's uniform numbers lies is of no account.
START = 0.5
#: Largest error of what one function says of another, in float32; half precision adds its own.
TOLERANCE = 1e-5
#: Checks of more scores than this would take more memory than the calls.
MOST_CHECKED = 1 << 28

Call = Callable[[Tensor, Tensor, int], object]


def _forward(scores: Tensor, k: int, output: str, temperature: float = TEMPERATURE) -> Any:
    return torch.ops.fast_lapsum.soft_topk(
        *(scores, None, float(k), None, temperature, None, None),
        *(True, output, scores.dtype, "auto"),
    )


def _gradient(scores: Tensor, weights: Tensor, k: int, output: str) -> Tensor:
    _, pair = _forward(scores, k, output)
    found: Tensor = torch.ops.fast_lapsum.soft_topk_backward(
        weights, scores, None, TEMPERATURE, None, pair, True, output, False
    )[0]
    return found


def _sample(scores: Tensor, k: int) -> Tensor:
    start = scores.new_full(scores.shape[:-1], START, dtype=torch.float64)
    drawn: Tensor = torch.ops.fast_lapsum.sample_topk(
        scores, None, float(k), None, TEMPERATURE, None, start, True, scores.dtype
    )
    return drawn


def _select(scores: Tensor, k: int) -> Any:
    return torch.ops.fast_lapsum.select_topk(
        scores, k, None, TEMPERATURE, None, True, False, scores.dtype
    )


#: Each with scores, what a gradient is taken against, and k.
CALLS: dict[str, Call] = {
    MASK: lambda x, w, k: _forward(x, k, "mask"),
    MASK_WITH_BACKWARD: lambda x, w, k: _gradient(x, w, k, "mask"),
    HARD: lambda x, w, k: _forward(x, k, "hard"),
    HARD_ALONE: lambda x, w, k: _forward(x, k, "hard", 0.0),
    LOG: lambda x, w, k: _forward(x, k, "log"),
    LOG_WITH_BACKWARD: lambda x, w, k: _gradient(x, w, k, "log"),
    THRESHOLD: lambda x, w, k: _forward(x, k, "threshold"),
    SAMPLE: lambda x, w, k: _sample(x, k),
    SELECT: lambda x, w, k: _select(x, k),
    FIRST_DIM: lambda x, w, k: _forward(x.mT, k, "mask"),
    TRANSPOSED: lambda x, w, k: _forward(w, k, "mask"),  # w is the transposed there
    TOPK: lambda x, w, k: torch.topk(x, k),
    SOFTMAX: lambda x, w, k: torch.softmax(x, -1),
}


def check(scores: Tensor, k: int) -> dict[str, float]:
    """Errors of the functions by one another; ParityError where one is too large.

    The mask itself is checked against float64 by the other benchmarks and by the tests.
    """
    limit = TOLERANCE + 4 * torch.finfo(scores.dtype).eps
    mask, pair = _forward(scores, k, "mask")
    hard, _ = _forward(scores, k, "hard")
    indices, weights, _ = _select(scores, k)
    errors = {
        "number of ones": float((hard.sum(-1, dtype=torch.float64) - k).abs().max()),
        "hard mask": _largest(hard, _forward(scores, k, "hard", 0.0)[0]),
        "selected": float((hard.gather(-1, indices) != 1).sum()),
        "weights": _largest(weights, mask.gather(-1, indices)),
        "threshold": _largest(_threshold(_forward(scores, k, "threshold")[1]), _threshold(pair)),
    }
    least = scores.gather(-1, indices).amin(-1, keepdim=True)
    errors["larger scores left"] = float(((scores > least) & (hard == 0)).sum())
    del hard
    if scores.numel() <= MOST_CHECKED:
        drawn = _sample(scores, k)
        errors["number drawn"] = float((drawn.sum(-1, dtype=torch.float64) - k).abs().max())
        del drawn
        errors["log"] = _largest(_forward(scores, k, "log")[0].exp(), mask)
    for name, error in errors.items():
        if not error <= limit:
            raise ParityError(f"{name}: off by {error:.3g}, expected at most {limit:.3g}")
    return errors


def _threshold(pair: Tensor) -> Tensor:
    """b of pairs, which may be split in other ways."""
    return pair.double().sum(-1)


def _largest(one: Tensor, two: Tensor) -> float:
    return float((one - two).abs().max())
