"""Scores that are a DTensor: every rank calls with its part, and what it gets is a part again.

A mesh dimension along which rows are sharded is a group over which they are spread. Along one that
shards other dimensions every rank has rows of its own, and along one that replicates, the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from ._arguments import PER_ROW, Dim, check_dims
from ._call import Number

_LIKE_SCORES = "broadcast to the shape of scores, {shape}"
#: Groups over several dimensions of a mesh, by their ranks: a mesh has one for each dimension.
_joined_groups: dict[tuple[int, ...], ProcessGroup] = {}


def call(
    function: Callable[..., Any],
    scores: DTensor,
    k: Number | Tensor,
    temperature: Number | Tensor,
    dim: Dim,
    mask: Tensor | None,
    is_threshold: bool,
    options: dict[str, Any],
) -> Any:
    """What a public function gives for a DTensor, as DTensors.

    ``is_threshold`` says that this is no mask but a threshold, which all ranks of a row have.
    """
    found = check_dims(scores, dim)
    dims = (found,) if isinstance(found, int) else found
    mesh, placements = scores.device_mesh, scores.placements
    check_placements("scores", placements)
    rows_shape = torch.Size(n for i, n in enumerate(scores.shape) if i not in dims)
    of_rows = tuple(_without(dims, placement) for placement in placements)
    group = group_along(mesh, [i for i, one in enumerate(placements) if shard_dim(one) in dims])
    if isinstance(mask, Tensor):  # what is none, the call names
        mask = part("mask", mask, mesh, scores.shape, placements, _LIKE_SCORES)
    per_row = [
        part(name, value, mesh, rows_shape, of_rows, PER_ROW)
        if isinstance(value, Tensor)
        else value
        for name, value in (("k", k), ("temperature", temperature))
    ]
    out = function(local(scores), *per_row, dim=dim, mask=mask, group=group, **options)
    if is_threshold:
        if group is not None:
            out = CountedOnce.apply(out, distributed.get_rank(group) == 0)  # type: ignore[no-untyped-call]
        return whole(out, mesh, of_rows, rows_shape)
    if isinstance(out, tuple):
        return whole(out[0], mesh, placements, scores.shape), whole(
            out[1], mesh, of_rows, rows_shape
        )
    return whole(out, mesh, placements, scores.shape)


class CountedOnce(torch.autograd.Function):
    """A threshold that all ranks of a row have: its gradient is that of one number, not of many."""

    @staticmethod
    def forward(ctx: Any, threshold: Tensor, is_first: bool) -> Tensor:
        ctx.is_first = is_first
        return threshold.view_as(threshold)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad if ctx.is_first else torch.zeros_like(grad), None


class Broadcast(NamedTuple):
    """How a value that broadcasts lies on the mesh, and how a rank's gradient of it does."""

    placements: tuple[Placement, ...]
    gradients: tuple[Placement, ...]

    @classmethod
    def of(cls, value: torch.Size, shape: torch.Size, placements: Sequence[Placement]) -> Broadcast:
        """Of a value of one shape beside a tensor of another, with these placements."""
        ahead = len(shape) - len(value)
        found: list[tuple[Placement, Placement]] = []
        for one in placements:
            dim = shard_dim(one)
            if dim is None:
                found.append((Replicate(), Replicate()))
            elif dim < ahead or value[dim - ahead] == 1:
                # The same for all rows, of which each rank sees its own: a share of the sum.
                found.append((Replicate(), Partial()))
            else:
                found.append((_along(one, dim - ahead),) * 2)
        return cls(tuple(one for one, _ in found), tuple(one for _, one in found))


def part(
    name: str,
    value: Tensor,
    mesh: DeviceMesh,
    shape: torch.Size,
    placements: Sequence[Placement],
    expectation: str,
) -> Tensor:
    """This rank's part of a value that broadcasts to ``shape``: a DTensor, or one on all ranks."""
    if not isinstance(value, DTensor):
        same = [Replicate()] * mesh.ndim
        value = DTensor.from_local(value, mesh, same, run_check=False)
    elif value.device_mesh != mesh:
        raise ValueError(
            f"{name} must be on the mesh of scores, {mesh}, got a DTensor on {value.device_mesh}"
        )
    own = value.shape
    if len(own) > len(shape) or any(
        n not in (1, wanted) for n, wanted in zip(own[::-1], shape[::-1], strict=False)
    ):
        raise ValueError(
            f"{name} must {expectation.format(shape=tuple(shape))}, got shape {tuple(own)}"
        )
    how = Broadcast.of(own, shape, placements)
    # Where nothing moves this is still what brings shares of a gradient together.
    moved = value.redistribute(mesh, how.placements)
    return local(moved, how.gradients)


def local(value: DTensor, gradients: Sequence[Placement] | None = None) -> Tensor:
    """This rank's part, differentiable."""
    found = value.to_local(grad_placements=gradients)
    wait = getattr(found, "wait", None)  # of one that is still on its way
    return found if wait is None else wait()


def whole(
    value: Tensor, mesh: DeviceMesh, placements: Sequence[Placement], shape: torch.Size
) -> DTensor:
    """The DTensor of all ranks' parts, contiguous."""
    stride, count = [], 1
    for n in reversed(shape):
        stride.append(count)
        count *= max(n, 1)
    return DTensor.from_local(
        value, mesh, placements, run_check=False, shape=shape, stride=tuple(reversed(stride))
    )


def check_placements(name: str, placements: Sequence[Placement]) -> None:
    """Sharded or replicated along every dimension of the mesh."""
    for at, one in enumerate(placements):
        if one.is_partial():
            raise ValueError(
                f"{name} must be sharded or replicated, got {one!r} along dimension {at} of the "
                "mesh: of a sum that is not yet taken nothing can be selected; redistribute it to "
                "Replicate() or Shard(dim) there first"
            )


def shard_dim(placement: Placement) -> int | None:
    """The dimension that a placement shards."""
    return getattr(placement, "dim", None)


def group_along(mesh: DeviceMesh, mesh_dims: Sequence[int]) -> ProcessGroup | None:
    """The group of this rank along dimensions of a mesh; None where it is alone."""
    several = [i for i in mesh_dims if mesh.size(i) > 1]
    if not several:
        return None
    if len(several) == 1:
        return mesh.get_group(several[0])
    here = mesh.get_coordinate()
    assert here is not None
    index = tuple(slice(None) if i in several else at for i, at in enumerate(here))
    ranks = tuple(mesh.mesh[index].flatten().tolist())
    if ranks == tuple(range(distributed.get_world_size())):
        assert distributed.group.WORLD is not None
        return distributed.group.WORLD
    group = _joined_groups.get(ranks)
    if group is None or not _is_in_use(group):
        # Of members alone: other ranks need not call.
        group = distributed.new_group(list(ranks), use_local_synchronization=True)
        _joined_groups[ranks] = group
    return group


def _is_in_use(group: ProcessGroup) -> bool:
    try:
        return distributed.get_rank(group) >= 0
    except ValueError:
        return False


def _without(dims: Sequence[int], placement: Placement) -> Placement:
    """A placement of scores as one of what has no ``dims``."""
    dim = shard_dim(placement)
    if dim is None or dim in dims:
        return Replicate()
    return _along(placement, dim - sum(one < dim for one in dims))


def _along(placement: Placement, dim: int) -> Placement:
    """The same way to shard, along another dimension."""
    if dim == shard_dim(placement):
        return placement
    factor = getattr(placement, "split_factor", None)
    if factor is None:
        return Shard(dim)
    return type(placement)(dim, split_factor=factor)  # type: ignore[call-arg]
