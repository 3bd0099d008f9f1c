"""The public functions that choose whole scores: a selection, the hard mask and a random one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import _traced
from ._arguments import Dim, is_dtensor
from ._call import Number, prepare, sample, select
from ._derivatives import is_traced


class Selection(NamedTuple):
    """The selected scores: where they are, and the soft mask's values there."""

    indices: Tensor
    weights: Tensor


def select_topk(
    scores: Tensor,
    k: int,
    temperature: Number | Tensor = 1.0,
    *,
    dim: int = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    sorted: bool = False,
    validate: bool = False,
) -> Selection:
    r"""The k largest scores and their soft weights, for whoever computes with the selected alone.

    The indices are those of the ones of :func:`hard_topk_mask`: the earliest of tied scores, the
    same whenever they are computed again. The weights are the values of :func:`soft_topk` there,
    not renormalised, with its gradient: through the whole row, for scores and temperature.

    Args:
        scores: r, a float16, bfloat16, float32 or float64 tensor of any shape and strides. A score
            of -inf is left out, a score of +inf comes first, a NaN makes its row NaN.
        k: how many to select, one whole number for all rows, 0 <= k <= n.
        temperature: t >= 0, a number, or a tensor that broadcasts to the shape of ``scores``
            without ``dim``. At 0 the weights are those of the hard limit.
        dim: the dimension to select along.
        largest: select the largest scores, or the smallest.
        mask: boolean, broadcasts to ``scores``; False leaves a score out.
        lengths: how many scores of each row take part, int32 or int64, in the shape of ``scores``
            without ``dim``; made into a mask.
        sorted: order by score, ties by index, instead of by index.
        validate: raise for a row that has fewer than k valid scores or no answer. Without it such a
            row has -1 and weight 0 in the places left over; its valid scores have weight 1.

    Returns:
        A named tuple of ``indices`` (int64) and ``weights`` (in the dtype of ``scores``, float32
        under autocast), both in the shape of ``scores`` with k along ``dim``. A row with a NaN, or
        whose temperature is none, has index -1 and weight NaN in all places.

    Example:
        >>> scores = torch.tensor([0.3, 2.0, -1.0, 1.0], requires_grad=True)
        >>> chosen = select_topk(scores, k=2, temperature=0.5)
        >>> chosen.indices
        tensor([1, 3])
        >>> chosen.weights
        tensor([0.9673, 0.7585], grad_fn=<SelectTopKBackward>)
        >>> chosen.weights.sum().backward()
        >>> scores.grad
        tensor([-0.2553,  0.0327, -0.0190,  0.2415])
    """
    if type(scores) is not Tensor and is_dtensor(scores):
        raise _over_ranks("select_topk")
    if lengths is not None:
        from ._segments import mask_of_lengths  # by the first call that has them

        mask = mask_of_lengths(lengths, scores, dim, mask)
    call = _traced.select_topk if is_traced() else select
    return Selection(*call(scores, k, temperature, dim, largest, mask, sorted, validate))


def hard_topk_mask(
    scores: Tensor,
    k: Number | Tensor,
    *,
    dim: Dim = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    clamp: bool = False,
    validate: bool = False,
) -> Tensor:
    """Mask of exactly k ones at the k largest scores, the earliest of tied scores first.

    The hard counterpart of :func:`soft_topk`, in the scores' dtype, without a gradient. ``dim`` and
    ``clamp`` are those of :func:`soft_topk`: ties go by the order of ``dim``, and a clamped k is
    rounded down.

    Example:
        >>> hard_topk_mask(torch.tensor([1.0, 3.0, 3.0, 3.0]), k=2)
        tensor([0., 1., 1., 0.])
    """
    if type(scores) is not Tensor and is_dtensor(scores):
        raise _over_ranks("hard_topk_mask")
    given = (scores, k, 0.0, dim, largest, mask, "hard", None, "auto", validate, clamp)
    if is_traced():
        return _traced.soft_topk(*given)[0].detach()
    call = prepare(*given)
    return call.restore(call.write_detached())


def sample_topk(
    scores: Tensor,
    k: Number | Tensor,
    temperature: Number | Tensor = 1.0,
    *,
    dim: Dim = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    clamp: bool = False,
    generator: torch.Generator | None = None,
    validate: bool = False,
) -> Tensor:
    """Random mask of exactly k ones that selects score i with probability p_i of the soft mask.

    Systematic sampling: one uniform number u per row, and score i is taken when the running sum of
    p passes one of u, u + 1, ..., u + k - 1. Without a gradient, in the scores' dtype, and the same
    for the same seed and backend. Which scores come together depends on their order: shuffle them
    where pairs matter. ``dim`` and ``clamp`` are those of :func:`hard_topk_mask`. A ``generator``
    cannot be part of a compiled graph: ``torch.compile`` breaks the graph there, and refuses to
    with ``fullgraph=True``.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> drawn = sample_topk(torch.randn(1000, generator=generator), 10, generator=generator)
        >>> float(drawn.sum())
        10.0
    """
    if type(scores) is not Tensor and is_dtensor(scores):
        raise _over_ranks("sample_topk")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator, got {type(generator).__name__}")
    given = (scores, k, temperature, dim, largest, mask)
    if is_traced() and generator is None:
        return _traced.soft_topk(*given, "sample", None, "auto", validate, clamp)[0]
    call = prepare(*given, "hard", None, "auto", validate, clamp)
    return call.restore(sample(call, generator))


def _over_ranks(name: str) -> TypeError:
    return TypeError(
        f"scores must be a tensor of this rank for {name}, got a DTensor: soft_topk, log_soft_topk "
        "and threshold take DTensors, or a part of the rows with group=, and soft_topk(hard=True) "
        "gives a mask of whole scores"
    )
