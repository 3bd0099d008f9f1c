"""What a layer keeps as it is called, saved, moved, compiled and exported."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import Parameter

from cases import assert_budget, normal
from fast_lapsum import soft_topk
from fast_lapsum.nn import SoftTopK, TemperatureSchedule, kept
from fast_lapsum.nn import layer as layer_module
from layer_cases import learned_layer, number, passed_on
from places import DATA


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
        passed = passed_on(other, monkeypatch)
        assert (passed["k"], passed["temperature"]) == (2.5, 0.25)


def test_a_buffer_that_somebody_else_writes_counts() -> None:
    """Averaged models and broadcasts write buffers in place."""
    layer = SoftTopK(3, 0.5)
    layer.given_k.fill_(4)
    assert_budget(layer(normal(4, 12)), 4.0)
    assert layer.k == 4.0
    assert isinstance(layer.k, float)


def test_what_somebody_else_wrote_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """DistributedDataParallel writes every buffer when it is made, mostly what was there before."""
    layer = SoftTopK(3, 0.5)
    layer.given_k.copy_(layer.given_k.clone())
    layer.given_temperature.fill_(0.25)
    passed = passed_on(layer, monkeypatch)
    assert (passed["k"], passed["temperature"]) == (3.0, 0.25)
    assert {type(passed["k"]), type(passed["temperature"])} == {float}
    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "item", None)  # from now on the host knows
        layer(normal(4, 12))


def test_a_gpu_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes in every step would have every step wait."""
    layer = SoftTopK(3, 0.5)
    monkeypatch.setattr(Tensor, "is_cpu", False)
    for written, kind in ((4.0, float), (5.0, Tensor), (6.0, Tensor)):
        layer.given_k.fill_(written)
        for _ in range(2):  # as checkpointing calls it
            assert isinstance(layer._value("given_k"), kind)
            assert layer._value("given_k") == written
    for annealed in (7.0, 8.0):  # a broadcast may follow on every number that is set
        layer.k = annealed
        assert isinstance(layer._value("given_k"), float)
        layer.given_k.fill_(annealed)
        assert isinstance(layer._value("given_k"), Tensor)


def test_what_somebody_else_wrote_stays_a_tensor_in_a_trace() -> None:
    layer = SoftTopK(3, 0.5)
    layer.given_k.fill_(4)
    traced = make_fx(lambda scores: layer(scores))(normal(4, 12))
    layer.given_k.fill_(5)
    assert_budget(traced(normal(4, 12)), 5.0)


def test_functional_call_replaces_numbers_too() -> None:
    layer = SoftTopK(3, 0.5)
    scores = normal(4, 12)
    other = {name: 2 * value for name, value in layer.state_dict().items()}
    out = torch.func.functional_call(layer, other, (scores,))
    torch.testing.assert_close(out, soft_topk(scores, 6, 1.0))
    assert (layer.k, layer.temperature) == (3.0, 0.5)


def test_an_ensemble_of_layers() -> None:
    layers = [SoftTopK(k, 0.5, keep_threshold=True) for k in (2, 3, 4)]
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
        learned_layer().load_state_dict(state)
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
        assert number(layer.k) == pytest.approx(k, rel=1e-12)
        assert number(layer.temperature) == pytest.approx(temperature, rel=1e-12)
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
    assert number(layers["learned"].k) == pytest.approx(3)
    assert "k=4" in repr(layers["temperature"])


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
    learned = learned_layer().to("meta")
    assert isinstance(learned.k, Tensor)
    assert learned.k.dtype == torch.float32


def test_print_works_on_meta() -> None:
    with torch.device("meta"):
        layers = SoftTopK(3, 0.5), learned_layer(), SoftTopK(torch.tensor([2.0, 3.0]))
    assert "k=3, temperature=0.5" in repr(layers[0])
    assert "k=meta, temperature=meta" in repr(layers[1])
    assert "k=meta" in repr(layers[2])
    assert "k=3" in repr(SoftTopK(3).to("meta"))


def test_reset_parameters_after_to_empty() -> None:
    with torch.device("meta"):
        layers = torch.nn.ModuleList(
            [learned_layer(), SoftTopK(3, 0.5), SoftTopK(2, num_scores=12)]
        )
        layers[2].k = 4
    layers.to_empty(device="cpu")
    for parameter in layers.parameters():
        parameter.data.fill_(math.nan)  # what was there before
    assert layers[1].k == layers[1].given_k.item() == 3.0  # a number is not lost on the way
    assert layers[2].k == layers[2].given_k.item() == 4.0
    for layer in layers:
        layer.reset_parameters()
    assert [number(layer.k) for layer in layers] == pytest.approx([3, 3, 2])
    assert [number(layer.temperature) for layer in layers] == pytest.approx([0.5, 0.5, 1])
    for layer in layers:
        assert_budget(layer(normal(4, 12)).detach(), number(layer.k))


def test_reset_forgets_the_threshold_and_restores_tensors() -> None:
    start = torch.tensor([1.0, 2.0, 3.0, 4.0])
    layer = SoftTopK(start.clone(), 0.5, keep_threshold=True)
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
    assert unknown.k.isnan().all()  # type: ignore[union-attr]


def test_bad_numbers_are_an_error_on_meta_too() -> None:
    with torch.device("meta"):
        with pytest.raises(ValueError, match="k must lie strictly inside"):
            SoftTopK(12, num_scores=12, learn_k=True)
        with pytest.raises(ValueError, match="temperature must be above 0"):
            SoftTopK(3, 0, learn_temperature=True)


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
        "fixed": lambda: SoftTopK(3, 0.5, keep_threshold=True),
        "learned": lambda: learned_layer(keep_threshold=True),
        "clamped": lambda: learned_layer(hard=True, clamp=True),
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

    layer = SoftTopK(3, 0.5, keep_threshold=True)
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
        layer = learned_layer(clamp=clamp)
        call = torch.compile(layer, backend="aot_eager", fullgraph=True) if compiled else layer
        call(scores).mul(upstream).sum().backward()
        gradients.append([parameter.grad for parameter in layer.parameters()])
    torch.testing.assert_close(*gradients)


def test_a_fake_threshold_is_not_kept() -> None:
    layer = SoftTopK(3, 0.5, keep_threshold=True)
    with torch._subclasses.FakeTensorMode() as mode:
        layer(mode.from_tensor(normal(4, 12)))
    assert layer._last_threshold is None
    assert_budget(layer(normal(4, 12)), 3.0)


def test_a_hard_layer_asks_for_no_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    hard = SoftTopK(3, hard=True, keep_threshold=True)
    assert "return_threshold" not in passed_on(hard, monkeypatch)
    assert "return_threshold" not in passed_on(SoftTopK(3), monkeypatch)
    assert passed_on(SoftTopK(3, keep_threshold=True), monkeypatch)["return_threshold"] is True


def test_values_that_never_were_are_not_what_lies_in_memory() -> None:
    with torch.device("meta"):
        layer = SoftTopK(torch.nn.Parameter(torch.tensor(2.0)))
    layer.reset_parameters()
    layer.to_empty(device="cpu").reset_parameters()
    assert isinstance(layer.k, torch.nn.Parameter)
    assert layer.k.isnan()
    layer.load_state_dict(SoftTopK(torch.nn.Parameter(torch.tensor(3.0))).state_dict())
    assert layer.k.item() == 3


def test_a_layer_that_was_pickled_before_it_could_validate() -> None:
    layer = SoftTopK(2, 0.5)
    state = layer.__getstate__()
    del state["validate"]
    old = SoftTopK.__new__(SoftTopK)
    old.__setstate__(state)
    scores = normal(3, 12)
    torch.testing.assert_close(old(scores), layer(scores))
    assert repr(old) == repr(layer)
