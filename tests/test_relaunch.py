"""Kernels that were launched before are launched again with the same arguments, by position."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="the GPU backend needs Triton")

from fast_lapsum.backends.triton import relaunch


class Kernel:
    """What Triton returns from a launch, as far as it is used here."""

    function = "function"
    packed_metadata = "metadata"

    def __init__(self) -> None:
        self.runs: list[tuple[Any, ...]] = []

    def run(self, *arguments: Any) -> None:
        self.runs.append(arguments)


class Function:
    """A kernel before it is compiled."""

    arg_names = ("scores", "mask", "n", "BLOCK")

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []
        self.kernel = Kernel()

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, **constants: Any) -> Kernel:
            self.launches.append((grid, arguments, constants))
            return self.kernel

        return launch


@pytest.fixture
def function(monkeypatch: pytest.MonkeyPatch) -> Function:
    function = Function()
    function.arg_names = list(function.arg_names)  # type: ignore[assignment]
    monkeypatch.setattr(relaunch, "_compiled", {})
    monkeypatch.setattr(relaunch, "_is_known", True)
    monkeypatch.setattr(relaunch, "_device", lambda: 0)
    monkeypatch.setattr(relaunch, "_stream", lambda device: 7)
    monkeypatch.setattr(relaunch, "_has_hooks", lambda: False)
    return function


def _launch(function: Function, key: object, device: int = 0, n: int = 5) -> torch.Tensor:
    scores = torch.zeros(8)
    relaunch.launch(key, function, 3, device, (scores, None, n), {"BLOCK": 16}, num_warps=2)
    return scores


def test_second_launch_passes_addresses_and_constants_by_position(function: Function) -> None:
    _launch(function, "key")
    assert [grid for grid, _, _ in function.launches] == [(3,)]
    assert function.launches[0][2] == {"BLOCK": 16, "num_warps": 2}
    scores = _launch(function, "key", n=6)
    assert len(function.launches) == 1
    (run,) = function.kernel.runs
    assert run[:6] == (3, 1, 1, 7, "function", "metadata")
    assert run[6:9] == (None, None, None)
    assert run[9:] == (scores.data_ptr(), None, 6, 16)


@pytest.mark.parametrize("change", ["key", "device", "hooks", "no key", "version"])
def test_what_is_not_the_same_goes_the_long_way(
    function: Function, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    if change == "version":
        monkeypatch.setattr(relaunch, "_is_known", False)
    _launch(function, None if change == "no key" else "key")
    if change == "hooks":
        monkeypatch.setattr(relaunch, "_has_hooks", lambda: True)
    key = {"key": "other", "no key": None}.get(change, "key")
    _launch(function, key, device=1 if change == "device" else 0)
    assert len(function.launches) == 2
    assert not function.kernel.runs


def test_constants_out_of_order_are_refused(function: Function) -> None:
    function.arg_names[-1] = "OTHER"  # type: ignore[index]
    with pytest.raises(AssertionError):
        _launch(function, "key")


def test_layout_tells_dtype_and_alignment_apart() -> None:
    aligned = torch.zeros(16)
    assert relaunch.layout([aligned, None]) == ((torch.float32, True), None)
    assert relaunch.layout([aligned[1:]]) == ((torch.float32, False),)
    assert relaunch.layout([aligned.double()]) != relaunch.layout([aligned])


def test_kept_kernels_do_not_grow_without_end(
    function: Function, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relaunch, "_MOST", 3)
    for key in range(10):
        _launch(function, key)
    assert len(relaunch._compiled) <= 3


# Recipes: a call of several launches, kept whole


class Watched:
    """A kernel that launches nothing; its launches and relaunches are written down."""

    def __init__(
        self, name: str, real: Any, diary: list[tuple[str, bool, tuple[Any, ...]]]
    ) -> None:
        self.name, self.arg_names, self.diary = name, list(real.arg_names), diary
        self.function, self.packed_metadata = f"{name} compiled", "metadata"

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, **named: Any) -> Watched:
            constants = tuple(named[x] for x in self.arg_names[len(arguments) :])
            values = (*arguments, *constants)
            addresses = (x.data_ptr() if isinstance(x, torch.Tensor) else x for x in values)
            self.diary.append((self.name, False, (grid[0], *addresses)))
            return self

        return launch

    def run(self, *values: Any) -> None:
        programs, one, other, stream, function, metadata, *hooks = values[:9]
        assert (one, other, stream, function) == (1, 1, 7, self.function)
        assert (metadata, hooks) == ("metadata", [None] * 3)
        assert len(values[9:]) == len(self.arg_names)
        self.diary.append((self.name, True, (programs, *values[9:])))


@pytest.fixture
def diary(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool, tuple[Any, ...]]]:
    from triton.runtime import JITFunction

    from fast_lapsum.triton import launch, long_rows

    written: list[tuple[str, bool, tuple[Any, ...]]] = []
    for module in (launch, long_rows):
        for name, value in list(vars(module).items()):
            if isinstance(value, JITFunction):
                monkeypatch.setattr(module, name, Watched(name, value, written))
        monkeypatch.setattr(module, "cores_of", lambda device: 132)
    monkeypatch.setattr(long_rows, "overlaps", lambda device: True)
    for name, value in {"_recipes": {}, "_compiled": {}, "_is_known": True}.items():
        monkeypatch.setattr(relaunch, name, value)
    monkeypatch.setattr(relaunch, "_device", lambda: None)  # the "device" of a CPU tensor
    monkeypatch.setattr(relaunch, "_stream", lambda device: 7)
    monkeypatch.setattr(relaunch, "_has_hooks", lambda: False)
    return written


def _told(entries: list[Any], named: dict[str, torch.Tensor]) -> list[Any]:
    """Launches with addresses as (tensor, offset); scratch memory by its offset from the lowest."""
    addresses = [
        v for _, _, values in entries for v in values if isinstance(v, int) and v > 1 << 32
    ]
    spans = {name: (x.data_ptr(), x.numel() * x.itemsize) for name, x in named.items()}

    def owner(address: int) -> tuple[str, int]:
        for name, (first, size) in spans.items():
            if first <= address < first + size:
                return name, address - first
        return "scratch", address

    base = min((a for a in addresses if owner(a)[0] == "scratch"), default=0)

    def tell(value: Any) -> Any:
        if not (isinstance(value, int) and value > 1 << 32):
            return value
        name, offset = owner(value)
        return name, offset - (base if name == "scratch" else 0)

    return [(name, tuple(map(tell, values))) for name, _, values in entries]


@pytest.mark.parametrize("shape", [(40_000,), (3, 70_001), (2, 300_000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_recipe_makes_the_launches_of_a_first_call(
    diary: list[tuple[str, bool, tuple[Any, ...]]], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """For other tensors, another k and another t: nothing of the first call may stay behind."""
    from fast_lapsum.triton import launch

    def call(k: float, t: float, seed: int) -> tuple[list[Any], list[Any], list[bool]]:
        diary.clear()
        torch.manual_seed(seed)
        scores, grad = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
        out, pairs = launch.forward(scores, None, k, None, t, None, None, True, False, dtype)
        forward = _told(diary, {"scores": scores, "out": out, "pairs": pairs})
        relaunched = [again for _, again, _ in diary]
        diary.clear()
        d_scores, _, _ = launch.backward(grad, scores, None, t, None, pairs, True, False)
        named = {"scores": scores, "grad": grad, "pairs": pairs, "out": d_scores}
        return forward, _told(diary, named), relaunched + [again for _, again, _ in diary]

    kept = [torch.empty(1000) for _ in range(3)]  # so that addresses differ between calls
    call(10.3, 0.7, 0)  # no float32: the low words of both numbers count
    again = call(77.1, 0.3, 1)
    assert all(again[2])
    relaunch._recipes.clear()
    fresh = call(77.1, 0.3, 2)
    assert not any(fresh[2])
    assert again[:2] == fresh[:2]
    assert {name for name, _ in fresh[0]} >= {"sample_forward", "round_forward", "mask_forward"}
    del kept


def test_the_same_memory_twice_makes_no_recipe(
    diary: list[tuple[str, bool, tuple[Any, ...]]],
) -> None:
    from fast_lapsum.triton import launch

    scores = torch.randn(40_000)
    _, pairs = launch.forward(scores, None, 10, None, 1.0, None, None, True, False, torch.float32)
    before = len(relaunch._recipes)
    launch.backward(scores, scores, None, 1.0, None, pairs, True, False)
    assert len(relaunch._recipes) == before
    launch.backward(scores.clone(), scores, None, 1.0, None, pairs, True, False)
    assert len(relaunch._recipes) == before + 1


@pytest.mark.parametrize(
    "change",
    [
        "device",
        "hooks",
        "version",
        "settings",
        "mask",
        "strides",
        "alignment",
        "dtype",
        "largest",
        "out dtype",
    ],
)
def test_what_a_recipe_is_not_for(
    diary: list[tuple[str, bool, tuple[Any, ...]]], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    from fast_lapsum.triton import launch

    largest, out_dtype = True, torch.float32

    def call(scores: torch.Tensor, mask: Any = None, settings: Any = None) -> list[bool]:
        diary.clear()
        launch.forward(scores, None, 10, None, 1.0, mask, None, largest, False, out_dtype, settings)
        return [again for _, again, _ in diary]

    memory = torch.randn(2 * 40_000 + 1)
    scores = memory[:-1].view(2, 40_000)
    if change == "version":
        monkeypatch.setattr(relaunch, "_is_known", False)
    call(scores)
    mask = settings = None
    if change == "device":
        monkeypatch.setattr(relaunch, "_device", lambda: 1)
    elif change == "hooks":
        monkeypatch.setattr(relaunch, "_has_hooks", lambda: True)
    elif change == "settings":
        settings = launch.streaming(40_000)
    elif change == "mask":
        mask = torch.ones(2, 40_000, dtype=torch.bool)
    elif change == "strides":
        scores = torch.randn(40_000, 2).mT
    elif change == "alignment":
        scores = memory[1:].view(2, 40_000)
    elif change == "dtype":
        scores = scores.bfloat16()
    elif change == "largest":
        largest = False
    elif change == "out dtype":
        out_dtype = torch.float64
    made = call(scores, mask, settings)
    assert made
    assert not any(made)


# One launch: rows that one program holds


def test_short_rows_are_launched_again_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """For other tensors, another k and another t: nothing of the first call may stay behind."""
    from fast_lapsum.backends.triton import launch

    diary: list[tuple[str, bool, tuple[Any, ...]]] = []
    for name in ("tile_forward", "tile_backward"):
        monkeypatch.setattr(launch, name, Watched(name, getattr(launch, name), diary))
    for name, value in {"_compiled": {}, "_is_known": True}.items():
        monkeypatch.setattr(relaunch, name, value)
    monkeypatch.setattr(relaunch, "_device", lambda: None)
    monkeypatch.setattr(relaunch, "_stream", lambda device: 7)
    monkeypatch.setattr(relaunch, "_has_hooks", lambda: False)

    def call(k: float, t: float, seed: int) -> tuple[list[Any], list[bool]]:
        diary.clear()
        scores, grad = torch.randn(6, 40), torch.randn(6, 40)
        out, pairs = launch.forward(
            scores, None, k, None, t, None, None, True, False, torch.float32
        )
        d_scores, _, _ = launch.backward(grad, scores, None, t, None, pairs, True, False)
        tensors = (scores, grad, pairs, out, d_scores)
        names = dict(zip((x.data_ptr() for x in tensors), "sgpod", strict=True))

        def told(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(told(x) for x in value)
            if isinstance(value, torch.Tensor):
                value = value.data_ptr()
            return names.get(value, value) if type(value) is int else value

        return [(name, told(values)) for name, _, values in diary], [x for _, x, _ in diary]

    kept = [torch.empty(1000) for _ in range(3)]
    call(10.3, 0.7, 0)
    assert all(
        rows.start is None
        for made in relaunch._compiled.values()
        for rows in (made.call.scores, *made.results)
    ), "what is kept must not hold a call's tensors"
    again, relaunched = call(7.1, 0.3, 1)
    assert relaunched == [True, True]
    relaunch._compiled.clear()
    fresh, relaunched = call(7.1, 0.3, 2)
    assert relaunched == [False, False]
    assert again == fresh
    del kept
