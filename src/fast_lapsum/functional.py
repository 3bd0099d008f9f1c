"""The public functions of the soft mask: check the arguments, bring rows last, dispatch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor

from . import _traced
from ._arguments import (
    Dim,
    check_dims,
    check_flag,
    check_number,
    check_per_row,
    is_dtensor,
)
from ._call import Number, SolverName, prepare
from ._derivatives import is_traced

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@overload
def soft_topk(
    scores: Tensor,
    k: Number | Tensor,
    temperature: Number | Tensor = 1.0,
    *,
    dim: Dim = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    lengths: Tensor | None = None,
    clamp: bool = False,
    hard: bool = False,
    return_threshold: Literal[False] = False,
    warm_start: Tensor | None = None,
    solver: SolverName = "auto",
    validate: bool = False,
    group: ProcessGroup | None = None,
) -> Tensor: ...


@overload
def soft_topk(
    scores: Tensor,
    k: Number | Tensor,
    temperature: Number | Tensor = 1.0,
    *,
    dim: Dim = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    lengths: Tensor | None = None,
    clamp: bool = False,
    hard: bool = False,
    return_threshold: Literal[True],
    warm_start: Tensor | None = None,
    solver: SolverName = "auto",
    validate: bool = False,
    group: ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]: ...


def soft_topk(
    scores: Tensor,
    k: Number | Tensor,
    temperature: Number | Tensor = 1.0,
    *,
    dim: Dim = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    lengths: Tensor | None = None,
    clamp: bool = False,
    hard: bool = False,
    return_threshold: bool = False,
    warm_start: Tensor | None = None,
    solver: SolverName = "auto",
    validate: bool = False,
    group: ProcessGroup | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Differentiable top-k mask whose mass is exactly k.

    .. math:: p_i = \sigma((r_i - b) / t), \qquad \sum_i p_i = k

    with the Laplace CDF sigma and the one threshold b that spends the budget.

    Args:
        scores: r, a float16, bfloat16, float32 or float64 tensor of any shape and strides. A score
            of -inf is left out, a score of +inf is taken whole (more of them than k share it), a
            NaN makes its row NaN. A nested tensor of jagged layout has a row in each of its parts.
        k: the budget per row, 0 <= k <= n, whole or fractional: a number, or a tensor that
            broadcasts to the shape of ``scores`` without ``dim``. Tensors receive gradients.
        temperature: t >= 0, a number or a tensor like ``k``. Large is soft; 0 is the hard limit.
            At most a 256th of the largest number of float32, or of float64 for float64 scores.
        dim: the dimension to select along; several of them share one budget, and None is all. Their
            scores are copied unless they are adjacent, in order, and lie so in memory: of a
            contiguous tensor ``(1, 2)`` and None are not copied, ``(0, 2)`` and ``(2, 1)`` are.
        largest: select the largest scores, or the smallest.
        mask: boolean, broadcasts to ``scores``; False leaves a score out (p = 0, gradient 0).
        cu_seqlens: where segments of several lengths begin and end in one vector of ``scores``:
            N + 1 rising offsets, int32 or int64, on the device, which PyG calls ``ptr``. Each
            segment is a row with a budget of its own; k and temperature may have N values.
            Segments may be empty. What is outside of all of them has p = 0. Offsets beyond the
            scores are clamped to them, and a segment that ends before it begins is empty;
            ``validate=True`` raises, and also for offsets that do not begin at 0, as lengths do.
        max_seqlen: the length of the longest segment, or more, where it is known: fewer kernels
            are launched then. A longer segment may be NaN; ``validate=True`` raises.
        lengths: how many scores of each row take part, int32 or int64, in the shape of ``scores``
            without ``dim``: the rest of a row is padding, whatever is in it (p = 0, gradient 0).
            A length beyond the row is clamped to it; ``validate=True`` raises.
        clamp: limit k to the number of scores that take part in a row, so that a short row is
            taken whole. Where that limits k its gradient is 0. A hard mask rounds k down, too.
            The scores are read once more for it.
        hard: return the hard mask of exactly k ones with the soft mask's gradient (straight
            through). Needs a whole k; the earliest of tied scores wins, in the order of ``dim``.
        return_threshold: also return b, detached, in the shape of ``scores`` without ``dim``. With
            ``hard=True`` it is the boundary of the hard mask: the best score that is left out, so
            that ``scores > b`` is the mask up to ties at b, of the scores that take part; -inf
            where none is left out (+inf for the smallest).
        warm_start: an earlier threshold. It changes the speed, and the result by rounding at most.
        solver: ``"auto"`` takes the fastest backend; a name takes that algorithm in plain torch.
        validate: look at the values of k and temperature and raise for a row that has no answer.
            Without it such a row is NaN, because looking would make a GPU wait. Numbers are always
            checked against the shape, and on a CPU, eagerly, against every row. A compiled graph
            looks when it runs. A NaN among the scores is no error: its row is NaN.
        group: a process group over which each row is spread along ``dim``. ``scores`` is this
            rank's part, of its own length, perhaps none; k is the budget of the whole row, and k
            and temperature are the same on all ranks. Each rank gets its part of the mask, and all
            the same threshold. Ties go to the lowest rank, then to the earliest. All ranks call,
            forward and backward. The loss is the sum of theirs: scores get its gradient, k and
            temperature the whole of it on every rank. ``validate=True`` compares what ranks give.
            Scores that are a DTensor have their groups in their mesh, and masks are placed as they
            are; k and temperature may be DTensors, too, or the same tensors on all ranks.

    Returns:
        The mask, in the shape and dtype of ``scores`` (float32 under autocast), and the threshold
        if asked for.

    Example:
        >>> scores = torch.tensor([2.0, 1.0, 0.0, -1.0], requires_grad=True)
        >>> p = soft_topk(scores, k=2, temperature=0.5)
        >>> p
        tensor([0.9751, 0.8161, 0.1839, 0.0249], grad_fn=<SoftTopKBackward>)
        >>> p.sum().item()
        2.0
        >>> p[0].backward()
        >>> scores.grad
        tensor([ 0.0468, -0.0219, -0.0219, -0.0030])

        One budget for a whole batch, and a threshold for inference, where rows come one by one:

        >>> batch = torch.tensor([[4.0, 1.0, 0.0], [3.0, 2.0, 5.0]])
        >>> chosen, b = soft_topk(batch, k=3, hard=True, dim=None, return_threshold=True)
        >>> chosen
        tensor([[1., 0., 0.],
                [1., 0., 1.]])
        >>> (batch[1] > b).float()
        tensor([1., 0., 1.])
    """
    if type(scores) is not Tensor and is_dtensor(scores):
        return _call_parts(  # type: ignore[no-any-return]
            soft_topk,
            (scores, k, temperature, dim, mask),
            (cu_seqlens, max_seqlen, lengths, warm_start, group),
            largest=largest,
            clamp=clamp,
            hard=hard,
            return_threshold=return_threshold,
            solver=solver,
            validate=validate,
        )
    output = "hard" if check_flag("hard", hard) else "mask"
    given = (scores, k, temperature, dim, largest, mask, output, warm_start, solver)
    if group is not None:
        others = (cu_seqlens, max_seqlen, lengths)
        found = _call_sharded(given, validate, clamp, others, group, return_threshold)
        return (found[0], found[1]) if return_threshold else found[0]
    if _is_ragged(scores, cu_seqlens, max_seqlen, lengths):
        segments = (cu_seqlens, max_seqlen, lengths)
        out, b = _call_ragged(given, validate, clamp, segments, return_threshold)
        return (out, b) if return_threshold else out
    if is_traced():
        found = _traced.soft_topk(*given, validate, clamp, return_threshold)
        return (found[0], found[1]) if return_threshold else found[0]
    call = prepare(*given, validate, clamp)
    if not return_threshold:
        return call.restore(call.write())
    out, b = call.write_with_threshold()
    return call.restore(out), b


def log_soft_topk(
    scores: Tensor,
    k: Number | Tensor,
    temperature: Number | Tensor = 1.0,
    *,
    dim: Dim = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    lengths: Tensor | None = None,
    clamp: bool = False,
    warm_start: Tensor | None = None,
    solver: SolverName = "auto",
    validate: bool = False,
    group: ProcessGroup | None = None,
) -> Tensor:
    r"""Logarithm of :func:`soft_topk`, accurate far into the tail where p itself underflows.

    .. math:: \log p_i = u_i - \log 2 \;(u_i \le 0), \quad \log(1 - e^{-u_i} / 2) \;(u_i > 0)

    Arguments are those of :func:`soft_topk` without ``hard`` and ``return_threshold``. Scores that
    are left out have -inf.

    Example:
        >>> scores = torch.tensor([0.0, -300.0, -600.0])
        >>> soft_topk(scores, k=1)
        tensor([1., 0., 0.])
        >>> log_soft_topk(scores, k=1)
        tensor([  -0.0000, -150.6931, -450.6931])
    """
    if type(scores) is not Tensor and is_dtensor(scores):
        return _call_parts(  # type: ignore[no-any-return]
            log_soft_topk,
            (scores, k, temperature, dim, mask),
            (cu_seqlens, max_seqlen, lengths, warm_start, group),
            largest=largest,
            clamp=clamp,
            solver=solver,
            validate=validate,
        )
    given = (scores, k, temperature, dim, largest, mask, "log", warm_start, solver)
    if group is not None:
        others = (cu_seqlens, max_seqlen, lengths)
        return _call_sharded(given, validate, clamp, others, group)[0]
    if _is_ragged(scores, cu_seqlens, max_seqlen, lengths):
        return _call_ragged(given, validate, clamp, (cu_seqlens, max_seqlen, lengths))[0]
    if is_traced():
        return _traced.soft_topk(*given, validate, clamp)[0]
    call = prepare(*given, validate, clamp)
    return call.restore(call.write())


def threshold(
    scores: Tensor,
    k: Number | Tensor,
    temperature: Number | Tensor = 1.0,
    *,
    dim: Dim = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    lengths: Tensor | None = None,
    clamp: bool = False,
    warm_start: Tensor | None = None,
    solver: SolverName = "auto",
    validate: bool = False,
    group: ProcessGroup | None = None,
) -> Tensor:
    """The threshold b at which the soft mask's mass is k, differentiable.

    In the shape of ``scores`` without ``dim``, float64 for float64 scores and float32 for the rest.
    For k = 0 and k = n, where b is at infinity, it is a finite value that gives that mask to
    rounding. At temperature 0 it is the boundary score. Arguments are those of :func:`soft_topk`
    without ``hard`` and ``return_threshold``.

    Example:
        >>> threshold(torch.tensor([4.0, 3.0, 1.0, 0.0]), k=2, temperature=0.01)
        tensor(2.)
    """
    if type(scores) is not Tensor and is_dtensor(scores):
        return _call_parts(  # type: ignore[no-any-return]
            threshold,
            (scores, k, temperature, dim, mask),
            (cu_seqlens, max_seqlen, lengths, warm_start, group),
            largest=largest,
            clamp=clamp,
            solver=solver,
            validate=validate,
        )
    given = (scores, k, temperature, dim, largest, mask, "threshold", warm_start, solver)
    if group is not None:
        others = (cu_seqlens, max_seqlen, lengths)
        return _call_sharded(given, validate, clamp, others, group)[0]
    if _is_ragged(scores, cu_seqlens, max_seqlen, lengths):
        return _call_ragged(given, validate, clamp, (cu_seqlens, max_seqlen, lengths))[0]
    if is_traced():
        return _traced.soft_topk(*given, validate, clamp)[0]
    call = prepare(*given, validate, clamp)
    return call.threshold()


def _call_parts(
    function: Callable[..., Any], given: tuple[Any, ...], others: tuple[Any, ...], **options: Any
) -> Any:
    """What a public function gives for a DTensor."""
    from . import _dtensor  # by the first call, as below

    names = ("cu_seqlens", "max_seqlen", "lengths", "warm_start", "group")
    for name, value in zip(names, others, strict=True):
        if value is not None:
            raise ValueError(f"{name} must be left out for scores that are a DTensor")
    scores, k, temperature, dim, mask = given
    is_threshold = function is threshold
    return _dtensor.call(function, scores, k, temperature, dim, mask, is_threshold, options)


def _call_sharded(
    given: tuple[Any, ...],
    validate: bool,
    clamp: bool,
    others: tuple[Tensor | None, int | None, Tensor | None],
    group: ProcessGroup,
    with_threshold: bool = False,
) -> list[Tensor]:
    """What a public function gives for rows that are spread over a group; thresholds if wanted."""
    from . import _collectives, _sharded, _traced_sharded  # by the first call, as below

    *rows, warm_start, solver = given
    names = ("cu_seqlens", "max_seqlen", "lengths", "warm_start")
    for name, value in zip(names, (*others, warm_start), strict=True):
        if value is not None:
            raise ValueError(f"{name} must be left out for a call with group")
    if solver != "auto":
        raise ValueError(f"solver must be 'auto' for a call with group, got solver={solver!r}")
    every: tuple[Any, ...] = (*rows, validate, clamp, _collectives.name_of(group))
    if is_traced():
        every = (*every, with_threshold)
        return _traced_sharded.sharded_topk(*every)
    call = _sharded.prepare(*every)
    if rows[6] == "threshold":
        return [call.threshold()]
    return list(call.write_with_threshold()) if with_threshold else [call.write()]


def _is_ragged(
    scores: Tensor, cu_seqlens: Tensor | None, max_seqlen: int | None, lengths: Tensor | None
) -> bool:
    """Whether rows have several lengths."""
    if cu_seqlens is None and max_seqlen is None and lengths is None:
        return bool(getattr(scores, "is_nested", False))
    return True


def _call_ragged(
    given: tuple[Any, ...],
    validate: bool,
    clamp: bool,
    segments: tuple[Tensor | None, int | None, Tensor | None],
    with_threshold: bool = False,
) -> tuple[Tensor, Tensor]:
    """What a public function gives for rows of several lengths, and thresholds if asked for."""
    # Loaded by the first such call: it would be a third of what an import takes.
    from . import _ragged, _traced_many
    from ._segments import put_together, take_apart

    scores, dim, mask, output = given[0], given[3], given[5], given[6]
    cu_seqlens, max_seqlen, lengths = segments
    jagged = None
    if getattr(scores, "is_nested", False):
        if any(x is not None for x in (cu_seqlens, max_seqlen, lengths)):
            raise ValueError(
                "cu_seqlens, max_seqlen and lengths must be left out for a nested tensor, which "
                "has its own"
            )
        if dim not in (-1, 1):
            raise ValueError(f"dim must be 1 or -1 for a nested tensor, got dim={dim}")
        jagged = take_apart(scores)
        if isinstance(mask, Tensor) and mask.is_nested:
            mask = mask.values()
        given = (jagged.values, *given[1:3], -1, given[4], mask, *given[6:])
        cu_seqlens, max_seqlen, lengths = jagged.offsets, jagged.max_length, jagged.lengths
    rows = (cu_seqlens, max_seqlen, lengths, jagged is not None)
    every: tuple[Any, ...] = (*given, validate, clamp, *rows)
    if is_traced():
        every = (*every, with_threshold)
        found = _traced_many.ragged_topk(*every)
        out, b = found[0], found[-1]
    else:
        call = _ragged.prepare(*every)
        if output == "threshold":
            out = b = call.threshold()
        elif with_threshold:
            out, b = call.write_with_threshold()
        else:
            out = b = call.write()
    if jagged is not None and output != "threshold":
        out = put_together(out, jagged)
    return out, b


def lapsum(scores: Tensor, k: Number | Tensor, alpha: Number | Tensor, *, dim: Dim = -1) -> Tensor:
    r"""The paper's operator: :math:`p_i = \sigma((b - r_i) / \alpha)` with mass k.

    A negative alpha gives the largest scores the highest probabilities, a positive one the
    smallest; 0 is the limit from below, a hard mask of the largest. ``lapsum(r, k, -t)`` is
    ``soft_topk(r, k, t)``.

    Example:
        >>> lapsum(torch.tensor([2.0, 1.0, 0.0]), k=1, alpha=-0.5)
        tensor([0.8040, 0.1726, 0.0234])
    """
    if isinstance(alpha, Tensor):
        # The side may differ from row to row, and choosing it on the host would wait for a GPU.
        dims = check_dims(scores, dim)
        selected = (dims,) if isinstance(dims, int) else dims
        shape = torch.Size(x for i, x in enumerate(scores.shape) if i not in selected)
        smallest = check_per_row("alpha", alpha, scores, shape).detach() > 0
        for one in sorted(selected):
            smallest = smallest.unsqueeze(one)
        return soft_topk(torch.where(smallest, -scores, scores), k, alpha.abs(), dim=dim)
    number = check_number("alpha", alpha)
    if not abs(number) < math.inf:
        raise ValueError(f"alpha must be finite, got alpha={number}")
    return soft_topk(scores, k, abs(number), dim=dim, largest=number <= 0)
