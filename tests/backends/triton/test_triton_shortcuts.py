"""The interpreter's shortcuts (tests/interpreter_types.py) give what the interpreter gives.

Like test_triton_interpreted.py this wants a process of its own, with ``TRITON_INTERPRET=1``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("`make test` interprets the kernels in another process", allow_module_level=True)

import triton
import triton.language as tl

HERE = Path(__file__).parent
N = 8


@triton.jit
def _numbers_of_all_kinds(source, wide_source, out, types, length: tl.constexpr):
    """Every way in which numbers of two types or shapes meet, one line of results each."""
    place = tl.arange(0, length)
    x, wide = tl.load(source + place), tl.load(wide_source + place)
    whole, one = place - 3, tl.load(source)
    long = whole.to(tl.int64)
    half = x.to(tl.bfloat16)
    table = x[:, None] * x[None, :]
    found = (
        x + wide,
        1 - x,
        2.5 * whole,
        x / 3,
        3 / x,
        whole / 7,
        whole // 3,
        whole % 3,
        whole + long,
        whole * 1_000_000_000,  # which does not fit
        long * 1_000_000_000,
        x * one,
        one * wide,
        half + x,
        half.to(tl.float32) * 2,
        half + wide,
        x < wide,
        whole == 2,
        (x > 0.5) & (wide > 0),
        (x > 0.5) * x,
        tl.where(x > 0.5, x, 0),
        tl.where(x > 0.5, whole, wide),
        tl.maximum(x, 0.25),
        tl.exp2(-x),
        tl.sum(table, 0),
        tl.sum(table + x[:, None], 1),
        tl.max(wide[:, None] - x[None, :], 1),
        x.to(tl.int32, bitcast=True) >> 3,
        -whole,
        x + 1e-300,
        whole * 0.1,
        tl.cumsum(x, 0),
    )
    for i in tl.static_range(len(found)):
        tl.store(out + i * length + place, found[i].to(tl.float64))
        tl.store(types + i, found[i].dtype.primitive_bitwidth + 1000 * found[i].dtype.is_floating())


def _results() -> list[Any]:
    g = torch.Generator().manual_seed(1)
    source, wide = torch.randn(N, generator=g), torch.randn(N, generator=g, dtype=torch.float64)
    out = torch.full((32, N), -7.0, dtype=torch.float64)
    types = torch.full((32,), -7, dtype=torch.int32)
    _numbers_of_all_kinds[(1,)](source, wide, out, types, N)
    return [out.view(torch.int64).tolist(), types.tolist()]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_numbers_of_all_kinds_are_what_they_are_without_shortcuts() -> None:
    """Bits and types, in a process that knows of no shortcut."""
    code = f"import json, {Path(__file__).stem} as own; print(json.dumps(own._results()))"
    plain = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, "PYTHONPATH": str(HERE)},
        capture_output=True,
        text=True,
    )
    assert plain.returncode == 0, plain.stderr
    import interpreting  # noqa: F401  (which installs the shortcuts)

    found = _results()
    assert -7 not in found[1]
    assert json.loads(plain.stdout) == found


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_blocks_that_do_not_go_together_are_refused() -> None:
    import interpreting  # noqa: F401

    for _ in range(2):  # what is remembered is refused again
        with pytest.raises(Exception, match="incompatible dimensions"):
            _two_shapes[(1,)](torch.zeros(8))


@triton.jit
def _two_shapes(out):
    tl.store(out + tl.arange(0, 8), tl.arange(0, 8) + tl.arange(0, 4))
