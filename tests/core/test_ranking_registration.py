"""The operators of ranks and sorts as torch.library, FakeTensor and torch.compile see them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

from cases import normal
from fast_lapsum import soft_argsort, soft_quantile, soft_rank, soft_sort

OPERATORS = torch.ops.fast_lapsum
#: What opcheck looks at; autograd is registered outside of the operators.
CHECKS = ("test_schema", "test_faketensor")


def _scores(kind: str) -> Tensor:
    wide = normal(3, 10)
    return {
        "plain": wide.float(),
        "double": wide,
        "half": wide.bfloat16(),
        "transposed": normal(10, 3).mT,
        "one row": wide[0],
        "no rows": wide[:0],
        "no scores": wide[:, :0],
    }[kind]


@pytest.mark.parametrize(
    ("kind", "descending"),
    [
        *(("plain", False), ("plain", True), ("double", False), ("half", False)),
        *(("transposed", False), ("one row", True), ("no rows", False), ("no scores", False)),
    ],
)
def test_opcheck(kind: str, descending: bool) -> None:
    scores = _scores(kind)
    rows = torch.full(scores.shape[:-1], 0.5, dtype=torch.float64)
    t = (None, 0.5) if kind == "plain" else (rows, 0.0)
    mask = torch.ones(scores.shape, dtype=torch.bool) if kind == "double" else None
    given = (scores, *t, mask, descending)
    opcheck(OPERATORS.soft_rank.default, given, test_utils=CHECKS)
    ranks, ordered, order = OPERATORS.soft_rank(*given)
    given = (ranks, ordered, order, *t, mask, descending)
    opcheck(OPERATORS.soft_rank_backward.default, given, test_utils=CHECKS)
    for masses in (None, torch.tensor([0.5, 2.0], dtype=torch.float64)):
        given = (scores, *t, masses, descending)
        opcheck(OPERATORS.soft_thresholds.default, given, test_utils=CHECKS)
        b, *kept = OPERATORS.soft_thresholds(*given)
        given = (b, *kept, *t, descending)
        opcheck(OPERATORS.soft_thresholds_backward.default, given, test_utils=CHECKS)
    gaps = torch.rand(3, 9, dtype=torch.float64)
    given = (gaps, normal(3, 2, 10), descending)
    opcheck(OPERATORS.decayed_sums.default, given, test_utils=CHECKS)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(
    "function",
    [
        soft_rank,
        lambda r, t: soft_rank(r, t, mask=r > -1, dim=0).nan_to_num(),
        soft_sort,
        lambda r, t: soft_quantile(r, 0.3, t),
        lambda r, t: soft_argsort(r, t).apply(r),
    ],
    ids=["rank", "masked rank", "sort", "quantile", "apply"],
)
def test_compiled_is_eager(function: Callable[..., Tensor]) -> None:
    """fullgraph=True: the same values and gradients, with a number and with a tensor for t."""
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    scores = normal(4, 6, dtype=torch.float32).requires_grad_()
    learned = torch.tensor(0.4, requires_grad=True)
    for t in (0.5, learned):
        found, wanted = compiled(scores, t), function(scores, t)
        torch.testing.assert_close(found, wanted)
        leaves = [scores] if isinstance(t, float) else [scores, t]
        weights = normal(*wanted.shape, seed=2, dtype=torch.float32)
        got = torch.autograd.grad(found, leaves, weights)
        torch.testing.assert_close(got, torch.autograd.grad(wanted, leaves, weights))


@pytest.mark.usefixtures("fresh_compiler")
def test_a_falling_temperature_needs_no_new_graph() -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(soft_rank, fullgraph=True, dynamic=True, backend=backend)
    scores = normal(3, 7, dtype=torch.float32)
    for t in (0.9, 0.8, 0.7, 0.6):
        torch.testing.assert_close(compiled(scores, t), soft_rank(scores, t))
    assert len(graphs) <= 2
