"""What looks at the numbers of all ranks, where a caller asks for it: see ``_values.py``.

Whatever is found is found on every rank, from the same gathered numbers, so that all of them raise
the same error.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import _collectives
from ._autograd import is_plain
from ._ops import LOOKS_AT_NUMBERS, NAMESPACE
from ._sharded_header import name_of_dtype, raise_for_difference
from ._values import limited, raise_for_budgets, valid_counts
from .backends.common import DTYPES, OUTPUTS, has_nan, row_dtype

#: What all ranks must have in common, and what an error calls it. The values are whole numbers.
_COMMON = (
    "dtype of scores",
    "number of rows",
    "function",
    "largest",
    "clamp",
)


def check_values(
    scores: Tensor,
    budget: Tensor,
    temperature: Tensor,
    mask: Tensor | None,
    largest: bool,
    output: str,
    clamp: bool,
    group: str,
) -> Tensor:
    """``validate=True``: the budget again, or an error, the same on all ranks."""
    given = (scores, budget.detach(), temperature, mask, largest, output, clamp, group)
    if is_plain(scores):
        _raise_for_values(*given)
        return budget
    return budget + torch.ops.fast_lapsum.check_sharded_values(*given)  # type: ignore[no-any-return]


def limit_budget(
    scores: Tensor, budget: Tensor, mask: Tensor | None, largest: bool, hard: bool, group: str
) -> Tensor:
    """``clamp=True``: at most the number of valid scores on all ranks."""
    counts = valid_counts(scores, mask, largest).to(row_dtype(scores))
    return limited(budget, _collectives.gather(counts, group).sum(0), hard)


def _raise_for_values(
    scores: Tensor,
    k: Tensor,
    t: Tensor,
    mask: Tensor | None,
    largest: bool,
    output: str,
    clamp: bool,
    group: str,
) -> None:
    own = (DTYPES[scores.dtype], k.numel(), OUTPUTS[output], largest, clamp)
    everyone = _collectives.gather(k.new_tensor(own), group).tolist()
    for column, what in enumerate(_COMMON):
        raise_for_difference(what, [_shown(what, one[column]) for one in everyone])
    if k.numel() == 0:
        return
    counts = valid_counts(scores, mask, largest)
    columns = (
        k,
        t,
        counts.to(k.dtype),
        has_nan(scores, mask).to(k.dtype),
        0 * k + scores.shape[-1],
    )
    found = _collectives.gather(torch.stack(columns, -1), group)
    for column, name in enumerate(("k", "temperature")):
        values = found[..., column]
        differs = ((values != values[0]) & ~(values.isnan() & values[0].isnan())).any(0)
        if bool(differs.any()):
            where = tuple(int(i) for i in differs.nonzero()[0])
            row = f" in row {where}" if where else ""
            ranks = [f"{one[where].item():.17g}" for one in values]
            raise_for_difference(name, ranks, row)
    totals = found[..., 2:].sum(0)
    counts = torch.where(totals[..., 1] > 0, totals[..., 2], totals[..., 0])
    raise_for_budgets(k, t, counts, scores.dtype, output == "hard", clamp)


def _shown(what: str, number: float) -> str:
    whole = int(number)
    if what == "dtype of scores":
        return name_of_dtype(whole)
    if what == "function":
        return next(repr(x) for x, code in OUTPUTS.items() if code == whole)
    return str(bool(whole)) if what in ("largest", "clamp") else str(whole)


torch.library.define(
    f"{NAMESPACE}::check_sharded_values",
    "(Tensor scores, Tensor budget, Tensor temperature, Tensor? mask, bool largest, str output,"
    " bool clamp, str group) -> Tensor",
    tags=LOOKS_AT_NUMBERS,
)


@torch.library.impl(f"{NAMESPACE}::check_sharded_values", "default")
def _(
    scores: Tensor,
    budget: Tensor,
    temperature: Tensor,
    mask: Tensor | None,
    largest: bool,
    output: str,
    clamp: bool,
    group: str,
) -> Tensor:
    _raise_for_values(scores, budget, temperature, mask, largest, output, clamp, group)
    return scores.new_zeros((), dtype=row_dtype(scores))


@torch.library.register_fake(f"{NAMESPACE}::check_sharded_values")  # type: ignore[untyped-decorator]
def _(
    scores: Tensor,
    budget: Tensor,
    temperature: Tensor,
    mask: Tensor | None,
    largest: bool,
    output: str,
    clamp: bool,
    group: str,
) -> Tensor:
    return scores.new_empty((), dtype=row_dtype(scores))
