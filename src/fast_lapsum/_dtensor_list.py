"""Many DTensors that share one budget, such as the parameters of a model under FSDP2.

Each rank's list is that of its parts. What is replicated along a mesh dimension that shards another
tensor of the list is sharded for the call, so that it counts once, and its mask put together again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from ._call import Number
from ._dtensor import check_placements, group_along, local, part, shard_dim, whole

_ONE = torch.Size(())
_FOR_ALL = "be one number for all tensors, without dimensions"


def call(
    function: Callable[..., Any],
    tensors: Sequence[Tensor],
    k: Number | Tensor,
    temperature: Number | Tensor,
    options: dict[str, Any],
) -> Any:
    """What the public function gives for a list of DTensors: masks placed as they are."""
    given, mesh = _check_tensors(tensors)
    spread = [
        i
        for i in range(mesh.ndim)
        if any(shard_dim(one.placements[i]) is not None for one in given)
    ]
    parts = [_sharded(one, mesh, spread) for one in given]
    nowhere = (Replicate(),) * mesh.ndim
    numbers = [
        part(name, value, mesh, _ONE, nowhere, _FOR_ALL) if isinstance(value, Tensor) else value
        for name, value in (("k", k), ("temperature", temperature))
    ]
    group = group_along(mesh, spread)
    found = function([local(one) for one in parts], *numbers, group=group, **options)
    masks, b = found if options["return_threshold"] else (found, None)
    restored = [
        _placed(whole(mask, mesh, shard.placements, shard.shape), one)
        for mask, shard, one in zip(masks, parts, given, strict=True)
    ]
    return restored if b is None else (restored, whole(b, mesh, nowhere, _ONE))


def _check_tensors(tensors: Sequence[Tensor]) -> tuple[list[DTensor], DeviceMesh]:
    """DTensors of one mesh, sharded or replicated."""
    found: list[DTensor] = []
    for i, one in enumerate(tensors):
        if not isinstance(one, DTensor):
            raise TypeError(
                f"tensors must be all DTensors or none, got {type(one).__name__} for tensors[{i}]; "
                "DTensor.from_local(x, mesh, [Replicate()]) makes one of what all ranks have"
            )
        found.append(one)
        if one.device_mesh != found[0].device_mesh:
            raise ValueError(
                f"tensors must be on one mesh, got {found[0].device_mesh} for tensors[0] and "
                f"{one.device_mesh} for tensors[{i}]"
            )
        check_placements(f"tensors[{i}]", one.placements)
    return found, found[0].device_mesh


def _sharded(tensor: DTensor, mesh: DeviceMesh, spread: Sequence[int]) -> DTensor:
    """The tensor with no part on two ranks of a mesh dimension that is spread over."""
    if not any(shard_dim(tensor.placements[i]) is None for i in spread):
        return tensor
    flat: Any = tensor if tensor.dim() else tensor.reshape(1)
    placements: list[Placement] = [
        Shard(0) if i in spread and shard_dim(one) is None else one
        for i, one in enumerate(tensor.placements)
    ]
    return flat.redistribute(mesh, placements)  # type: ignore[no-any-return]


def _placed(mask: DTensor, tensor: DTensor) -> DTensor:
    """The mask as its tensor is placed."""
    found: Any = mask
    if mask.placements != tensor.placements:
        found = mask.redistribute(tensor.device_mesh, tensor.placements)
    return found if tensor.dim() else found.reshape(tensor.shape)  # type: ignore[no-any-return]
