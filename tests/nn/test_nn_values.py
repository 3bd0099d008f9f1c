"""The layer's budget and temperature: set, passed, given as tensors, learned, and limited."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from cases import assert_budget, normal
from fast_lapsum import soft_topk
from fast_lapsum.nn import SoftTopK
from layer_cases import learned_layer, number, passed_on

NAMES = ("k", "temperature")


@pytest.mark.parametrize("learned", [False, True], ids=["fixed", "learned"])
def test_k_can_be_set(learned: bool) -> None:
    layer = learned_layer() if learned else SoftTopK(3, 0.5)
    scores = normal(4, 12)
    for k in (5, 1.5, np.float32(2.25), np.int64(7)):
        layer.k = k
        assert number(layer.k) == pytest.approx(float(k), rel=1e-6)
        assert_budget(layer(scores).detach(), number(layer.k))
    assert len(list(layer.parameters())) == (2 if learned else 0)


@pytest.mark.parametrize(
    ("layer", "bad", "says"),
    [
        (SoftTopK(3), -1, r"k must lie in \[0, inf\), got k=-1"),
        (SoftTopK(3), math.nan, "k must .*k=nan"),
        (SoftTopK(3, num_scores=12), 13, r"k must lie in \[0, 12\], got k=13"),
        (SoftTopK(3, hard=True), 2.5, r"k must be a whole number.*k=2\.5"),
        (learned_layer(), 0, r"k must lie strictly inside \(0, 12\).*k=0"),
        (learned_layer(), torch.tensor(12.0), r"k must lie strictly inside \(0, 12\).*12"),
    ],
)
def test_a_k_that_cannot_be_set_is_named_and_changes_nothing(
    layer: SoftTopK, bad: float, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        layer.k = bad
    assert number(layer.k) == pytest.approx(3)


@pytest.mark.parametrize("name", NAMES)
def test_a_learned_value_takes_over_numbers_and_nothing_else(name: str) -> None:
    layer = learned_layer()
    before = number(getattr(layer, name))
    with pytest.raises(TypeError, match=rf"{name} of a layer with learn_{name}=True .*Parameter"):
        setattr(layer, name, torch.nn.Parameter(torch.tensor(2.0)))
    with pytest.raises(ValueError, match=rf"{name} must be a number or have the shape \(\).*2,\)"):
        setattr(layer, name, torch.tensor([1.0, 2.0]))
    assert number(getattr(layer, name)) == before
    setattr(layer, name, torch.tensor(2.0))
    assert number(getattr(layer, name)) == pytest.approx(2.0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", ["2", None, True, torch.tensor(True), torch.tensor(2j)], ids=str)
def test_what_is_no_number_is_named(name: str, bad: object) -> None:
    with pytest.raises(TypeError, match=f"{name} must be a number or a tensor"):
        setattr(SoftTopK(3), name, bad)
    with pytest.raises(TypeError, match=f"{name} must be a number or a tensor"):
        SoftTopK(**{"k": 3, name: bad})  # type: ignore[arg-type]


@pytest.mark.parametrize("learned", [False, True], ids=["fixed", "learned"])
def test_k_and_temperature_can_be_passed_for_one_call(learned: bool) -> None:
    layer = learned_layer() if learned else SoftTopK(3, 0.5)
    scores, mask = normal(4, 12), normal(4, 12, seed=1) > -1
    own = layer(scores)
    for k, t in ((5, 0.1), (torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor(0.2))):
        torch.testing.assert_close(layer(scores, k=k, temperature=t), soft_topk(scores, k, t))
        wanted = soft_topk(scores, k, t, mask=mask)
        torch.testing.assert_close(layer(scores, mask, k, t), wanted)
    torch.testing.assert_close(layer(scores), own, rtol=1e-11, atol=1e-12)
    with pytest.raises(ValueError, match=r"k must lie in \[0, 12\].*k=13"):
        layer(scores, k=13)
    with pytest.raises(ValueError, match=r"temperature must .*temperature=-1"):
        layer(scores, temperature=-1)


def test_a_passed_k_receives_its_gradient() -> None:
    k = torch.tensor(4.0, requires_grad=True)
    (SoftTopK(3)(normal(4, 12), k=k)).sum().backward()
    torch.testing.assert_close(k.grad, torch.tensor(4.0))  # one for each row


@pytest.mark.parametrize("name", NAMES)
def test_a_parameter_is_kept_and_learned(name: str) -> None:
    own = Parameter(torch.tensor(2.5))
    layer = SoftTopK(**{"k": 3, "temperature": 0.5, name: own})  # type: ignore[arg-type]
    assert getattr(layer, name) is own
    assert [key for key, _ in layer.named_parameters()] == [f"given_{name}"]
    layer(normal(4, 12)).square().sum().backward()
    assert own.grad is not None
    assert own.grad != 0
    assert f"{name}=2.5" in repr(layer)
    assert f"learned={name}" in repr(layer)
    setattr(layer, name, 1.5)  # a schedule, say: it is still the same one that is learned
    assert getattr(layer, name) is own
    assert own.item() == 1.5
    layer.reset_parameters()
    assert own.item() == 2.5


def test_learn_k_with_a_parameter_learns_that_parameter() -> None:
    own, t = Parameter(torch.tensor(2.5)), Parameter(torch.tensor(0.5))
    layer = SoftTopK(own, t, num_scores=12, learn_k=True, learn_temperature=True)
    assert layer.k is own
    assert layer.temperature is t
    assert layer.budget_logit is None


def test_the_gradient_of_a_parameter_is_that_of_k() -> None:
    own = Parameter(torch.tensor(2.5, dtype=torch.float64))
    k = torch.tensor(2.5, dtype=torch.float64, requires_grad=True)
    scores, upstream = normal(4, 12), normal(4, 12, seed=1)
    SoftTopK(own, 0.5)(scores).mul(upstream).sum().backward()
    soft_topk(scores, k, 0.5).mul(upstream).sum().backward()
    torch.testing.assert_close(own.grad, k.grad)


def test_a_parameter_can_be_set() -> None:
    layer = SoftTopK(3)
    own = Parameter(torch.tensor(4.0))
    layer.k = own
    assert layer.k is own
    assert_budget(layer(normal(4, 12)).detach(), 4.0)
    layer.k = Parameter(torch.tensor(5.0))
    assert layer.k is not own
    assert len(list(layer.parameters())) == 1


def test_a_tensor_that_requires_a_gradient_receives_it() -> None:
    k = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    layer = SoftTopK(k)
    assert not list(layer.parameters())
    out = layer(normal(4, 12))
    assert_budget(out.detach(), k.detach())
    out.square().sum().backward()
    assert k.grad is not None
    assert (k.grad != 0).all()


def test_a_tensor_of_several_values_is_kept_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    k = torch.tensor([1.0, 2.0, 3.0, 4.0])
    layer = SoftTopK(k, 0.5)
    assert passed_on(layer, monkeypatch)["k"] is k
    assert layer.state_dict()["given_k"].equal(k)
    assert "k=tensor of shape (4,)" in repr(layer)
    layer.k = 2
    assert layer.k == 2.0
    layer.reset_parameters()
    assert isinstance(layer.k, Tensor)
    assert layer.k.equal(k)


def test_several_budgets_are_learned_together() -> None:
    start = torch.tensor([1.0, 2.0, 3.0, 4.0])
    layer = SoftTopK(start, num_scores=12, learn_k=True)
    assert isinstance(layer.k, Tensor)
    torch.testing.assert_close(layer.k, start.double())
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.05)
    scores, wanted = normal(4, 12), torch.tensor([4.0, 3.0, 2.0, 1.0])
    for _ in range(300):
        optimiser.zero_grad()
        (layer(scores).sum(-1) - wanted).square().sum().backward()
        optimiser.step()
    torch.testing.assert_close(layer.k.float(), wanted, rtol=0, atol=0.02)
    with pytest.raises(ValueError, match=r"k must lie strictly inside \(0, 4\)"):
        SoftTopK(start, num_scores=4, learn_k=True)


def test_a_parameter_as_k_does_not_stay_whole() -> None:
    with pytest.raises(ValueError, match=r"hard=True needs a whole k.*Parameter.*clamp=True"):
        SoftTopK(Parameter(torch.tensor(2.0)), hard=True)


def test_the_gradient_of_the_logit_is_that_of_k() -> None:
    layer = learned_layer().double()
    scores, upstream = normal(4, 12), normal(4, 12, seed=1)
    layer(scores).mul(upstream).sum().backward()
    k = torch.tensor(number(layer.k), dtype=torch.float64, requires_grad=True)
    soft_topk(scores, k, number(layer.temperature)).mul(upstream).sum().backward()
    assert layer.budget_logit is not None
    torch.testing.assert_close(layer.budget_logit.grad, k.grad)


@pytest.mark.parametrize(("optimiser", "rate"), [(torch.optim.SGD, 1.0), (torch.optim.Adam, 0.1)])
@pytest.mark.parametrize("share", [0.02, 0.5])
def test_one_learning_rate_serves_short_and_long_rows(
    optimiser: type[torch.optim.Optimizer], rate: float, share: float
) -> None:
    """Scores are worth what the others cost up to a tenth of the row, whatever its length."""
    found, gradients = [], []
    for n in (100, 10_000, 1_000_000):
        scores = torch.linspace(1, 0, n)
        worth = torch.linspace(-0.1, 0.9, n)  # the cost of a place, less what it is worth
        layer = SoftTopK(share * n, 0.01, num_scores=n, learn_k=True)
        steps = optimiser(layer.parameters(), lr=rate)  # type: ignore[call-arg]
        for _ in range(60):
            steps.zero_grad()
            (layer(scores) * worth).sum().backward()
            assert layer.budget_logit is not None
            assert layer.budget_logit.grad is not None
            gradients.append(abs(layer.budget_logit.grad.item()))
            steps.step()
        found.append(number(layer.k) / n)
    assert max(gradients) < 1
    assert max(found) / min(found) < 1.05
    assert abs(found[0] - 0.1) < abs(share - 0.1) / 2


def test_a_logit_far_outside_comes_back() -> None:
    layer = learned_layer()
    assert layer.budget_logit is not None
    for far in (-100.0, 100.0):
        with torch.no_grad():
            layer.budget_logit.fill_(far)
        layer.zero_grad()
        layer(normal(4, 12)).sum().backward()
        assert layer.budget_logit.grad is not None
        assert layer.budget_logit.grad.item() == pytest.approx(4, rel=1e-5)


@pytest.mark.parametrize("learned", [False, True], ids=["fixed", "learned"])
def test_with_a_mask_rows_may_have_another_length(learned: bool) -> None:
    layer = learned_layer() if learned else SoftTopK(3, 0.5, num_scores=12)
    for n in (7, 12, 20):
        scores, mask = normal(4, n), torch.arange(n) < torch.tensor([[4], [5], [6], [7]])
        out = layer(scores, mask)
        wanted = soft_topk(scores, number(layer.k), number(layer.temperature), mask=mask)
        torch.testing.assert_close(out, wanted, rtol=1e-6, atol=1e-7)
    with pytest.raises(ValueError, match=r"num_scores=12.*\(4, 7\).*mask or clamp"):
        layer(normal(4, 7))


@pytest.mark.parametrize("kind", ["fixed", "learned", "Parameter"])
@pytest.mark.parametrize("hard", [False, True], ids=["soft", "hard"])
def test_clamp_takes_short_rows_whole(kind: str, hard: bool) -> None:
    """Variable lengths, padded: every kind of k behaves like the function."""
    k = Parameter(torch.tensor(3.5)) if kind == "Parameter" else 3.5
    layer = SoftTopK(
        *(k, 0.5),
        num_scores=12,
        learn_k=kind == "learned",
        clamp=True,
        hard=hard,
        keep_threshold=True,
    )
    scores, counts = normal(5, 9), torch.tensor([0, 1, 2, 5, 9])
    mask = torch.arange(9) < counts[:, None]
    out = layer(scores, mask)
    torch.testing.assert_close(
        out, soft_topk(scores, 3.5, 0.5, mask=mask, clamp=True, hard=hard), rtol=1e-6, atol=1e-7
    )
    wanted = counts.clamp(max=3 if hard else 3.5).to(torch.float64)
    torch.testing.assert_close(out.sum(-1).detach(), wanted, rtol=1e-6, atol=0)
    assert layer(scores).isfinite().all()
    assert layer(normal(4, 20)).isfinite().all()
    assert "clamp=True" in repr(layer)


@pytest.mark.parametrize("kind", ["learned", "Parameter"])
def test_rows_that_are_taken_whole_teach_k_nothing(kind: str) -> None:
    k = Parameter(torch.tensor(3.5)) if kind == "Parameter" else 3.5
    layer = SoftTopK(k, 0.5, num_scores=12, learn_k=kind == "learned", clamp=True)
    (own,) = layer.parameters()
    scores = normal(2, 9)
    for count, wanted in ((3, 0.0), (4, 2.0)):
        own.grad = None
        layer(scores, torch.arange(9) < count).sum().backward()
        assert own.grad is not None
        assert own.grad.item() == pytest.approx(wanted, abs=1e-6)


def test_a_budget_of_a_hard_mask_is_learned() -> None:
    """With clamp=True, which rounds down: from the start on exactly the k that was given."""
    scores = normal(4, 12)
    for k in range(1, 12):
        layer = SoftTopK(k, num_scores=12, learn_k=True, hard=True, clamp=True)
        assert (layer(scores).sum(-1) == k).all()
        layer.k = 12 - k
        assert (layer(scores).sum(-1) == 12 - k).all()
    layer = SoftTopK(3, num_scores=12, learn_k=True, hard=True, clamp=True)
    steps = torch.optim.SGD(layer.parameters(), lr=0.02)
    for _ in range(100):
        steps.zero_grad()
        (layer(scores).sum(-1) - 6.5).square().mean().backward()
        steps.step()
    assert round(number(layer.k)) in (6, 7)  # one too few, one too many: to and fro


def test_a_clamped_number_may_be_any() -> None:
    layer = SoftTopK(2.5, hard=True, clamp=True)
    assert layer(normal(12)).sum() == 2
    layer.k = 100
    assert layer(normal(12)).sum() == 12
    layer = SoftTopK(20, num_scores=12, clamp=True)
    assert layer(normal(12)).sum() == 12
    for bad in (-1, math.nan):
        with pytest.raises(ValueError, match=r"k must lie in \[0, inf\)"):
            layer.k = bad


@pytest.mark.parametrize("dim", [(1, 2), (2, 0), None, (0, 1, 2)])
def test_one_budget_over_several_dimensions(dim: tuple[int, ...] | None) -> None:
    scores = normal(2, 3, 4)
    n = math.prod(scores.shape[i] for i in (dim or range(3)))
    fixed = SoftTopK(3, 0.5, dim=dim, num_scores=n, keep_threshold=True)
    learned = SoftTopK(3, 0.5, dim=dim, num_scores=n, learn_k=True, keep_threshold=True)
    wanted = soft_topk(scores, 3, 0.5, dim=dim)
    for layer in (fixed, learned):
        for _ in range(2):  # the second begins at the threshold of the first
            torch.testing.assert_close(layer(scores), wanted, rtol=1e-6, atol=1e-7)
        with pytest.raises(ValueError, match=rf"num_scores={n} entries along dim="):
            layer(normal(5, 7, 9))
