"""The gate is the function in training, and keeps the budget at inference."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import normal
from fast_lapsum import hard_topk_mask, soft_topk
from fast_lapsum.nn import (
    BatchTopK,
    BudgetGate,
    RunningThreshold,
    TemperatureSchedule,
    TopKActivation,
)
from fast_lapsum.nn.budgeted import whole_budget
from fast_lapsum.nn.running_threshold import laplace_cdf, log_laplace_cdf


def _normal_share(b: float) -> float:
    """How much of a normal distribution lies over b."""
    return 0.5 * math.erfc(b / math.sqrt(2))


@pytest.mark.parametrize("hard", [False, True])
def test_in_training_the_gate_is_the_function(hard: bool) -> None:
    scores = normal(3, 4, 20).requires_grad_()
    by_row = BudgetGate(3, 0.4, hard=hard)(scores)
    assert torch.equal(by_row, soft_topk(scores, 3, 0.4, hard=hard))
    by_batch = BudgetGate(2.25, 0.4, budget="batch", hard=hard)(scores)
    wanted = soft_topk(scores, 27, 0.4, dim=None, hard=hard)
    assert torch.equal(by_batch, wanted)
    upstream = normal(3, 4, 20, seed=1)
    (found,) = torch.autograd.grad(by_batch, scores, upstream)
    assert torch.equal(found, torch.autograd.grad(wanted, scores, upstream)[0])


def test_a_budget_that_is_whole_but_for_rounding_is_whole() -> None:
    """0.29 times 100 is 28.999999999999996."""
    gate = BudgetGate(0.29, 0.1, budget="batch", hard=True)
    assert gate(normal(100, 5)).sum() == 29
    assert BudgetGate(2.9, 0.1, hard=True)(normal(100, 5)).sum() == 200


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_large_budget_with_a_fraction_is_rounded_down(dtype: torch.dtype) -> None:
    """As far as k can tell: 3,000,000.75 is not whole, and 0.29 times a million is."""
    for k, rows, wanted in ((0.75, 4_000_001, 3_000_000), (0.5, 3, 1), (0.29, 1_000_000, 290_000)):
        assert whole_budget(torch.tensor(k, dtype=dtype), rows) == wanted
        assert whole_budget(torch.tensor(k, dtype=dtype), torch.tensor(rows)) == wanted
    assert whole_budget(torch.tensor(3), 5) == whole_budget(3, torch.tensor(5)) == 15


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("kind", ["number", "float32", "float64", "Parameter", "padded"])
def test_as_many_are_over_the_threshold_whatever_rounding_does(kind: str, hard: bool) -> None:
    for k, rows, wanted in ((0.29, 100, 29), (0.53, 100, 53), (2.1, 30, 63), (0.56, 100, 56)):
        value: float | Tensor = k
        if kind in ("float32", "float64"):
            value = torch.tensor(k, dtype=getattr(torch, kind))
        if kind == "Parameter":
            value = torch.nn.Parameter(torch.tensor(k))
        gate = BudgetGate(value, 0.1, budget="batch", hard=hard)
        scores = normal(rows, 8)
        mask = torch.ones(rows, 8, dtype=torch.bool) if kind == "padded" else None
        found = gate(scores, mask)
        if hard:
            assert found.sum() == wanted
        gate.eval()
        assert gate(scores).sum() == wanted
        gate.calibrate(scores)
        assert gate(scores).sum() == wanted


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int16, torch.int32])
def test_a_batch_spends_what_its_threshold_counts_whatever_the_dtype_of_k(
    dtype: torch.dtype,
) -> None:
    """3 x 30,000 is no number of float16, nor of int16, and 3 x 1,001 none of bfloat16."""
    for rows in (1_001, 30_000):
        scores = normal(rows, 8, seed=rows)
        gate = BudgetGate(torch.tensor(3, dtype=dtype), 0.1, budget="batch")
        torch.testing.assert_close(
            gate(scores).double().sum().item(), 3.0 * rows, rtol=1e-6, atol=0
        )
        assert (scores > gate.threshold).sum() == 3 * rows


def test_masks_leave_padding_out() -> None:
    scores, lengths = normal(4, 10), torch.tensor([10, 6, 2, 0])
    mask = torch.arange(10) < lengths[:, None]
    scores[~mask] = 1e6
    by_row = BudgetGate(3, 0.2)
    torch.testing.assert_close(by_row(scores, mask).sum(-1), lengths.clamp(max=3).double())
    by_batch = BudgetGate(3, 0.2, budget="batch")
    gate = by_batch(scores, mask)
    assert gate.sum().item() == pytest.approx(9)  # three rows have scores
    assert (gate[~mask] == 0).all()
    for one, count in ((by_row, 8), (by_batch, 9)):
        evaluated = one.eval()(scores, mask)
        assert (evaluated[~mask] == 0).all()
        assert evaluated.sum() == count  # one batch, so its own threshold


@pytest.mark.parametrize("budget", ["row", "batch"])
@pytest.mark.parametrize("kind", ["hard", "annealed"])
def test_evaluation_keeps_the_budget(budget: str, kind: str) -> None:
    """Held-out rows one by one have k active scores on average, to 1%, whatever t was.

    The soft threshold at t = 0.5 would let 12 through.
    """
    torch.manual_seed(0)
    n, k = 16_384, 100
    gate = BudgetGate(k, 0.5, budget=budget, hard=kind == "hard")  # type: ignore[arg-type]
    schedule = TemperatureSchedule(gate, steps=10, start=0.5, end=0.05)
    for _ in range(10):
        gate(torch.randn(16, n))
        if kind == "annealed":
            schedule.step()
    gate.eval()
    assert n * _normal_share(gate.threshold.item()) == pytest.approx(k, rel=0.01)
    held_out = torch.randn(1000, n // 4)
    active = 4 * torch.stack([gate(row) for row in held_out]).sum(-1).mean()
    assert active.item() == pytest.approx(k, rel=0.01)


def test_batches_that_differ_keep_the_budget() -> None:
    """Where the mean of the batches' own thresholds is off by a tenth and more."""
    torch.manual_seed(0)
    scales = torch.exp(0.15 * torch.randn(2000))
    gate, own = BudgetGate(20, budget="batch", momentum=None), []
    for scale in scales:
        batch = scale * torch.randn(2, 1000)
        gate.running.update(batch, 40)
        own.append(batch.flatten().topk(41).values[-1])

    def active(b: float) -> float:
        return 1000 * sum(_normal_share(b / scale) for scale in scales.tolist()) / len(scales)

    assert active(gate.threshold.item()) == pytest.approx(20, rel=0.03)
    assert active(torch.stack(own).mean().item()) > 22


def test_a_threshold_of_tiny_batches_is_unbiased() -> None:
    """One row of which one score is wanted: the largest, and the second, are far off on average."""
    torch.manual_seed(0)
    running = RunningThreshold(momentum=None)
    for row in torch.randn(3000, 64):
        running.update(row, 1)
    assert 64 * _normal_share(running.threshold.item()) == pytest.approx(1, rel=0.05)


def test_a_threshold_follows_scores_that_drift() -> None:
    """A weight of a hundredth alone lags behind by a hundred batches: 40 and more, not 10."""
    torch.manual_seed(0)
    gate = BudgetGate(10, 0.1, budget="batch")
    for step in range(300):
        gate(torch.randn(16, 500) * (1 + step / 300) + step / 100)
    share = _normal_share((gate.threshold.item() - 2.99) / (1 + 299 / 300))
    assert 500 * share == pytest.approx(10, rel=0.15)


def test_a_threshold_does_not_stall_in_a_model_of_two_bytes() -> None:
    """A step of a hundredth is below the spacing of bfloat16, and must count all the same."""
    torch.manual_seed(0)
    gate = BudgetGate(20, 0.1, budget="batch").bfloat16()
    for step in range(400):
        gate(torch.randn(8, 500).bfloat16() + 100 * (step > 20))
    assert gate.threshold.dtype == torch.float32
    assert gate.threshold.item() > 101


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_of_two_bytes_are_compared_with_the_whole_threshold(dtype: torch.dtype) -> None:
    gate = BudgetGate(1).eval()
    gate.threshold.fill_(1 + 2**-12)
    assert gate(torch.tensor([1.0, 1.0 + 2**-7], dtype=dtype)).tolist() == [0.0, 1.0]


def test_the_extremes_of_a_budget() -> None:
    scores = normal(4, 6)
    for k, wanted in ((0, 0.0), (6, 1.0)):
        gate = BudgetGate(k, 0.3)
        assert (gate(scores) == wanted).all()
        assert (gate.eval()(100 * normal(50, 6)) == wanted).all()
    gate.k = 2  # from all of them down to some
    gate.train()(scores)
    assert gate.eval()(scores).sum() == 8


@pytest.mark.parametrize("shared", [0.0, 5.0])
def test_ties_and_zeros_of_a_relu(shared: float) -> None:
    """More budget than there are positive scores: the threshold stays at the zeros."""
    torch.manual_seed(0)
    gate = BudgetGate(30, 0.1, budget="batch")
    for _ in range(50):
        gate(torch.randn(4, 40).relu() + shared)
    assert gate.threshold.item() == shared
    scores = torch.full((3, 8), shared)
    assert (gate.eval()(scores) == 0).all()


def test_infinite_scores() -> None:
    gate = BudgetGate(2, 0.3)
    scores = normal(4, 10)
    scores[:, 0], scores[:, 1] = math.inf, -math.inf
    assert (gate(scores)[:, :2] == torch.tensor([1.0, 0.0])).all()
    assert gate.threshold.isfinite()
    assert (gate.eval()(scores)[:, :2] == torch.tensor([1.0, 0.0])).all()
    assert gate(torch.tensor([math.nan, 9.0])).tolist()[1] == 1.0
    assert gate(torch.tensor([math.nan, 9.0]))[0].isnan()


def test_calibration_is_exact_on_a_tensor_and_close_on_batches() -> None:
    torch.manual_seed(0)
    scores, gate = torch.randn(500, 200), BudgetGate(7.5, budget="batch")
    gate(scores + 9)  # another model's
    gate.calibrate(scores)
    assert gate.eval()(scores).sum() == 7.5 * 500
    gate.calibrate(scores.split(20))
    assert gate(scores).sum(-1).mean().item() == pytest.approx(7.5, rel=0.01)
    gate.calibrate([(one, None) for one in scores.split(20)], scores_of=lambda batch: 2 * batch[0])
    assert gate(2 * scores).sum(-1).mean().item() == pytest.approx(7.5, rel=0.01)
    mask = torch.rand(500, 200) < 0.5
    gate.calibrate(scores, mask=mask)
    assert gate(scores, mask).sum() == 7.5 * 500
    gate.train()(scores)
    assert gate.running.num_batches == 2
    assert gate.running.momentum == 0.01


def test_calibration_tells_scores_of_float64_apart() -> None:
    scores, gate = normal(50, 9) * 1e-9 + 1, BudgetGate(2)
    gate.calibrate(scores)
    assert gate.eval()(scores).sum() == 100
    gate.calibrate(scores.split(10))
    assert gate(scores).sum() == pytest.approx(100, abs=10)
    other = BudgetGate(2).eval()
    other.load_state_dict(gate.state_dict())
    assert torch.equal(other(scores), gate(scores))


def test_without_a_score_there_is_no_threshold() -> None:
    gate, scores = BudgetGate(2), normal(3, 4).float()
    nothing = torch.zeros(3, 4, dtype=torch.bool)
    gate.calibrate(torch.empty(0, 4))
    assert gate.threshold.isnan()
    gate.calibrate(scores, mask=nothing)
    assert gate.threshold.isnan()
    gate(scores, nothing)
    assert gate.threshold.isnan()
    gate.calibrate([torch.empty(0, 4), scores, torch.empty(0, 4)])
    assert gate.eval()(scores).sum() == 6
    kept = gate.threshold.clone()
    gate.running.update(scores, 0.0, mask=nothing)
    assert torch.equal(gate.threshold, kept)


def test_a_learned_budget_receives_its_gradient() -> None:
    k = torch.nn.Parameter(torch.tensor(3.0))
    gate = BudgetGate(k, 0.3, budget="batch")
    upstream = normal(4, 10, seed=1)
    (gate(normal(4, 10)) * upstream).sum().backward()
    total = torch.tensor(12.0, dtype=torch.float64, requires_grad=True)
    (soft_topk(normal(4, 10), total, 0.3, dim=None) * upstream).sum().backward()
    assert total.grad is not None
    torch.testing.assert_close(k.grad, (4 * total.grad).float())
    gate.k = 5
    assert k.item() == 5


@pytest.mark.parametrize("budget", ["row", "batch"])
def test_a_learned_budget_of_hard_gates_receives_the_soft_gradient(budget: Any) -> None:
    """That of the soft mask at the k that the hard one is rounded down to, as functions have it."""
    k = torch.nn.Parameter(torch.tensor(3.4))
    upstream, dim = normal(4, 10, seed=1), -1 if budget == "row" else None
    gate = BudgetGate(k, 0.3, budget=budget, hard=True)(normal(4, 10))
    (gate * upstream).sum().backward()
    whole = 3 if budget == "row" else 13  # of 13.6
    total = torch.tensor(float(whole), dtype=torch.float64, requires_grad=True)
    wanted = soft_topk(normal(4, 10), total, 0.3, dim=dim, hard=True)
    assert torch.equal(gate, wanted)
    (wanted * upstream).sum().backward()
    assert total.grad is not None
    rows = 1 if budget == "row" else 4
    torch.testing.assert_close(k.grad, (rows * total.grad).float())
    assert float(total.grad.abs()) > 0.01


def test_rows_of_a_hard_gate_have_as_many_at_inference() -> None:
    """Half a score per row is rounded down in training, and is not let through afterwards."""
    gate = BudgetGate(2.5, 0.1, hard=True)
    for seed in range(200):
        gate(normal(8, 20, seed=seed))
    gate.eval()
    assert abs(float(gate(normal(4000, 20, seed=1000)).sum(-1).mean()) - 2) < 0.1


def test_as_many_are_let_through_however_a_budget_is_given() -> None:
    scores, everything = normal(1000), torch.ones(1000, dtype=torch.bool)
    for budget in (100 * 0.29, torch.tensor(100 * 0.29, dtype=torch.float64), torch.tensor(29.0)):
        for mask in (None, everything):
            running = RunningThreshold()
            running.update(scores, budget, mask=mask)
            assert int(running.exceeded(scores).sum()) == 29, (budget, mask)


def test_a_budget_without_limit_takes_all_that_a_mask_leaves() -> None:
    mask = torch.rand(4, 9) < 0.5
    gate = BudgetGate(torch.tensor(math.inf), 0.1, hard=True)
    assert torch.equal(gate(normal(4, 9), mask), mask.float())


def test_thresholds_of_several_columns() -> None:
    scores = normal(50, 3) + torch.tensor([0.0, 10.0, -10.0])
    running = RunningThreshold((3,))
    running.update(scores, 5, dim=0)
    assert torch.equal(running.mask(scores), hard_topk_mask(scores, 5, dim=0))
    running.update(scores + 1, torch.tensor(5.0), dim=0, mask=torch.rand(50, 1) < 0.5)
    assert (running.num_batches == 2).all()


def test_the_soft_mask_at_a_kept_threshold() -> None:
    scores = normal(4, 30, dtype=torch.float32)
    running = RunningThreshold()
    running.update(scores, 12, 0.5)
    torch.testing.assert_close(
        running.soft_mask(scores, 0.5), soft_topk(scores, 12, 0.5, dim=None), atol=1e-6, rtol=1e-5
    )
    torch.testing.assert_close(
        running.log_soft_mask(scores, 0.5).exp(), running.soft_mask(scores, 0.5)
    )
    far = log_laplace_cdf(torch.tensor([-3000.0, 0.0, 40.0]), 2.0)
    torch.testing.assert_close(far, torch.tensor([-1500.6931472, -0.6931472, -0.5 * math.exp(-20)]))
    distances = torch.tensor([-math.inf, -1.0, 0.0, 1.0, math.inf])
    for cold in (0.0, torch.tensor(0.0)):
        assert laplace_cdf(distances, cold).tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]
        assert log_laplace_cdf(distances, cold).exp().tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"k": -1}, "k must be finite and at least 0, got k=-1"),
        ({"k": torch.ones(3)}, r"k must be a number or a tensor of one value.*\(3,\)"),
        ({"k": 1, "temperature": math.inf}, "temperature must be finite.*temperature=inf"),
        ({"k": 1, "budget": "rows"}, "budget must be one of 'row', 'batch', got budget='rows'"),
        ({"k": 1, "momentum": 0.0}, r"momentum must lie in \(0, 1\] or be None, got momentum=0.0"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        BudgetGate(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("kind", [BudgetGate, BatchTopK, TopKActivation])
def test_a_k_that_rows_cannot_spend_is_named_as_it_was_given(kind: Any, hard: bool) -> None:
    """Not what it comes to over the batch, or rounded down."""
    for k, said in ((6, "6"), (6.75, r"6\.75"), (1e6 + 1, "1000001")):
        gates = [kind(1, hard=hard)]
        if kind is BudgetGate:
            gates.append(BudgetGate(1, hard=hard, budget="batch"))
        if kind is TopKActivation:
            gates.append(TopKActivation(1).eval())
        for gate in gates:
            gate.k = k  # TopKActivation takes a fraction from a schedule alone
            says = rf"^k must lie in \[0, 5\] for 5 scores per row, got k={said}$"
            with pytest.raises(ValueError, match=says):
                gate(normal(4, 5))
            assert gate.train()(normal(4, 5), torch.ones(5, dtype=torch.bool)).isfinite().all()


def test_bad_scores_are_named() -> None:
    gate = BudgetGate(3)
    for training in (True, False):
        gate.train(training)
        with pytest.raises(TypeError, match="scores must be one of float32"):
            gate(torch.arange(5))
        with pytest.raises(ValueError, match="mask must broadcast"):
            gate(normal(4, 5), torch.ones(3, dtype=torch.bool))
    with pytest.raises(TypeError, match="hard must be True or False"):
        BudgetGate(3, hard="yes")  # type: ignore[arg-type]
    state = gate.state_dict()
    state["given_k"] = Tensor([-2.0])[0].double()
    with pytest.raises(RuntimeError, match="given_k: k must be finite and at least 0, got k=-2"):
        gate.load_state_dict(state)


def test_a_setting_that_stays_is_not_asked_for_again() -> None:
    """And one that changes, by whomever, is noticed: states are those of a layer that asks."""

    def call(gate: BudgetGate, seed: int) -> None:
        asking = copy.deepcopy(gate)  # which knows nothing of the number in its buffer
        assert asking.running._last_setting is None
        scores = normal(8, 40, seed=seed)
        gate(scores), asking(scores)
        for name, value in asking.state_dict().items():
            assert torch.equal(gate.state_dict()[name], value), name

    gate = BudgetGate(3, 0.3)
    for seed in range(4):
        call(gate, seed)
    gate.k = 5
    call(gate, 4)
    noted = gate.running._last_setting
    call(gate, 5)
    assert gate.running._last_setting is noted is not None
    gate.load_state_dict({**gate.state_dict(), "running.setting": torch.tensor(2.0)})
    call(gate, 6)
    gate.running.setting.fill_(9.0)
    call(gate, 7)
    gate.double()
    call(gate, 8)
    gate.k = torch.tensor(4.0)
    call(gate, 9)
    assert gate.running._last_setting is None
    assert gate.running.setting.item() == 4
