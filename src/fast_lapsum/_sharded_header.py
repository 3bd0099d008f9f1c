"""What ranks say of their call before their first sample, so that other calls do not pass for it.

Ranks that ask for different things may take different numbers of messages, or agree on a threshold
that is nobody's. ``validate=True`` compares every row; this costs nothing, and serves where the
host looks at the messages anyway.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .backends.common import DTYPES
from .backends.shards import BUDGETS, DTYPE, HEADER, ROWS, SMALLEST, TEMPERATURES, Rows, Sample

_CODES = {code: str(dtype).removeprefix("torch.") for dtype, code in DTYPES.items()}


def header(sample: Sample, budget: Tensor, temperature: Tensor, rows: Rows) -> Tensor:
    """The numbers before a sample, in the order of shards.py."""
    side = 0 if rows.largest else SMALLEST
    own = (sample.length, sample.drawn, DTYPES[rows.dtype] + side, rows.number)
    if rows.looks:
        digests = [float(_digest(values)) for values in (budget, temperature)]
        return budget.new_tensor((*own, *digests))
    # Filled in one by one: a list would be copied from the host.
    numbers = [budget.new_full((1,), number) for number in own]
    return torch.cat((*numbers, budget.new_zeros(HEADER - len(own))))


def check_headers(gathered: Tensor) -> None:
    """Raise where the first messages [ranks, m] are not of one call."""
    said = gathered[:, : HEADER * torch.float64.itemsize].flatten().clone()
    found = said.view(torch.float64).view(-1, HEADER).tolist()
    common = [one[DTYPE:] for one in found]
    if _is_known(common[0][0]) and all(one == common[0] for one in common):
        return
    strange = [rank for rank, one in enumerate(found) if not _is_known(one[DTYPE])]
    if strange:  # the first bytes of another kind of message
        raise ValueError(
            f"all ranks of group must make the same call, got another one from {_ranks(strange)}: "
            "another function, hard=, dtype or shape; validate=True says what it is"
        )
    raise_for_difference("largest", [str(one[DTYPE] < SMALLEST) for one in found])
    raise_for_difference("dtype of scores", [name_of_dtype(one[DTYPE]) for one in found])
    raise_for_difference("number of rows", [f"{one[ROWS]:.17g}" for one in found])
    for column, name in ((BUDGETS, "k"), (TEMPERATURES, "temperature")):
        said_by = [one[column] for one in found]
        raise_for_difference(name, [_shown(value) for value in said_by])
        others = ["some" if one == said_by[0] else "others" for one in said_by]
        if not math.isnan(said_by[0]):
            raise_for_difference(name, others, "; validate=True says in which row")


def _is_known(code: float) -> bool:
    """Whether it is a dtype's number, with the side or without."""
    return code in _CODES or code - SMALLEST in _CODES


def _shown(value: float) -> str:
    return "one for each row" if value < 0 else repr(value).removesuffix(".0")


def _digest(values: Tensor) -> Tensor:
    """A value that all rows have as it is; of several a negative number that differs where they do.

    On any machine: sums of integers have the same bits in any order.
    """
    if values.numel() == 1 or bool((values == values[0]).all()):
        return values[:1]
    # -0 and 0 are one number, all NaN another.
    bits = (values + 0.0).nan_to_num(nan=-1.0, posinf=math.inf, neginf=-math.inf).view(torch.int64)
    places = torch.arange(1, 2 * len(bits), 2, device=bits.device)
    return -1 - ((bits * places).sum(0, keepdim=True) >> 11).abs().to(values.dtype)


def name_of_dtype(code: float) -> str:
    """A dtype of scores by its number; a rank of another call may have sent anything."""
    whole = code % SMALLEST
    return _CODES.get(int(whole), f"number {code}") if whole == whole // 1 else f"number {code}"


def raise_for_difference(what: str, values: list[str], where: str = "") -> None:
    """An error that says which ranks differ from most."""
    if len(set(values)) < 2:
        return
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    said = ", ".join(f"{value} on {_ranks(of)}" for value, of in ranks.items())
    raise ValueError(f"{what} must be the same on all ranks of group, got {said}{where}")


def _ranks(numbers: list[int]) -> str:
    shown = ", ".join(str(one) for one in numbers[:8])
    more = f" and {len(numbers) - 8} more" if len(numbers) > 8 else ""
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}{more}"
