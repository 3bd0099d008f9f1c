"""One budget over many tensors, such as the weights of all layers of a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from torch import Tensor

from ._arguments import is_dtensor
from ._call import Number
from ._derivatives import is_traced

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@overload
def soft_topk_list(
    tensors: Sequence[Tensor],
    k: Number | Tensor,
    temperature: Number | Tensor = 1.0,
    *,
    largest: bool = True,
    clamp: bool = False,
    hard: bool = False,
    return_threshold: Literal[False] = False,
    validate: bool = False,
    group: ProcessGroup | None = None,
) -> list[Tensor]: ...


@overload
def soft_topk_list(
    tensors: Sequence[Tensor],
    k: Number | Tensor,
    temperature: Number | Tensor = 1.0,
    *,
    largest: bool = True,
    clamp: bool = False,
    hard: bool = False,
    return_threshold: Literal[True],
    validate: bool = False,
    group: ProcessGroup | None = None,
) -> tuple[list[Tensor], Tensor]: ...


def soft_topk_list(
    tensors: Sequence[Tensor],
    k: Number | Tensor,
    temperature: Number | Tensor = 1.0,
    *,
    largest: bool = True,
    clamp: bool = False,
    hard: bool = False,
    return_threshold: bool = False,
    validate: bool = False,
    group: ProcessGroup | None = None,
) -> list[Tensor] | tuple[list[Tensor], Tensor]:
    r"""One soft mask for each tensor, with one threshold for all and masses that sum to k.

    .. math:: p_{ji} = \sigma((r_{ji} - b) / t), \qquad \sum_j \sum_i p_{ji} = k

    The masks are those of :func:`soft_topk` on all scores joined into one row, to rounding,
    whatever the order of the list. The same list gives the same bits.

    Args:
        tensors: at least one tensor, all on one device, of any shapes, strides and floating dtypes
            together. They are solved in the widest dtype, float32 at least. Tensors that fill
            their memory, in any order of their dimensions, are read where they lie; those with
            gaps or overlaps are copied.
        k: the one budget, 0 <= k <= number of all scores: a number, or a tensor of one number.
        temperature: t >= 0, a number or a tensor like ``k``. Both receive gradients.
        largest: select the largest scores, or the smallest.
        clamp: limit k to the number of scores that take part. Where that limits k its gradient is
            0. The scores are read once more for it.
        hard: return hard masks of exactly k ones in all with the soft masks' gradients. The
            earliest of tied scores wins, in the order of the list.
        return_threshold: also return b, detached; with ``hard=True`` the best score left out.
        validate: look at the values of k and temperature and raise where there is no answer.
            Without it all masks are NaN then; numbers are checked against the sizes always.
        group: a process group whose ranks have a list each, with one budget over all of them; see
            :func:`soft_topk`. Each rank gets the masks of its own tensors, some or all of which may
            be empty. They are copied into one row.

    Returns:
        A list of masks in the shapes and dtypes of the tensors (float32 for 16 bits under
        autocast), and the threshold if asked for.

    Example:
        >>> import torch
        >>> layers = [torch.tensor([[3.0, -1.0]]), torch.tensor([0.0, 2.0, -2.0])]
        >>> masks = soft_topk_list(layers, k=2, temperature=0.5)
        >>> masks
        [tensor([[0.9908, 0.0091]]), tensor([0.0671, 0.9318, 0.0012])]
    """
    if isinstance(tensors, Sequence) and any(
        type(one) is not Tensor and is_dtensor(one) for one in tensors
    ):
        return _call_parts(  # type: ignore[no-any-return]
            tensors,
            k,
            temperature,
            group,
            largest=largest,
            clamp=clamp,
            hard=hard,
            return_threshold=return_threshold,
            validate=validate,
        )
    from . import _list, _traced_many  # by the first call: see functional.py

    name = None
    if group is not None:
        from ._collectives import name_of

        name = name_of(group)
    given = (tensors, k, temperature, largest, clamp, hard, return_threshold, validate, name)
    found = _traced_many.list_topk(*given) if is_traced() else _list.soft_topk_list(*given)
    masks = found[: len(tensors)]
    return (masks, found[-1]) if return_threshold else masks


def _call_parts(
    tensors: Sequence[Tensor],
    k: Number | Tensor,
    temperature: Number | Tensor,
    group: ProcessGroup | None,
    **options: bool,
) -> Any:
    """What the function gives for DTensors."""
    from . import _dtensor_list

    if group is not None:
        raise ValueError("group must be left out for tensors that are DTensors")
    return _dtensor_list.call(soft_topk_list, tensors, k, temperature, options)
