"""A slice of the hunt for every function, and that wrong ones are told."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import nan
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import num_threads
from fast_lapsum.selection import Selection
from hunting import functions, ragged
from hunting.plan import Size, specs
from hunting.rows import Batch, make
from hunting.worker import Done, Job, work

CPU = torch.device("cpu")


def hunted(function: str, rows: int, dtypes: tuple[str, ...]) -> list[Done]:
    job = Job("cpu", "auto", 1, 10, function)
    with num_threads(1):
        return list(work(job, specs(4, Size(rows, 0, 1 << 15, dtypes))))


@pytest.mark.parametrize("function", functions.JUDGES)
def test_a_slice_of_the_hunt_finds_nothing(function: str) -> None:
    found = hunted(function, 800, ("float32", "float64", "bfloat16"))
    assert sum(done.sampled for done in found) > 20 or function == "sample"
    assert not [row.entry for done in found for row in done.found]
    assert not any(done.wrong for done in found)


#: What is done to a right answer, in a way that a glance would not tell.
SPOILED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "hard": ("hard_topk_mask", lambda mask: mask.flip(-1)),
    "log": ("log_soft_topk", lambda log_p: log_p * (1 + 1e-4)),
    "threshold": ("threshold", lambda b: b + 1e-3),
    "sample": ("sample_topk", lambda mask: mask.roll(1, -1)),
    "select": (
        "select_topk",
        lambda chosen: Selection(chosen.indices, chosen.weights * (1 - 1e-4)),
    ),
}


def _normal_rows(rows: int) -> Batch:
    spec = next(x for x in specs(2, Size(300, 0, 1 << 15, ("float32",))) if x.n == 100)
    return make(spec._replace(kind="normal", call="per row", rows=rows), CPU)


def _called(function: str) -> str:
    """What a way to the mask calls."""
    return {"list": "soft_topk_list", "ranks": "soft_topk_over_ranks"}.get(function, "soft_topk")


def _one_of(found: Tensor | list[Tensor], change: Callable[[Tensor], Tensor]) -> Any:
    """What was found, the last of its tensors changed."""
    return change(found) if isinstance(found, Tensor) else [*found[:-1], change(found[-1])]


@pytest.mark.parametrize("function", ragged.MASKS)
def test_a_wrong_mask_is_told(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets that are off by a thousandth, in every row and however the mask is asked for."""
    name = _called(function)
    right = getattr(ragged, name)
    batch = _normal_rows(40)
    assert not functions.judge_function(function, batch).wrong.any()
    wrong = lambda x, k, *a, **b: right(x, 0.999 * k, *a, **b)  # noqa: E731
    monkeypatch.setattr(ragged, name, wrong)
    verdict = functions.judge_function(function, batch._replace(k=30.0, temperature=0.5))
    assert verdict.wrong.all()


#: What is wrong with a call, and what is said of it.
DEFECTS: dict[str, tuple[Callable[..., Any], str]] = {
    "budget": (lambda call, x, k, *a, **b: call(x, 0.999 * k, *a, **b), "mask: "),
    "gradient": (
        lambda call, *a, **b: _one_of(
            call(*a, **b), lambda p: p.detach() + 0.999 * (p - p.detach())
        ),
        "d scores: ",
    ),
    "NaN": (
        lambda call, *a, **b: _one_of(call(*a, **b), lambda p: p + torch.full_like(p, nan)),
        "mask: NaN in the wrong places",
    ),
}


@pytest.mark.parametrize("function", ragged.MASKS)
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_mask_that_is_not_the_reference_s_is_told(
    function: str, defect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where the plain call has the same defect."""
    spoil, said = DEFECTS[defect]
    batch = _normal_rows(1)._replace(k=torch.tensor([30.0]), temperature=torch.tensor([0.5]))
    assert not functions.function_against_reference(function, batch)
    for module, name in ((ragged, _called(function)), (functions, "soft_topk")):
        monkeypatch.setattr(module, name, partial(spoil, getattr(module, name)))
    told = functions.function_against_reference(function, batch)
    assert [text for text in told if text.startswith(said)], told


def test_a_row_with_a_nan_is_nan_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = _normal_rows(2)
    batch.scores[0, 7] = nan
    assert not functions.judge_function("list", batch).wrong.any()
    right = ragged.soft_topk_list
    # The first of four tensors holds the NaN, and the last is given numbers.
    spoil = lambda *a, **b: _one_of(right(*a, **b), lambda p: p.nan_to_num(nan=0.5))  # noqa: E731
    monkeypatch.setattr(ragged, "soft_topk_list", spoil)
    assert functions.judge_function("list", batch).wrong.tolist() == [True, False]
    assert functions.function_against_reference("list", batch.row(0))
    assert not functions.function_against_reference("list", batch.row(1))


@pytest.mark.parametrize("function", SPOILED)
def test_wrong_answers_are_told(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, spoil = SPOILED[function]
    right = getattr(functions, name)
    told = total = 0
    for spec in specs(2, Size(300, 0, 1 << 15, ("float32", "float64"))):
        if spec.n < 8 or spec.call == "infinities" or spec.kind == "constant":
            continue
        batch = functions.prepared(function, make(spec, CPU))
        some = (torch.as_tensor(batch.k) >= 1) & (torch.as_tensor(batch.k) <= spec.n // 2)
        some = some & (torch.as_tensor(batch.temperature) > 1e-3)
        some = some & (torch.as_tensor(batch.temperature) < 10)
        with monkeypatch.context() as patched:
            patched.setattr(functions, name, lambda *a, **b: spoil(right(*a, **b)))
            wrong = functions.judge_function(function, batch).wrong
        told += int((wrong & some).sum())
        total += int(some.expand(wrong.shape).sum())
    assert total > 60
    assert told >= 0.6 * total
