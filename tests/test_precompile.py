"""Kernels of a new kind of call are compiled side by side; no GPU is needed to see that."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

import triton

from fast_lapsum.triton import precompile
from fast_lapsum.triton.precompile import Launch, compile_together

if not hasattr(triton, "AsyncCompileMode"):
    pytest.skip("this Triton compiles one kernel at a time", allow_module_level=True)

from triton.runtime import _async_compile


class Kernel:
    """A kernel whose compilation is the given function, submitted as Triton's own are."""

    def __init__(self, name: str, compiling: Callable[[], Any]) -> None:
        self.name = name
        self.compiling = compiling
        self.calls: list[tuple[Any, ...]] = []

    def warmup(self, *args: Any, grid: tuple[int, ...], **kwargs: Any) -> None:
        self.calls.append((args, grid, kwargs))
        _async_compile.active_mode.get().submit(self.name, self.compiling, lambda kernel: None)


def _launches(*kernels: Kernel) -> list[Launch]:
    return [
        Launch(number, kernel, 3, (1.5, 7), {"BLOCK": 16}, {"num_warps": 2})
        for number, kernel in enumerate(kernels)
    ]


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precompile, "_known", set())
    monkeypatch.setattr(precompile.os, "cpu_count", lambda: 2)


def test_kernels_of_a_kind_are_compiled_together_and_once() -> None:
    both = threading.Barrier(2, timeout=20)  # neither is through before the other has begun
    kernels = [Kernel(name, both.wait) for name in "ab"]
    for kind in ("one", "one"):
        compile_together(kind, _launches(*kernels))
    for kernel in kernels:
        assert kernel.calls == [((1.5, 7), (3,), {"BLOCK": 16, "num_warps": 2})]
    compile_together("other", _launches(Kernel("c", lambda: None)))
    assert _async_compile.active_mode.get() is None


def test_what_does_not_compile_says_so_and_leaves_no_mode_behind() -> None:
    def fail() -> None:
        raise ValueError("no such instruction")

    with pytest.raises(ValueError, match="no such instruction"):
        compile_together("bad", _launches(Kernel("a", fail)))
    assert _async_compile.active_mode.get() is None


def test_a_caller_may_be_compiling_in_the_same_way() -> None:
    compiled = []
    with precompile.ThreadPoolExecutor(1) as threads, triton.AsyncCompileMode(threads) as mode:
        compile_together("kind", _launches(Kernel("a", lambda: compiled.append("a"))))
        assert compiled == ["a"]
        assert _async_compile.active_mode.get() is mode
