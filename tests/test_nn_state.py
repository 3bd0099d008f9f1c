"""What a layer keeps: values that are set, passed, given as tensors, saved, moved and exported."""

from __future__ import annotations

import copy
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from cases import assert_budget, normal
from fast_lapsum import soft_topk
from fast_lapsum.nn import SoftTopK, TemperatureSchedule, kept
from fast_lapsum.nn import layer as layer_module

DATA = Path(__file__).with_name("data")
NAMES = ("k", "temperature")


def _learned(n: int = 12, **rest: object) -> SoftTopK:
    return SoftTopK(
        k=3, temperature=0.5, num_scores=n, learn_k=True, learn_temperature=True, **rest
    )  # type: ignore[arg-type]


def _value(value: float | Tensor) -> float:
    return value.item() if isinstance(value, Tensor) else value


def _seen(layer: SoftTopK, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What a call of the layer passes on as k and temperature."""
    passed: dict[str, object] = {}

    def spy(scores: Tensor, k: object, temperature: object, **rest: object) -> object:
        passed.update(k=k, temperature=temperature, **rest)
        return soft_topk(scores, k, temperature, **rest)  # type: ignore[call-overload]

    monkeypatch.setattr(layer_module, "soft_topk", spy)
    layer(normal(4, 12))
    return passed


# Set and passed ---------------------------------------------------------------------------------


@pytest.mark.parametrize("learned", [False, True], ids=["fixed", "learned"])
def test_k_can_be_set(learned: bool) -> None:
    layer = _learned() if learned else SoftTopK(3, 0.5)
    scores = normal(4, 12)
    for k in (5, 1.5, np.float32(2.25), np.int64(7)):
        layer.k = k
        assert _value(layer.k) == pytest.approx(float(k), rel=1e-6)
        assert_budget(layer(scores).detach(), _value(layer.k))
    assert len(list(layer.parameters())) == (2 if learned else 0)


@pytest.mark.parametrize(
    ("layer", "bad", "says"),
    [
        (SoftTopK(3), -1, r"k must lie in \[0, inf\), got k=-1"),
        (SoftTopK(3), math.nan, "k must .*k=nan"),
        (SoftTopK(3, num_scores=12), 13, r"k must lie in \[0, 12\], got k=13"),
        (SoftTopK(3, hard=True), 2.5, r"k must be a whole number.*k=2\.5"),
        (_learned(), 0, r"k must lie strictly inside \(0, 12\).*k=0"),
        (_learned(), torch.tensor(12.0), r"k must lie strictly inside \(0, 12\).*12"),
    ],
)
def test_a_k_that_cannot_be_set_is_named_and_changes_nothing(
    layer: SoftTopK, bad: float, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        layer.k = bad
    assert _value(layer.k) == pytest.approx(3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", ["2", None, True, torch.tensor(True), torch.tensor(2j)], ids=str)
def test_what_is_no_number_is_named(name: str, bad: object) -> None:
    with pytest.raises(TypeError, match=f"{name} must be a number or a tensor"):
        setattr(SoftTopK(3), name, bad)
    with pytest.raises(TypeError, match=f"{name} must be a number or a tensor"):
        SoftTopK(**{"k": 3, name: bad})  # type: ignore[arg-type]


@pytest.mark.parametrize("learned", [False, True], ids=["fixed", "learned"])
def test_k_and_temperature_can_be_passed_for_one_call(learned: bool) -> None:
    layer = _learned() if learned else SoftTopK(3, 0.5)
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


# Given as tensors -------------------------------------------------------------------------------


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
    assert _seen(layer, monkeypatch)["k"] is k
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


# The gradient of a learned k --------------------------------------------------------------------


def test_the_gradient_of_the_logit_is_that_of_k() -> None:
    layer = _learned().double()
    scores, upstream = normal(4, 12), normal(4, 12, seed=1)
    layer(scores).mul(upstream).sum().backward()
    k = torch.tensor(_value(layer.k), dtype=torch.float64, requires_grad=True)
    soft_topk(scores, k, _value(layer.temperature)).mul(upstream).sum().backward()
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
        found.append(_value(layer.k) / n)
    assert max(gradients) < 1
    assert max(found) / min(found) < 1.05
    assert abs(found[0] - 0.1) < abs(share - 0.1) / 2


def test_a_logit_far_outside_comes_back() -> None:
    layer = _learned()
    assert layer.budget_logit is not None
    for far in (-100.0, 100.0):
        with torch.no_grad():
            layer.budget_logit.fill_(far)
        layer.zero_grad()
        layer(normal(4, 12)).sum().backward()
        assert layer.budget_logit.grad is not None
        assert layer.budget_logit.grad.item() == pytest.approx(4, rel=1e-5)


# What eager calls pass on -----------------------------------------------------------------------


def test_a_number_is_passed_on_as_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thin way through the operator, after everything that may have happened to the layer."""
    layer = SoftTopK(3, 0.5)
    layer.k, layer.temperature = 2.5, 0.25
    state = layer.state_dict()
    others = [
        layer,
        copy.deepcopy(layer),
        copy.copy(layer),
        pickle.loads(pickle.dumps(layer)),
        copy.deepcopy(layer).double().half().float(),
        SoftTopK(9, 9.0),
    ]
    others[-1].load_state_dict(state)
    for other in others:
        passed = _seen(other, monkeypatch)
        assert (passed["k"], passed["temperature"]) == (2.5, 0.25)


def test_a_buffer_that_somebody_else_writes_counts() -> None:
    """Averaged models and broadcasts write buffers in place."""
    layer = SoftTopK(3, 0.5)
    layer.given_k.fill_(4)
    assert_budget(layer(normal(4, 12)), 4.0)
    assert layer.k == 4.0
    assert isinstance(layer.k, float)


def test_functional_call_replaces_numbers_too() -> None:
    layer = SoftTopK(3, 0.5)
    scores = normal(4, 12)
    other = {name: 2 * value for name, value in layer.state_dict().items()}
    out = torch.func.functional_call(layer, other, (scores,))
    torch.testing.assert_close(out, soft_topk(scores, 6, 1.0))
    assert (layer.k, layer.temperature) == (3.0, 0.5)


def test_an_ensemble_of_layers() -> None:
    layers = [SoftTopK(k, 0.5) for k in (2, 3, 4)]
    parameters, buffers = torch.func.stack_module_state(layers)
    scores = normal(4, 12)

    def call(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(layers[0], (parameters, buffers), (scores,))

    out = torch.func.vmap(call)(parameters, buffers)
    torch.testing.assert_close(out, torch.stack([layer(scores) for layer in layers]))


def test_a_layer_made_in_inference_mode() -> None:
    with torch.inference_mode():
        layer = SoftTopK(3, 0.5)
    assert layer.k == 3.0
    assert_budget(layer(normal(4, 12)), 3.0)


# State dicts ------------------------------------------------------------------------------------


def test_what_is_not_learned_is_in_the_state_dict() -> None:
    layer = SoftTopK(3, 0.1)
    schedule = TemperatureSchedule(layer, steps=10)
    schedule.step()
    layer.k = 2.7
    other = SoftTopK(5, 0.7)
    assert set(layer.state_dict()) == {"given_k", "given_temperature"}
    other.load_state_dict(layer.state_dict())
    assert (other.k, other.temperature) == (layer.k, layer.temperature)
    assert isinstance(other.temperature, float)
    assert layer(normal(4, 12)).equal(other(normal(4, 12)))


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_dict_of_another_device_and_dtype(assign: bool) -> None:
    layer = SoftTopK(5, 0.7)
    layer.load_state_dict(
        {"given_k": torch.tensor(2), "given_temperature": torch.tensor(0.25)}, assign=assign
    )
    assert (layer.k, layer.temperature) == (2.0, 0.25)


def test_a_state_dict_that_does_not_fit_is_an_error() -> None:
    state = SoftTopK(20.5).state_dict()
    with pytest.raises(RuntimeError, match=r"given_k: k must lie in \[0, 12\], got k=20.5"):
        SoftTopK(3, num_scores=12).load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"given_k: k must be a whole number.*k=20.5"):
        SoftTopK(3, hard=True).load_state_dict(state)
    state["given_temperature"].fill_(-1)
    with pytest.raises(RuntimeError, match=r"given_temperature: temperature must .*=-1"):
        SoftTopK(3).load_state_dict(state)
    with pytest.raises(RuntimeError, match="budget_logit"):
        _learned().load_state_dict(state)
    incomplete = SoftTopK(3).state_dict()
    del incomplete["given_k"]
    with pytest.raises(RuntimeError, match=r"Missing.*given_k"):
        SoftTopK(3).load_state_dict(incomplete)


def _as_in_0_1() -> torch.nn.ModuleDict:
    """Made like the layers of ``old_layers.py``, before they were trained."""
    return torch.nn.ModuleDict(
        {
            "fixed": SoftTopK(3.5, 0.1),
            "learned": SoftTopK(3, 0.5, num_scores=12, learn_k=True, learn_temperature=True),
            "budget": SoftTopK(2, 0.3, num_scores=12, learn_k=True),
            "temperature": SoftTopK(4, 0.2, learn_temperature=True, hard=True),
        }
    )


def _assert_means_what_it_did(layers: torch.nn.ModuleDict) -> None:
    old = torch.load(DATA / "layers-0.1.pt")
    assert old["version"] == "0.1.0"
    for name, layer in layers.items():
        k, temperature = old["values"][name]
        assert _value(layer.k) == pytest.approx(k, rel=1e-12)
        assert _value(layer.temperature) == pytest.approx(temperature, rel=1e-12)
        torch.testing.assert_close(layer(old["scores"]), old["masks"][name])


@pytest.mark.parametrize("with_metadata", [True, False], ids=["as saved", "as a plain dict"])
def test_a_checkpoint_of_version_0_1_loads_strictly_and_means_the_same(with_metadata: bool) -> None:
    """``old_layers.py`` says how it was made. A plain dict is what other file formats give."""
    state = torch.load(DATA / "layers-0.1.pt")["state_dict"]
    layers = _as_in_0_1()
    layers.load_state_dict(state if with_metadata else dict(state), strict=True)
    _assert_means_what_it_did(layers)
    again = _as_in_0_1()
    again.load_state_dict(layers.state_dict(), strict=True)
    _assert_means_what_it_did(again)


def test_an_old_checkpoint_loads_into_layers_from_meta() -> None:
    with torch.device("meta"):
        layers = _as_in_0_1()
    layers.to_empty(device="cpu")
    layers.load_state_dict(torch.load(DATA / "layers-0.1.pt")["state_dict"])
    _assert_means_what_it_did(layers)


def test_layers_that_version_0_1_pickled_whole() -> None:
    layers = torch.load(DATA / "layers-0.1-whole.pt", weights_only=False)
    _assert_means_what_it_did(layers)
    layers["fixed"].k = 2
    assert_budget(layers["fixed"](normal(4, 12)), 2.0)
    layers["learned"].reset_parameters()
    assert _value(layers["learned"].k) == pytest.approx(3)
    assert "k=4" in repr(layers["temperature"])


# Devices and dtypes -----------------------------------------------------------------------------


@pytest.mark.parametrize("cast", ["half", "bfloat16"])
@pytest.mark.parametrize("kind", ["learned", "Parameter", "tensor", "number"])
def test_two_bytes_do_not_move_k_and_temperature(cast: str, kind: str) -> None:
    layer = {
        "learned": lambda: SoftTopK(
            3.3, 0.123, num_scores=12, learn_k=True, learn_temperature=True
        ),
        "Parameter": lambda: SoftTopK(Parameter(torch.tensor(3.3)), Parameter(torch.tensor(0.123))),
        "tensor": lambda: SoftTopK(torch.tensor(3.3), torch.tensor(0.123)),
        "number": lambda: SoftTopK(3.3, 0.123),
    }[kind]()
    if list(layer.parameters()):
        layer(normal(4, 12)).square().sum().backward()  # gradients are moved, too
    before = {name: (value.dtype, value.clone()) for name, value in layer.state_dict().items()}
    model = torch.nn.Sequential(torch.nn.Linear(12, 12), layer)
    getattr(model, cast)()
    assert model[0].weight.dtype.itemsize == 2
    for name, (dtype, value) in before.items():
        assert layer.state_dict()[name].dtype == dtype
        assert layer.state_dict()[name].equal(value)
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert parameter.grad.dtype == parameter.dtype
    out = model(normal(4, 12, dtype=getattr(torch, {"half": "float16"}.get(cast, cast))))
    assert out.dtype.itemsize == 2
    model.to(torch.float64)
    for parameter in layer.parameters():
        assert parameter.dtype == torch.float64


def test_a_number_keeps_all_its_digits() -> None:
    layer = SoftTopK(3, 0.1).float()
    assert layer.given_temperature.dtype == torch.float64
    assert layer.state_dict()["given_temperature"].item() == 0.1


def test_a_device_without_float64_gets_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Apple's; meta tensors stand for it here."""
    monkeypatch.setattr(kept, "WITHOUT_FLOAT64", ("meta",))
    layer = SoftTopK(3.3, 0.123).to("meta")
    assert {value.dtype for value in layer.state_dict().values()} == {torch.float32}
    assert layer.k == 3.3
    with torch.device("meta"):
        made = SoftTopK(3.3)
    assert made.given_k.dtype == torch.float32
    monkeypatch.setattr(layer_module, "WITHOUT_FLOAT64", ("meta",))
    learned = _learned().to("meta")
    assert isinstance(learned.k, Tensor)
    assert learned.k.dtype == torch.float32


def test_print_works_on_meta() -> None:
    with torch.device("meta"):
        layers = SoftTopK(3, 0.5), _learned(), SoftTopK(torch.tensor([2.0, 3.0]))
    assert "k=3, temperature=0.5" in repr(layers[0])
    assert "k=meta, temperature=meta" in repr(layers[1])
    assert "k=meta" in repr(layers[2])
    assert "k=3" in repr(SoftTopK(3).to("meta"))


def test_reset_parameters_after_to_empty() -> None:
    with torch.device("meta"):
        layers = torch.nn.ModuleList([_learned(), SoftTopK(3, 0.5), SoftTopK(2, num_scores=12)])
        layers[2].k = 4
    layers.to_empty(device="cpu")
    for parameter in layers.parameters():
        parameter.data.fill_(math.nan)  # what was there before
    assert layers[1].k == layers[1].given_k.item() == 3.0  # a number is not lost on the way
    assert layers[2].k == layers[2].given_k.item() == 4.0
    for layer in layers:
        layer.reset_parameters()
    assert [_value(layer.k) for layer in layers] == pytest.approx([3, 3, 2])
    assert [_value(layer.temperature) for layer in layers] == pytest.approx([0.5, 0.5, 1])
    for layer in layers:
        assert_budget(layer(normal(4, 12)).detach(), _value(layer.k))


def test_reset_forgets_the_threshold_and_restores_tensors() -> None:
    start = torch.tensor([1.0, 2.0, 3.0, 4.0])
    layer = SoftTopK(start.clone(), 0.5)
    layer(normal(4, 12))
    assert layer._last_threshold is not None
    layer.k.fill_(1)  # type: ignore[union-attr]
    layer.reset_parameters()
    assert layer._last_threshold is None
    assert layer.k.equal(start)  # type: ignore[union-attr]
    with torch.device("meta"):
        unknown = SoftTopK(torch.tensor([1.0, 2.0]))
    unknown.to_empty(device="cpu").reset_parameters()
    assert unknown.k.device.type == "cpu"  # type: ignore[union-attr]


def test_bad_numbers_are_an_error_on_meta_too() -> None:
    with torch.device("meta"):
        with pytest.raises(ValueError, match="k must lie strictly inside"):
            SoftTopK(12, num_scores=12, learn_k=True)
        with pytest.raises(ValueError, match="temperature must be above 0"):
            SoftTopK(3, 0, learn_temperature=True)


# Masks and lengths ------------------------------------------------------------------------------


@pytest.mark.parametrize("learned", [False, True], ids=["fixed", "learned"])
def test_with_a_mask_rows_may_have_another_length(learned: bool) -> None:
    layer = _learned() if learned else SoftTopK(3, 0.5, num_scores=12)
    for n in (7, 12, 20):
        scores, mask = normal(4, n), torch.arange(n) < torch.tensor([[4], [5], [6], [7]])
        out = layer(scores, mask)
        wanted = soft_topk(scores, _value(layer.k), _value(layer.temperature), mask=mask)
        torch.testing.assert_close(out, wanted, rtol=1e-6, atol=1e-7)
    with pytest.raises(ValueError, match=r"num_scores=12.*\(4, 7\).*mask or clamp"):
        layer(normal(4, 7))


@pytest.mark.parametrize("kind", ["fixed", "learned", "Parameter"])
@pytest.mark.parametrize("hard", [False, True], ids=["soft", "hard"])
def test_clamp_takes_short_rows_whole(kind: str, hard: bool) -> None:
    """Variable lengths, padded: every kind of k behaves like the function."""
    k = Parameter(torch.tensor(3.5)) if kind == "Parameter" else 3.5
    layer = SoftTopK(k, 0.5, num_scores=12, learn_k=kind == "learned", clamp=True, hard=hard)
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
    assert round(_value(layer.k)) in (6, 7)  # one too few, one too many: to and fro


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
    fixed = SoftTopK(3, 0.5, dim=dim, num_scores=n)
    learned = SoftTopK(3, 0.5, dim=dim, num_scores=n, learn_k=True)
    wanted = soft_topk(scores, 3, 0.5, dim=dim)
    for layer in (fixed, learned):
        for _ in range(2):  # the second begins at the threshold of the first
            torch.testing.assert_close(layer(scores), wanted, rtol=1e-6, atol=1e-7)
        with pytest.raises(ValueError, match=rf"num_scores={n} entries along dim="):
            layer(normal(5, 7, 9))


# Graphs -----------------------------------------------------------------------------------------


class Model(torch.nn.Module):
    def __init__(self, layer: SoftTopK) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(12, 12)
        self.select = layer

    def forward(self, x: Tensor) -> Tensor:
        return x * self.select(self.linear(x))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", ["fixed", "learned", "clamped", "hard", "Parameter"])
@pytest.mark.usefixtures("fresh_compiler")
def test_a_model_with_the_layer_is_exported(kind: str, strict: bool) -> None:
    """Values travel in its state dict; the kept threshold is off."""
    layer = {
        "fixed": lambda: SoftTopK(3, 0.5),
        "learned": _learned,
        "clamped": lambda: _learned(hard=True, clamp=True),
        "hard": lambda: SoftTopK(3, 0.5, hard=True),
        "Parameter": lambda: SoftTopK(Parameter(torch.tensor(3.0)), 0.5),
    }[kind]()
    model = Model(layer)
    inputs = normal(4, 12, dtype=torch.float32)
    model(inputs)  # so that there is a threshold that could be kept
    before = layer._last_threshold
    rows = {"x": {0: torch.export.Dim("rows", min=2, max=64)}}
    exported = torch.export.export(model, (inputs,), dynamic_shapes=rows, strict=strict)
    assert layer._last_threshold is before
    assert {f"select.{name}" for name in layer.state_dict()} <= set(exported.state_dict)
    run = exported.module()
    for other in (inputs, normal(7, 12, seed=1, dtype=torch.float32)):
        torch.testing.assert_close(run(other), model(other))


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_layer_follows_its_values_without_compiling_anew() -> None:
    graphs = 0

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        nonlocal graphs
        graphs += 1
        return graph

    layer = SoftTopK(3, 0.5)
    compiled = torch.compile(layer, backend=count, fullgraph=True)
    scores = normal(4, 12)
    for step in range(20):
        layer.k, layer.temperature = 1 + step / 2, 0.1 + step / 10
        wanted = soft_topk(scores, layer.k, layer.temperature)
        torch.testing.assert_close(compiled(scores), wanted)
    assert graphs == 1
    assert layer._last_threshold is None


@pytest.mark.parametrize("clamp", [False, True])
@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_layer_learns_what_an_eager_one_does(clamp: bool) -> None:
    scores, upstream = normal(4, 12), normal(4, 12, seed=1)
    gradients = []
    for compiled in (False, True):
        layer = _learned(clamp=clamp)
        call = torch.compile(layer, backend="aot_eager", fullgraph=True) if compiled else layer
        call(scores).mul(upstream).sum().backward()
        gradients.append([parameter.grad for parameter in layer.parameters()])
    torch.testing.assert_close(*gradients)


def test_a_fake_threshold_is_not_kept() -> None:
    layer = SoftTopK(3, 0.5)
    with torch._subclasses.FakeTensorMode() as mode:
        layer(mode.from_tensor(normal(4, 12)))
    assert layer._last_threshold is None
    assert_budget(layer(normal(4, 12)), 3.0)


def test_a_hard_layer_asks_for_no_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "return_threshold" not in _seen(SoftTopK(3, hard=True), monkeypatch)
    assert _seen(SoftTopK(3), monkeypatch)["return_threshold"] is True
