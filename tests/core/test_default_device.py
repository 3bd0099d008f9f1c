"""A default device that is not that of the scores: calls stay where their scores are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import fast_lapsum
from cases import normal
from fast_lapsum import losses
from fast_lapsum._sharded_ops import topk_of_rank

Made = Tensor | Sequence[Tensor]
OFFSETS = torch.tensor([0, 7, 7, 24])
TARGETS = torch.tensor([1, 3])


def _of_two_ranks(scores: Tensor, k: Tensor, t: Tensor) -> Tensor:
    """One rank's part, as if another had said the same."""
    budgets, temperatures = ((x * 2).expand(2) for x in (k.detach(), t.detach()))
    given = (scores.detach(), budgets, 0.0, temperatures, 1.0, None, True, "mask", scores.dtype)
    return topk_of_rank(*given, 2, 0, lambda message: torch.stack((message, message)))[0]


CALLS: dict[str, Callable[[Tensor, Tensor, Tensor], Made]] = {
    "mask": fast_lapsum.soft_topk,
    "hard": lambda r, k, t: fast_lapsum.soft_topk(r, k, t, hard=True),
    "log": fast_lapsum.log_soft_topk,
    "threshold": fast_lapsum.threshold,
    "select": lambda r, k, t: fast_lapsum.select_topk(r, 3, t)[1],
    "hard alone": lambda r, k, t: fast_lapsum.hard_topk_mask(r, 3),
    "sample": lambda r, k, t: fast_lapsum.sample_topk(
        r, 3, 0.5, generator=torch.Generator("cpu").manual_seed(0)
    ),
    "segments": lambda r, k, t: fast_lapsum.soft_topk(
        r.flatten()[:24], k.new_tensor([3.0, 0.0, 2.0]) + 0 * k, t, cu_seqlens=OFFSETS
    ),
    "lengths": lambda r, k, t: fast_lapsum.soft_topk(r, k, t, lengths=TARGETS + 5),
    "list": lambda r, k, t: fast_lapsum.soft_topk_list([r, r[0].double()], k, t),
    "of two ranks": _of_two_ranks,
    "rank": lambda r, k, t: fast_lapsum.soft_rank(r, t),
    "sort": lambda r, k, t: fast_lapsum.soft_sort(r, t),
    "quantile": lambda r, k, t: fast_lapsum.soft_quantile(r, 0.3, t),
    "permutation": lambda r, k, t: fast_lapsum.soft_argsort(r, t).apply(r),
    "loss": lambda r, k, t: losses.TopKCrossEntropyLoss((0.5, 0.5), temperature=0.3)(r, TARGETS),
}


def _results(call: Callable[[Tensor, Tensor, Tensor], Made], *leaves: Tensor) -> list[Any]:
    """What a call gives, and its gradients."""
    made = call(*leaves)
    outs = [made] if isinstance(made, Tensor) else list(made)
    moving = [out for out in outs if out.requires_grad]
    if not moving:
        return outs
    upstream = [out.detach().square() for out in moving]
    return [*outs, *torch.autograd.grad(moving, leaves, upstream, allow_unused=True)]


@pytest.mark.parametrize("name", CALLS)
def test_calls_and_gradients_are_the_same(name: str) -> None:
    scores, k, t = normal(2, 13).float(), torch.tensor(3.0), torch.tensor(0.4)
    leaves = [one.requires_grad_() for one in (scores, k, t)]
    wanted = _results(CALLS[name], *leaves)
    with torch.device("meta"):
        found = _results(CALLS[name], *leaves)
    for one, other in zip(found, wanted, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert one.is_cpu
            assert torch.equal(one, other)
