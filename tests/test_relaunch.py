"""Kernels that were launched before are launched again with the same arguments, by position."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="the GPU backend needs Triton")

from fast_lapsum.triton import relaunch


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
