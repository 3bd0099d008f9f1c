"""Rows of several lengths: every backend against reference.py, and the public functions."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import fast_lapsum
from cases import DTYPES, FULL_DTYPES, normal, num_threads
from fast_lapsum import log_soft_topk, reference, select_topk, soft_topk, threshold
from fast_lapsum.backends.cpu import ragged_entry as cpu
from fast_lapsum.backends.torch import ragged_entry as plain
from ragged_cases import (
    check,
    check_one_for_all,
    corners_of_all_kinds,
    distributions_of_all_kinds,
    join,
    lengths_of_all_kinds,
)

inf, nan = math.inf, math.nan
BACKENDS = {"kernel": cpu, "plain torch": plain}
#: Around the widths of vectors and tiles, and rows that are read by a sample.
LENGTHS = (3, 0, 1, 16, 17, 33, 64, 250, 255, 256, 257, 500, 512, 513, 1030, 9000, 0)
OFFSETS = torch.tensor([2, 7, 7, 15, 18])
FROM_0 = torch.tensor([0, 7, 7, 15, 18])
f64: Any = {"dtype": torch.float64}


@pytest.fixture(params=BACKENDS)
def entry(request: pytest.FixtureRequest) -> Any:
    return BACKENDS[request.param]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lengths_of_all_kinds(entry: Any, dtype: torch.dtype) -> None:
    given = lengths_of_all_kinds(dtype, LENGTHS)
    check(entry.ragged_forward, entry.ragged_backward, given, offsets_dtype=torch.int32)


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
def test_any_distribution_budget_and_temperature(entry: Any, dtype: torch.dtype) -> None:
    given = distributions_of_all_kinds(dtype, (2, 67, 1025))
    check(entry.ragged_forward, entry.ragged_backward, given)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_corners(entry: Any, dtype: torch.dtype) -> None:
    """NaN, infinities, budgets and temperatures without an answer, ties, nothing and all."""
    check(entry.ragged_forward, entry.ragged_backward, corners_of_all_kinds(dtype, (8, 30), 1))


def test_masks_and_the_smallest(entry: Any) -> None:
    given = lengths_of_all_kinds(torch.float32, LENGTHS)
    mask = normal(len(given.values), seed=4) > -0.5
    counts = torch.stack([row.sum() for row in given.rows(mask)])
    given = given._replace(k=0.4 * counts)
    check(entry.ragged_forward, entry.ragged_backward, given, mask=mask, largest=False)


def test_several_threads_and_no_others_give_the_same_bits() -> None:
    """Long segments are shared by threads, others are side by side."""
    given = lengths_of_all_kinds(torch.float32, (300_000, 40, 140_000, 5000, 700, 0, 12))
    found = []
    for threads in (1, 2):
        with num_threads(threads):
            found.append(soft_topk(given.values, given.k, given.t, cu_seqlens=given.offsets))
    assert torch.equal(*found)
    for i, row in enumerate(given.rows(given.values)):
        if len(row) > 512:  # and those of the row by itself
            alone = soft_topk(row, given.k[i], given.t[i])
            assert torch.equal(given.rows(found[0])[i], alone)


def test_values_with_a_stride(entry: Any) -> None:
    given = lengths_of_all_kinds(torch.float32, (5, 40, 600))
    wide = given.values.repeat_interleave(3)[1::3]
    assert wide.stride() == (3,)
    check(entry.ragged_forward, entry.ragged_backward, given._replace(values=wide))


@pytest.mark.parametrize("what", ["grad", "mask", "scores"])
def test_one_number_for_all_scores(entry: Any, what: str) -> None:
    check_one_for_all(entry.ragged_forward, entry.ragged_backward, what)


# the other functions


def _rows(x: Tensor) -> list[Tensor]:
    return [x[a:b] for a, b in itertools.pairwise(OFFSETS)]


@pytest.mark.parametrize("solver", ["auto", "two_exponential", "bisect"])
def test_each_function_is_that_of_the_rows(solver: Any) -> None:
    values, k = normal(20), torch.tensor([2.0, 0.0, 3.0, 1.0], **f64)
    given: Any = {"cu_seqlens": OFFSETS, "solver": solver}
    p, b = soft_topk(values, k, 0.3, return_threshold=True, **given)
    hard, boundary = soft_topk(values, k, 0.3, hard=True, return_threshold=True, **given)
    log_p = log_soft_topk(values, k, 0.3, **given)
    at = threshold(values, k, 0.3, **given)
    torch.testing.assert_close(at, b)
    for i, row in enumerate(_rows(values)):
        torch.testing.assert_close(_rows(p)[i], soft_topk(row, k[i], 0.3))
        torch.testing.assert_close(_rows(log_p)[i], log_soft_topk(row, k[i], 0.3))
        torch.testing.assert_close(b[i], threshold(row, k[i], 0.3))
        assert torch.equal(_rows(hard)[i], reference.hard_row(row, float(k[i])))
        assert float(boundary[i]) == reference.boundary_row(row, float(k[i]))
    outside = torch.tensor([0, 1, 18, 19])
    assert (p[outside] == 0).all()
    assert (hard[outside] == 0).all()
    assert (log_p[outside] == -inf).all()


@pytest.mark.parametrize("function", [soft_topk, log_soft_topk, threshold])
@pytest.mark.parametrize("way", ["offsets", "lengths"])
def test_gradients_of_any_order(function: Any, way: str) -> None:
    t = torch.tensor([0.5, 1.0, 0.7, 0.3], requires_grad=True, **f64)
    if way == "offsets":
        scores = normal(20).requires_grad_()
        k = torch.tensor([2.2, 0.0, 3.1, 1.0], requires_grad=True, **f64)
        given: Any = {"cu_seqlens": OFFSETS}
    else:
        scores = normal(4, 5).requires_grad_()
        k = torch.tensor([1.2, 0.7, 2.1, 1.4], requires_grad=True, **f64)
        given = {"lengths": torch.tensor([5, 2, 4, 3])}
    leave = k.detach() == 0  # where b is at infinity

    def call(scores: Tensor, k: Tensor, t: Tensor) -> Tensor:
        out = function(scores, k.masked_fill(leave, 0.0), t, **given)
        return torch.where(out.isfinite() & (out.abs() < 100), out, 0.0)  # type: ignore[no-any-return]

    assert torch.autograd.gradcheck(call, (scores, k, t))
    assert torch.autograd.gradgradcheck(call, (scores, k, t))
    assert torch.autograd.gradcheck(
        call, (scores, k, t), check_forward_ad=True, check_backward_ad=False
    )


def test_a_segment_longer_than_was_said_is_nan_in_derivatives() -> None:
    """Never cut to that length: the other way is to be right, as the plain call is on a CPU."""
    values, weights = normal(12), normal(12, seed=1)

    def call(given: Tensor, longest: int) -> Tensor:
        return soft_topk(given, 1, 0.5, cu_seqlens=torch.tensor([0, 8, 10]), max_seqlen=longest)

    wanted = call(values, 8)
    torch.testing.assert_close(call(values, 4), wanted)
    mapped, _ = torch.func.jvp(lambda given: call(given, 4), (values,), (weights,))
    assert mapped[:8].isnan().all()
    torch.testing.assert_close(mapped[8:], wanted[8:])
    values.requires_grad_()
    (right,) = torch.autograd.grad((call(values, 8) * weights).sum(), values)
    (found,) = torch.autograd.grad((call(values, 4) * weights).sum(), values, create_graph=True)
    assert found[:8].isnan().all()
    torch.testing.assert_close(found[8:], right[8:])


def test_vmap_over_budgets() -> None:
    values = normal(20)
    budgets = torch.tensor([[2.0, 0.0, 3.0, 1.0], [1.0, 0.0, 5.5, 2.0]], **f64)

    def call(k: Tensor) -> Tensor:
        return soft_topk(values, k, 0.3, cu_seqlens=OFFSETS)

    torch.testing.assert_close(torch.vmap(call)(budgets), torch.stack([call(k) for k in budgets]))


@pytest.mark.parametrize("dim", [-1, 0, 1])
def test_padded_rows_of_any_dimension(dim: int) -> None:
    """What is in the padding has no part, and no gradient."""
    rows = normal(2, 3, 40)
    lengths = torch.tensor([[40, 7, 0], [1, 23, 39]], dtype=torch.int32)
    k = 0.4 * lengths
    padding = torch.arange(40) >= lengths[..., None]
    scores = rows.masked_fill(padding, nan).movedim(-1, dim).requires_grad_()
    p, b = soft_topk(scores, k, 0.3, lengths=lengths, dim=dim, return_threshold=True)
    want = soft_topk(rows, k, 0.3, mask=~padding)
    torch.testing.assert_close(p.movedim(dim, -1), want)
    (grad,) = torch.autograd.grad(p.square().sum(), scores)
    assert (grad.movedim(dim, -1)[padding] == 0).all()
    assert grad.isfinite().all()
    torch.testing.assert_close(b, threshold(rows, k, 0.3, mask=~padding))
    hard = soft_topk(scores, k.floor(), lengths=lengths, dim=dim, hard=True)
    assert torch.equal(hard.sum(dim), k.floor().to(hard.dtype))
    logs = log_soft_topk(scores, k, 0.3, lengths=lengths, dim=dim)
    assert (logs.movedim(dim, -1)[padding] == -inf).all()


def test_a_row_without_an_answer_has_zeros_in_its_padding() -> None:
    scores = torch.tensor([[1.0, nan, 2.0, 0.0]])
    for solver in ("auto", "two_exponential"):
        p = soft_topk(scores, 1, lengths=torch.tensor([3]), solver=solver)  # type: ignore[arg-type]
        assert p.isnan().tolist() == [[True, True, True, False]]
        assert float(p[0, 3]) == 0


@pytest.mark.parametrize("dim", [0, 1])
def test_selections_with_lengths(dim: int) -> None:
    scores, lengths = normal(3, 9).movedim(1, dim), torch.tensor([9, 2, 5])
    chosen = select_topk(scores, 3, 0.5, lengths=lengths, dim=dim, sorted=True)
    for i, n in enumerate(lengths.tolist()):
        row = scores.movedim(dim, 1)[i, :n]
        indices, weights = reference.select_row(row, 3, 0.5, is_sorted=True)
        assert torch.equal(chosen.indices.movedim(dim, 1)[i], indices)
        torch.testing.assert_close(chosen.weights.movedim(dim, 1)[i], weights)


# nested tensors


def _nested(*rows: Tensor) -> Tensor:
    return torch.nested.nested_tensor(list(rows), layout=torch.jagged)


def test_nested_tensors_in_and_out() -> None:
    rows = [normal(n, seed=n) for n in (5, 1, 9)]
    k = torch.tensor([2.0, 0.5, 3.0], requires_grad=True, **f64)
    scores = _nested(*rows).requires_grad_()
    p = soft_topk(scores, k, 0.3)
    assert p.is_nested
    assert p.layout == torch.jagged
    for got, row, budget in zip(p.unbind(), rows, k.tolist(), strict=True):
        torch.testing.assert_close(got, soft_topk(row, budget, 0.3))
    p.values().square().sum().backward()
    assert scores.grad is not None
    assert scores.grad.is_nested
    for got, row, budget in zip(scores.grad.unbind(), rows, k.tolist(), strict=True):
        leaf = row.clone().requires_grad_()
        soft_topk(leaf, budget, 0.3).square().sum().backward()
        torch.testing.assert_close(got, leaf.grad)
    assert k.grad is not None
    assert threshold(scores, k, 0.3).shape == (3,)
    assert log_soft_topk(scores, k).is_nested


def test_hard_masks_of_nested_tensors() -> None:
    """Exactly k ones in each row, the earliest of tied scores first, with the soft gradients."""
    rows = [normal(5, seed=5), normal(1, seed=1), (2 * normal(9, seed=9)).round(), normal(0)]
    k = torch.tensor([2.0, 0.0, 4.0, 0.0], requires_grad=True, **f64)
    scores = _nested(*rows).requires_grad_()
    hard, boundary = soft_topk(scores, k, 0.3, hard=True, return_threshold=True)
    soft = soft_topk(scores, k, 0.3)
    assert hard.is_nested
    assert hard.layout == torch.jagged
    assert torch.equal(hard.offsets(), scores.offsets())
    pairs = list(zip(rows, k.tolist(), strict=True))
    for got, (row, budget) in zip(hard.unbind(), pairs, strict=True):
        assert torch.equal(got, reference.hard_row(row, budget))
    best_left_out = torch.tensor([reference.boundary_row(*pair) for pair in pairs], **f64)
    torch.testing.assert_close(boundary, best_left_out, equal_nan=True)
    weights = normal(15, seed=15)
    found, same = (
        torch.autograd.grad((x.values() * weights).sum(), (scores, k)) for x in (hard, soft)
    )
    assert torch.equal(found[0].values(), same[0].values())
    assert torch.equal(found[1], same[1])


def test_hard_masks_of_nested_tensors_with_masks_and_holes() -> None:
    base = normal(3, 10)
    starts, lengths = torch.tensor([1, 0, 4]), torch.tensor([4, 10, 0])
    scores = torch.nested.narrow(base, 1, starts, lengths, layout=torch.jagged)
    hard = soft_topk(scores, torch.tensor([2, 3, 0]), 0.3, hard=True, largest=False)
    for i, got in enumerate(hard.unbind()):
        row = base[i, starts[i] : starts[i] + lengths[i]]
        assert torch.equal(got, reference.hard_row(-row, (2.0, 3.0, 0.0)[i]))
    assert float(hard.values().sum()) == 5  # nothing in the holes
    rows = [normal(5, seed=5), normal(9, seed=9)]
    keep = [row < 0.5 for row in rows]
    hard = soft_topk(_nested(*rows), 2, 0.3, hard=True, mask=_nested(*keep))
    for got, row, kept in zip(hard.unbind(), rows, keep, strict=True):
        assert torch.equal(got, reference.hard_row(row.masked_fill(~kept, -inf), 2.0))


def test_nested_tensors_with_holes() -> None:
    """A narrowed one has values that belong to no row."""
    base = normal(3, 10)
    starts, lengths = torch.tensor([1, 0, 4]), torch.tensor([4, 10, 0])
    scores = torch.nested.narrow(base, 1, starts, lengths, layout=torch.jagged)
    p = soft_topk(scores, torch.tensor([2, 3, 0]), 0.3)
    for i, got in enumerate(p.unbind()):
        row = base[i, starts[i] : starts[i] + lengths[i]]
        torch.testing.assert_close(got, soft_topk(row, (2, 3, 0)[i], 0.3))
    assert abs(float(p.values().sum()) - 5) < 1e-12  # nothing in the holes


# graphs


def _call(values: Tensor, offsets: Tensor, k: Tensor, t: float) -> Tensor:
    return soft_topk(values, k, t, cu_seqlens=offsets, validate=True).square().sum()


def test_compiled_whole_with_gradients() -> None:
    compiled = torch.compile(_call, fullgraph=True, backend="aot_eager", dynamic=True)
    for ends in (FROM_0, torch.tensor([0, 3, 8, 8, 20])):
        leaves = [normal(20).requires_grad_(), torch.tensor([2.0, 0, 0, 1.0]).requires_grad_()]
        same = [x.detach().clone().requires_grad_() for x in leaves]
        compiled(leaves[0], ends, leaves[1], 0.3).backward()
        _call(same[0], ends, same[1], 0.3).backward()
        for got, want in zip(leaves, same, strict=True):
            torch.testing.assert_close(got.grad, want.grad)


def test_operators_are_registered_well() -> None:
    values, k = normal(20, dtype=torch.float32), torch.tensor([2.0, 0, 3.0, 1.0], **f64)
    rows: Any = (values, OFFSETS, None, None)
    call: Any = (*rows, k, 0.0, None, 0.5, None, None, True, "mask", torch.float32, "auto")
    torch.library.opcheck(torch.ops.fast_lapsum.ragged_topk.default, call)
    pairs = torch.ops.fast_lapsum.ragged_topk(*call)[1]
    back: Any = (values, *rows, None, 0.5, None, pairs, True, "mask", True)
    torch.library.opcheck(torch.ops.fast_lapsum.ragged_topk_backward.default, back)
    padded: Any = (normal(2, 5), None, torch.tensor([5, 2]), None)
    call = (*padded, None, 1.5, None, 0.5, None, None, True, "log", torch.float64, "auto")
    torch.library.opcheck(torch.ops.fast_lapsum.ragged_topk.default, call)
    check_call: Any = (*rows, k, k.clamp(min=1), None, True, False, False, False)
    torch.library.opcheck(torch.ops.fast_lapsum.check_ragged_values.default, check_call)


# what is not as it should be


@pytest.mark.parametrize(
    ("offsets", "says"),
    [
        ([0, 5, 3, 8], r"cu_seqlens must not fall, got cu_seqlens\[1\]=5 and cu_seqlens\[2\]=3"),
        ([-1, 5, 8], r"cu_seqlens must lie in \[0, 8\] for 8 scores, got cu_seqlens\[0\]=-1"),
        ([0, 5, 9], r"cu_seqlens must lie in \[0, 8\] for 8 scores, got cu_seqlens\[2\]=9"),
        ([3, 5, 8], r"cu_seqlens must begin at 0, got cu_seqlens\[0\]=3: .* lengths 4 and 6"),
    ],
)
@pytest.mark.parametrize("solver", ["auto", "two_exponential"])
def test_bad_offsets(offsets: list[int], says: str, solver: Any) -> None:
    """An error where it is asked for; without, offsets are clamped, and nothing else is read."""
    values, ends = normal(8), torch.tensor(offsets)
    with pytest.raises(ValueError, match=says):
        soft_topk(values, 0, cu_seqlens=ends, validate=True)
    k = torch.zeros(len(offsets) - 1)
    k[0] = 1.0
    p = soft_topk(values, k, cu_seqlens=ends, solver=solver)
    assert ((p >= 0) & (p <= 1)).all()
    if offsets[1] <= offsets[2]:  # else two segments claim the same places
        torch.testing.assert_close(p[:5].sum(), torch.tensor(1.0, **f64))


def test_lengths_of_rows_are_clamped_to_them() -> None:
    scores, k = normal(3, 100), 5
    p = soft_topk(scores, k, lengths=torch.tensor([400, 50, -1]), clamp=True)
    torch.testing.assert_close(p[0], soft_topk(scores[0], k))
    assert p.sum(-1).tolist() == pytest.approx([5, 5, 0])


def test_a_nested_tensor_may_begin_anywhere() -> None:
    """Its offsets are its own, and nobody takes them for lengths."""
    values = normal(9)
    scores = torch.nested.nested_tensor_from_jagged(values, torch.tensor([2, 5, 9]))
    p = soft_topk(scores, torch.tensor([1.0, 2.0]), validate=True).values()
    torch.testing.assert_close(p[2:5], soft_topk(values[2:5], 1))
    torch.testing.assert_close(p[5:], soft_topk(values[5:], 2))


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"cu_seqlens": [0, 4]}, TypeError, "cu_seqlens must be a torch.Tensor, got list"),
        ({"cu_seqlens": torch.zeros(2)}, TypeError, "cu_seqlens must be int32 or int64, got fl"),
        ({"cu_seqlens": torch.tensor([], dtype=torch.int64)}, ValueError, "of one entry more"),
        ({"cu_seqlens": torch.tensor([[0, 4]])}, ValueError, r"cu_seqlens must have one dim"),
        ({"cu_seqlens": OFFSETS, "dim": 1}, ValueError, "dim must lie in|dim must be left out"),
        ({"max_seqlen": 3}, ValueError, "max_seqlen goes with cu_seqlens, got max_seqlen=3 alone"),
        ({"cu_seqlens": OFFSETS, "max_seqlen": -1}, ValueError, "max_seqlen must be at least 0"),
        ({"cu_seqlens": OFFSETS, "max_seqlen": 2.5}, TypeError, "max_seqlen must be a whole num"),
        ({"cu_seqlens": FROM_0, "max_seqlen": 2, "validate": True}, ValueError, "at least 8, th"),
        ({"cu_seqlens": OFFSETS, "lengths": OFFSETS}, ValueError, "lengths must be left out"),
        ({"lengths": torch.tensor([1, 2])}, ValueError, r"lengths must broadcast .* got shape"),
        ({"lengths": torch.tensor(21), "validate": True}, ValueError, r"lengths=21"),
        ({"lengths": torch.tensor(1.0)}, TypeError, "lengths must be int32 or int64, got float32"),
        ({"cu_seqlens": OFFSETS, "k": torch.ones(3)}, ValueError, r"one per segment.* \(4,\), got"),
        ({"cu_seqlens": OFFSETS, "temperature": torch.ones(3)}, ValueError, "ture .*per segment"),
        ({"cu_seqlens": OFFSETS, "warm_start": torch.ones(3)}, ValueError, "start .*per segment"),
        ({"cu_seqlens": OFFSETS, "k": 30}, ValueError, r"in \[0, 20\] for 20 scores in all"),
        ({"lengths": torch.tensor(3), "k": torch.ones(3)}, ValueError, r"without dim, \(\), got"),
        ({"lengths": torch.tensor(3), "k": 30}, ValueError, r"\[0, 20\] for 20 scores per row"),
        ({"cu_seqlens": OFFSETS, "k": 1}, ValueError, "k must be at most 0, .* in segment 1"),
        ({"lengths": torch.tensor(3), "k": 4}, ValueError, "k must be at most 3, the number"),
    ],
)
def test_errors_name_the_argument(given: dict[str, Any], error: type[Exception], says: str) -> None:
    for solver in ("auto", "two_exponential"):
        with pytest.raises(error, match=says):
            soft_topk(normal(20), **({"k": 0, "solver": solver} | given))


def test_a_nested_tensor_has_one_budget_per_row() -> None:
    scores = torch.nested.nested_tensor([normal(4), normal(2)], layout=torch.jagged)
    with pytest.raises(ValueError, match=r"one per row of the nested tensor.* \(2,\), got .*3"):
        soft_topk(scores, torch.ones(3))


def test_two_dimensions_have_no_offsets() -> None:
    with pytest.raises(ValueError, match=r"scores must have one dimension with cu_seqlens"):
        soft_topk(normal(4, 5), 1, cu_seqlens=OFFSETS)


def test_clamped_budgets_take_short_segments_whole() -> None:
    values = normal(20).index_fill(0, torch.tensor([3]), -inf)
    k = torch.full((4,), 4.5, requires_grad=True, **f64)
    p = soft_topk(values, k, 0.3, cu_seqlens=OFFSETS, clamp=True)
    sums = torch.stack([row.sum() for row in _rows(p)])
    torch.testing.assert_close(sums, torch.tensor([4.0, 0.0, 4.5, 3.0], **f64))
    (grad,) = torch.autograd.grad(p.square().sum(), k)
    assert (grad != 0).tolist() == [False, False, True, False]


def test_nothing_at_all() -> None:
    none = torch.zeros(1, dtype=torch.int64)
    for values in (normal(0), normal(7)):
        for solver in ("auto", "two_exponential"):
            p = soft_topk(values, 0, cu_seqlens=none, solver=solver)  # type: ignore[arg-type]
            assert torch.equal(p, torch.zeros_like(values))
    assert soft_topk(normal(3, 0), 0, lengths=torch.zeros(3, dtype=torch.int32)).shape == (3, 0)
    p = soft_topk(normal(0, 4), 1, lengths=torch.zeros(0, dtype=torch.int32))
    assert p.shape == (0, 4)


def test_under_autocast() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        p = soft_topk(normal(20, dtype=torch.bfloat16), 0, cu_seqlens=OFFSETS)
    assert p.dtype == torch.float32


def test_ptr_of_graphs() -> None:
    """What PyG calls ptr, with k a share of each graph's nodes, as its top-k pooling has it."""
    given = join([normal(n, seed=n) for n in (4, 9, 2)], [2, 5, 1], [0.1] * 3, before=0)
    sizes = given.offsets[1:] - given.offsets[:-1]
    k = (0.5 * sizes).ceil()
    hard = fast_lapsum.soft_topk(given.values, k, 0.1, hard=True, cu_seqlens=given.offsets)
    assert [float(row.sum()) for row in given.rows(hard)] == [2, 5, 1]
