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
    # Filled in one by one: a list would be copied from the host.
    numbers = [budget.new_full((1,), number) for number in own]
    if rows.looks:
        numbers += [_digest(values) for values in (budget, temperature)]
    else:
        numbers.append(budget.new_zeros(HEADER - len(own)))
    return torch.cat(numbers)


def check_headers(gathered: Tensor) -> None:
    """Raise where the first messages [ranks, m] are not of one call."""
    said = gathered[:, : HEADER * torch.float64.itemsize].flatten().clone()
    found = said.view(torch.float64).view(-1, HEADER).tolist()
    raise_for_difference("largest", [str(one[DTYPE] < SMALLEST) for one in found])
    raise_for_difference("dtype of scores", [name_of_dtype(one[DTYPE]) for one in found])
    raise_for_difference("number of rows", [f"{one[ROWS]:.17g}" for one in found])
    for column, name in ((BUDGETS, "k"), (TEMPERATURES, "temperature")):
        values = [f"{one[column]:.17g}" for one in found]
        if found[0][ROWS] > 1 and len(set(values)) > 1:
            values = ["some" if one == values[0] else "others" for one in values]
            raise_for_difference(name, values, "; validate=True says in which row")
        raise_for_difference(name, values)


def _digest(values: Tensor) -> Tensor:
    """One value as it is; of several a number that differs where they do, on any machine."""
    if values.numel() == 1:
        return values
    # Sums of integers have the same bits in any order. -0 and 0 are one number, all NaN another.
    bits = (values + 0.0).nan_to_num(nan=-1.0, posinf=math.inf, neginf=-math.inf).view(torch.int64)
    places = torch.arange(1, 2 * len(bits), 2)
    return ((bits * places).sum(0, keepdim=True) >> 11).to(values.dtype)


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
