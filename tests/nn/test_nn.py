"""The layer, its learned budget and temperature, and the temperature schedule."""

from __future__ import annotations

import copy
import io
import itertools
import math
import pickle

import pytest
import torch

from cases import assert_budget, normal
from fast_lapsum import soft_topk
from fast_lapsum.nn import SoftTopK, TemperatureSchedule, annealed_temperature
from layer_cases import learned_layer, number

SHAPES = ("exponential", "linear", "cosine")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_the_layer_is_the_function(dtype: torch.dtype, largest: bool, dim: int) -> None:
    scores = normal(6, 12, dtype=dtype)
    layer = SoftTopK(2.5, 0.3, dim=dim, largest=largest)
    wanted = soft_topk(scores, 2.5, 0.3, dim=dim, largest=largest)
    for _ in range(3):
        torch.testing.assert_close(layer(scores), wanted, rtol=1e-6, atol=1e-7)


def test_the_layer_passes_the_mask_on() -> None:
    scores, mask = normal(5, 9), normal(5, 9, seed=1) > -0.5
    torch.testing.assert_close(SoftTopK(2, 0.3)(scores, mask), soft_topk(scores, 2, 0.3, mask=mask))


def test_the_hard_layer_selects_exactly_k_with_a_soft_gradient() -> None:
    scores = normal(5, 9).requires_grad_()
    out = SoftTopK(3, 0.4, hard=True)(scores)
    assert ((out == 0) | (out == 1)).all()
    assert (out.sum(-1) == 3).all()
    upstream = normal(5, 9, seed=1)
    (hard,) = torch.autograd.grad(out, scores, upstream)
    (soft,) = torch.autograd.grad(soft_topk(scores, 3, 0.4), scores, upstream)
    torch.testing.assert_close(hard, soft)


def test_learned_values_start_where_they_were_put() -> None:
    layer = SoftTopK(k=3.25, temperature=0.35, num_scores=40, learn_k=True, learn_temperature=True)
    assert number(layer.k) == pytest.approx(3.25, rel=1e-6)
    assert number(layer.temperature) == pytest.approx(0.35, rel=1e-6)
    assert len(list(layer.parameters())) == 2
    assert not list(SoftTopK(k=3).parameters())


def test_learned_values_receive_gradients() -> None:
    layer = learned_layer()
    layer(normal(4, 12)).square().sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite()
        assert parameter.grad != 0


@pytest.mark.parametrize("extreme", [-1e4, -200.0, -90.0, 90.0, 200.0, 1e4])
@pytest.mark.parametrize("n", [2, 3, 12, 1000, 2**20 + 1])
def test_every_reachable_parameter_is_legal(extreme: float, n: int) -> None:
    """k strictly inside (0, n), the temperature positive and finite, whatever an optimiser does."""
    layer = SoftTopK(k=1, temperature=0.5, num_scores=n, learn_k=True, learn_temperature=True)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(extreme)
    assert 0 < number(layer.k) < n
    assert 0 < number(layer.temperature) < math.inf


@pytest.mark.parametrize("extreme", [-1e4, -100.0, 100.0, 1e4])
def test_the_layer_stays_finite_at_extreme_parameters(extreme: float) -> None:
    for name in ("budget_logit", "log_temperature"):
        layer = learned_layer()
        with torch.no_grad():
            getattr(layer, name).fill_(extreme)
        out = layer(normal(4, 12))
        assert out.isfinite().all()
        out.square().sum().backward()
        assert all(p.grad is not None and p.grad.isfinite() for p in layer.parameters())


@pytest.mark.parametrize("sign", [-1.0, 1.0], ids=["shrink", "grow"])
def test_training_stays_inside_the_bounds(sign: float) -> None:
    """AdamW pushes k and t as hard as it can, into both directions."""
    torch.manual_seed(0)
    layer = learned_layer()
    optimiser = torch.optim.AdamW(layer.parameters(), lr=0.5)
    scores = normal(8, 12, dtype=torch.float32)
    for step in range(150):
        optimiser.zero_grad()
        k = number(layer.k)
        out = layer(scores + 0.01 * step)
        loss = -sign * (out.sum() + 1e-3 * torch.as_tensor(layer.temperature))
        loss.backward()
        optimiser.step()
        assert out.isfinite().all()
        assert_budget(out.detach(), k)
        assert 0 < number(layer.k) < 12
        assert 0 < number(layer.temperature) < math.inf
    assert number(layer.k) > 11 if sign > 0 else number(layer.k) < 1


def test_training_finds_the_budget() -> None:
    """A layer that is paid for the mass of five scores learns k = 5."""
    layer = learned_layer()
    optimiser = torch.optim.AdamW(layer.parameters(), lr=0.05, weight_decay=0.0)
    scores = normal(8, 12)
    for _ in range(300):
        optimiser.zero_grad()
        ((layer(scores).sum(-1) - 5) ** 2).mean().backward()
        optimiser.step()
    assert number(layer.k) == pytest.approx(5, abs=1e-2)


def test_the_warm_start_changes_no_result() -> None:
    """Drifting scores, with and without the kept threshold."""
    warm, cold = SoftTopK(37.5, 0.01, keep_threshold=True), SoftTopK(37.5, 0.01)
    scores = normal(4, 600)
    for step in range(10):
        drifted = scores + 0.02 * step * normal(4, 600, seed=step)
        torch.testing.assert_close(warm(drifted), cold(drifted), rtol=1e-11, atol=1e-300)


def test_the_warm_start_survives_changes_of_the_input() -> None:
    """Another shape, dtype, mode, or a spoiled row before: every call is right on its own."""
    layer = SoftTopK(2, 0.1, keep_threshold=True)
    bad = normal(3, 7)
    bad[1, 2] = math.nan
    inputs = [
        normal(3, 7),
        bad,
        normal(3, 7, seed=1),
        normal(3, 9),
        normal(9),
        normal(2, 3, 7),
        normal(3, 7, dtype=torch.float32),
        normal(3, 7, dtype=torch.bfloat16),
        normal(3, 7).fill_(math.inf),
        normal(3, 7, seed=2),
        normal(0, 7),
    ]
    for scores in inputs:
        torch.testing.assert_close(
            layer(scores), soft_topk(scores, 2, 0.1), rtol=1e-6, atol=1e-7, equal_nan=True
        )


def test_evaluation_in_inference_mode_between_training_steps() -> None:
    """The kept threshold comes from inference mode; the next training step must still train."""
    layer = learned_layer(keep_threshold=True)
    scores = normal(4, 12).requires_grad_()
    with torch.inference_mode():
        assert layer(scores.detach()).isfinite().all()
    layer(scores).square().sum().backward()
    assert scores.grad is not None
    with torch.no_grad():
        assert not layer(scores).requires_grad


@pytest.mark.parametrize("learned", [False, True], ids=["fixed", "learned"])
def test_copies_and_pickles_are_whole_and_independent(learned: bool) -> None:
    layer = learned_layer(keep_threshold=True) if learned else SoftTopK(3, 0.5, keep_threshold=True)
    scores = normal(4, 12)
    wanted = layer(scores)  # so that there is a kept threshold to get rid of
    copies = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), copy.copy(layer)]
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    copies.append(torch.load(buffer, weights_only=False))
    for other in copies:
        torch.testing.assert_close(other(scores), wanted, rtol=1e-11, atol=1e-12)
        assert repr(other) == repr(layer)
    if learned:
        with torch.no_grad():
            for parameter in copies[0].parameters():
                parameter.add_(1)
        torch.testing.assert_close(layer(scores), wanted, rtol=1e-11, atol=1e-12)


def test_the_state_dict_of_learned_values_is_the_parameters() -> None:
    layer = learned_layer()
    layer(normal(4, 12))
    state = layer.state_dict()
    assert set(state) == {"budget_logit", "log_temperature"}
    other = SoftTopK(k=9, temperature=2, num_scores=12, learn_k=True, learn_temperature=True)
    other.load_state_dict(state)
    assert number(other.k) == number(layer.k)
    assert number(other.temperature) == number(layer.temperature)


def test_the_layer_moves_between_dtypes() -> None:
    layer = learned_layer().double()
    assert layer(normal(4, 12)).dtype == torch.float64
    layer.half()
    assert layer(normal(4, 12, dtype=torch.float16)).isfinite().all()


def test_repr_names_what_matters() -> None:
    assert repr(SoftTopK(3, 0.5)) == (
        "SoftTopK(k=3, temperature=0.5, dim=-1, largest=True, hard=False)"
    )
    assert "learned=k+temperature" in repr(learned_layer())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"k": -1}, ("k", "k=-1")),
        ({"k": math.nan}, ("k", "k=nan")),
        ({"k": math.inf}, ("k", "k=inf")),
        ({"k": 5, "num_scores": 4}, ("k", "[0, 4]", "k=5")),
        ({"k": 2, "temperature": -1.0}, ("temperature", "temperature=-1.0", "at least 0")),
        ({"k": 2, "temperature": math.inf}, ("temperature", "finite")),
        ({"k": 2, "learn_k": True}, ("num_scores", "learn_k=True", "num_scores=None")),
        ({"k": 2, "learn_k": True, "num_scores": 4, "hard": True}, ("hard", "learn_k", "whole")),
        ({"k": 0, "learn_k": True, "num_scores": 4}, ("k", "(0, 4)", "k=0")),
        ({"k": 4, "learn_k": True, "num_scores": 4}, ("k", "(0, 4)", "k=4")),
        ({"k": 2, "temperature": 0, "learn_temperature": True}, ("temperature", "above 0")),
        ({"k": 2, "dim": (0, 0)}, ("dim", "each once", "(0, 0)")),
        ({"k": 2, "dim": ()}, ("dim", "at least one", "()")),
        ({"k": 2, "num_scores": 8.5}, ("num_scores", "whole number", "8.5")),
        ({"k": 2, "num_scores": -4}, ("num_scores", "whole number", "-4")),
        ({"k": 2, "num_scores": math.nan}, ("num_scores", "whole number", "nan")),
    ],
)
def test_bad_constructor_arguments_are_named(
    arguments: dict[str, object], says: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (the message is checked in full)
        SoftTopK(**arguments)  # type: ignore[arg-type]
    for part in says:
        assert part in str(caught.value)


@pytest.mark.parametrize(("name", "value"), [("k", "2"), ("temperature", "1"), ("k", None)])
def test_bad_constructor_types_are_named(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=rf"{name} must be a number.*{type(value).__name__}"):
        SoftTopK(**{"k": 2, name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "value"), [("num_scores", "4"), ("dim", "a"), ("dim", (0, "b"))])
def test_what_is_no_whole_number_is_named(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"{name} must be an int.*str"):
        SoftTopK(**{"k": 2, name: value})  # type: ignore[arg-type]


def test_a_layer_that_validates_raises_also_in_a_graph() -> None:
    scores = torch.randn(2, 8)
    for layer in (SoftTopK(9, validate=True), SoftTopK(torch.tensor(9.0), validate=True)):
        assert "validate=True" in repr(layer)
        for call in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
            with pytest.raises(ValueError, match=r"k must lie in \[0, .*8\].*got k=9"):
                call(scores)


def test_scores_of_another_length_are_an_error() -> None:
    layer = SoftTopK(k=2, num_scores=12)
    with pytest.raises(ValueError, match=r"scores .*num_scores=12.*\(4, 11\)"):
        layer(normal(4, 11))
    with pytest.raises(ValueError, match=r"dim must lie in \[-1, 0\].*dim=3"):
        SoftTopK(k=2, num_scores=12, dim=3)(normal(12))
    with pytest.raises(TypeError, match="scores must be"):
        layer([1.0] * 12)
    with pytest.raises(ValueError, match=r"k must be a whole number.*k=2\.5"):
        SoftTopK(k=2.5, hard=True)(normal(12))


def test_the_temperature_can_be_set() -> None:
    for layer in (SoftTopK(2, 1.0), learned_layer()):
        layer.temperature = 0.25
        assert number(layer.temperature) == pytest.approx(0.25)
        for bad in (-1.0, math.nan, math.inf):
            with pytest.raises(ValueError, match=r"temperature must .*temperature="):
                layer.temperature = bad
    with pytest.raises(ValueError, match="temperature must be above 0"):
        learned_layer().temperature = 0.0
    hard = SoftTopK(2, 1.0)
    hard.temperature = 0
    assert hard(normal(5)).sum() == 2


@pytest.mark.parametrize("shape", SHAPES)
def test_the_schedule_goes_from_start_to_end_and_stays(shape: str) -> None:
    """Monotone, exact at both ends, and the paper's 1 -> 0.05 unless told otherwise."""
    values = [annealed_temperature(step, 20, shape=shape) for step in range(30)]  # type: ignore[arg-type]
    assert values[0] == 1.0
    assert values[20:] == [0.05] * 10
    assert all(a > b for a, b in itertools.pairwise(values[:21]))
    rising = [annealed_temperature(step, 20, 0.05, 1.0, shape) for step in range(21)]  # type: ignore[arg-type]
    assert rising == sorted(rising)


def test_schedule_shapes_are_what_they_say() -> None:
    assert annealed_temperature(1, 2, 1.0, 0.25, "exponential") == pytest.approx(0.5)
    assert annealed_temperature(1, 2, 1.0, 0.25, "linear") == pytest.approx(0.625)
    assert annealed_temperature(1, 2, 1.0, 0.25, "cosine") == pytest.approx(0.625)
    assert annealed_temperature(1, 4, 1.0, 0.0625, "exponential") == pytest.approx(0.5)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_schedule_sets_its_layers(shape: str) -> None:
    layers = [SoftTopK(2), learned_layer()]
    schedule = TemperatureSchedule(layers, steps=5, shape=shape)  # type: ignore[arg-type]
    for step in range(8):
        wanted = annealed_temperature(step, 5, shape=shape)  # type: ignore[arg-type]
        for layer in layers:
            assert number(layer.temperature) == pytest.approx(wanted, rel=1e-6)
        schedule.step()


def test_the_schedule_resumes() -> None:
    layer = SoftTopK(2)
    schedule = TemperatureSchedule(layer, steps=10)
    for _ in range(4):
        schedule.step()
    state, wanted = schedule.state_dict(), layer.temperature
    resumed = SoftTopK(2)
    other = TemperatureSchedule(resumed, steps=10)
    other.load_state_dict(pickle.loads(pickle.dumps(state)))
    assert resumed.temperature == wanted
    other.step()
    schedule.step()
    assert resumed.temperature == layer.temperature


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"step": -1, "steps": 5}, "step must be at least 0, got step=-1"),
        ({"step": 0, "steps": 0}, "steps must be at least 1, got steps=0"),
        ({"step": 0, "steps": 5, "start": 0.0}, "start must be positive.*start=0"),
        ({"step": 0, "steps": 5, "end": 0.0}, "end must be positive.*end=0"),
        ({"step": 0, "steps": 5, "start": math.nan}, "start must be positive.*start=nan"),
        ({"step": 0, "steps": 5, "end": math.inf}, "end must be positive.*end=inf"),
        ({"step": 0, "steps": 5, "shape": "step"}, "shape must be .*shape='step'"),
        ({"step": 5, "steps": 5, "shape": "step"}, "shape must be .*shape='step'"),
        ({"step": 0, "steps": 2.5}, "steps must be a whole number, got steps=2.5"),
    ],
)
def test_bad_schedules_are_named(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        annealed_temperature(**arguments)  # type: ignore[arg-type]
    arguments.pop("step")
    if "step must" not in says:
        with pytest.raises(ValueError, match=says):
            TemperatureSchedule(SoftTopK(2), **arguments)  # type: ignore[arg-type]


def test_what_is_no_schedule_is_named() -> None:
    with pytest.raises(TypeError, match=r"steps must be a number.*str"):
        TemperatureSchedule(SoftTopK(2), "x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"start must be a number.*str"):
        TemperatureSchedule(SoftTopK(2), 3, start="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="layers must have at least one"):
        TemperatureSchedule([], 3)
    with pytest.raises(ValueError, match="state must have a step_count, got"):
        TemperatureSchedule(SoftTopK(2), 3).load_state_dict({})
    layers = torch.nn.ModuleList([SoftTopK(2), SoftTopK(3)])
    TemperatureSchedule(layers, 3, start=0.5)  # type: ignore[arg-type]
    assert [layer.temperature for layer in layers] == [0.5, 0.5]


def test_a_layer_keeps_its_own_dimensions() -> None:
    dims = [0, 1]
    layer = SoftTopK(2, dim=dims)
    dims[0] = 5
    assert layer(torch.randn(2, 3)).sum().item() == pytest.approx(2)
