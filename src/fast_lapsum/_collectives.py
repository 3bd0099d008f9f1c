"""What ranks of a process group say to each other, and which groups they can say it in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ._ops import is_plain

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def name_of(group: object) -> str:
    """The name by which operators know a group that this rank is a member of.

    A group is an object of Python's, and operators take its name in its place.
    """
    from torch import distributed

    if not distributed.is_available():
        raise RuntimeError("group needs torch.distributed, which this torch was built without")
    if group is distributed.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(
            "group must be a process group that this rank is a member of, got "
            f"{_shown(group)}, what new_group returns to ranks that it leaves out"
        )
    if not isinstance(group, distributed.ProcessGroup):
        raise TypeError(
            "group must be a torch.distributed.ProcessGroup (torch.distributed.group.WORLD is that "
            f"of all ranks), got {type(group).__name__}"
        )
    if torch.compiler.is_compiling():
        return group.group_name
    if not distributed.is_initialized():
        raise ValueError(
            f"group must be a process group in use, got {_shown(group)}: torch.distributed is not "
            "initialised, or destroy_process_group() was called"
        )
    try:
        rank = distributed.get_rank(group)
    except ValueError:
        raise ValueError(
            f"group must be a process group in use, got {_shown(group)}, which is not registered: "
            "it was destroyed by destroy_process_group"
        ) from None
    if rank < 0:
        raise ValueError(
            "group must be a process group that this rank is a member of, got "
            f"{_shown(group)}, of which rank {distributed.get_rank()} is none"
        )
    return group.group_name


def noted_name(group: ProcessGroup | None) -> str | None:
    """The name of a group for people and pickles, whether it is still in use or not."""
    return None if group is None else str(group.group_name)


def _shown(group: object) -> str:
    name = getattr(group, "group_name", None)
    if name is None:
        return f"group={group}"
    return f"the group named {name!r} ({getattr(group, 'group_desc', '')})".replace(" ()", "")


def size_of(name: str) -> int:
    """How many ranks a group has."""
    return _resolve(name).size()


def rank_in(name: str) -> int:
    """This rank's number in a group."""
    return _resolve(name).rank()


def group_of(name: str) -> ProcessGroup:
    """The group of this name, where there is one."""
    try:
        return _resolve(name)
    except RuntimeError:
        raise ValueError(
            f"process_group must be a process group in use, got the name {name!r}, which no group "
            "of this process has"
        ) from None


def _resolve(name: str) -> ProcessGroup:
    from torch.distributed import distributed_c10d

    return distributed_c10d._resolve_process_group(name)  # type: ignore[attr-defined,arg-type]


def gather(message: Tensor, name: str) -> Tensor:
    """The messages of all ranks in their order, [ranks, ...]; all have one shape and dtype.

    A rank that is gone, or that does not come in time, is an error of torch.distributed's.
    """
    ranks = size_of(name)
    if message.numel() == 0:
        return message.new_empty((ranks, *message.shape))
    try:
        found = _gathered(message.contiguous().view(-1), ranks, name)
        return found.view(ranks, *message.shape)
    except RuntimeError as error:
        error.args = (f"{error}\n{_said_of_failure(name)}",)  # of the same type, at the same place
        raise


def _gathered(message: Tensor, ranks: int, name: str) -> Tensor:
    """The messages of all ranks, once they are there.

    Gloo gathers in a ring, and every step wakes all processes in turn; to all at once is one step.
    Whoever asks torch.distributed for all checks gets the ring, whose sizes it compares.

    The functional collectives order themselves behind what the device has to do, without a wait of
    the host's, and a tracer sees them. On a CPU they take as long as the messages do.
    """
    from torch import distributed
    from torch.distributed import DebugLevel, get_debug_level  # type: ignore[attr-defined]

    if not message.is_cpu or get_debug_level() == DebugLevel.DETAIL:
        return _waited("all_gather_into_tensor", message, ranks, name)
    to_all = torch.cat([message] * ranks)
    if is_plain(message):
        found = torch.empty_like(to_all)
        distributed.all_to_all_single(found, to_all, group=_resolve(name))
        return found
    sizes = [message.numel()] * ranks
    return _waited("all_to_all_single", to_all, sizes, sizes, name)


def _waited(operator: str, *given: object) -> Tensor:
    """What a functional collective gives."""
    from torch.distributed import _functional_collectives  # noqa: F401  (registers the operators)

    operators = torch.ops._c10d_functional
    return operators.wait_tensor(getattr(operators, operator)(*given))  # type: ignore[no-any-return]


def _said_of_failure(name: str) -> str:
    """What may have happened to a collective, beside what torch.distributed says of it."""
    try:
        group = f"rank {rank_in(name)} of {size_of(name)} in the group named {name!r}"
    except RuntimeError:
        group = f"the group named {name!r}, which is no longer in use"
    return (
        f"This was a collective of fast_lapsum, on {group}: another rank has ended, has not called "
        "within the group's timeout, or has called with other arguments, which validate=True tells."
    )
