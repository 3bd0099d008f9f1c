"""No allocation in proportion to n beyond the output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fast_lapsum.backends.cpu import kernel

pytestmark = [
    pytest.mark.skipif(
        not kernel.supports(torch.empty(1)), reason="the compiled CPU kernel is not built"
    ),
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc"),
]
N = 10_000_000
#: Bytes that are returned.
OUTPUTS = {"soft_topk": 4 * N, "log_soft_topk": 4 * N, "threshold": 0, "sample_topk": 4 * N}

MEASURE = """
import ctypes, json, sys
import torch
import fast_lapsum

n, repeats = int(sys.argv[1]), 2

def status(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))

trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: None)

def peak_of(call):
    trim(0)  # what was freed, such as by compiling imports, could hold a copy unseen
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the high-water mark starts again from here
    before = status("VmRSS")
    found = call()
    return status("VmHWM") - before, found
"""

FUNCTIONS = """
scores = torch.randn(n, generator=torch.Generator().manual_seed(0))
for name in sys.argv[2:]:
    function = getattr(fast_lapsum, name)
    for temperature in (1.0, 0.01):
        function(scores[:200_000], 12_500, temperature)  # load what is loaded on the first call
        peaks = []
        for _ in range(repeats):
            peak, found = peak_of(lambda: function(scores, n // 16, temperature))
            peaks.append(peak)
            if name in ("soft_topk", "sample_topk"):
                assert abs(found.double().sum().item() - n / 16) < 1
            del found
        print(json.dumps([name, temperature, min(peaks)]))
"""

#: Weights of a network: matrices, of which some are transposed, and vectors.
LISTS = """
count = 160
g = torch.Generator().manual_seed(0)

def layers(total, dtypes):
    side = int((total / (count // 2)) ** 0.5)
    shapes = [(side, side) if i % 2 else (16 + i,) for i in range(count)]
    made = [torch.randn(*shapes[i], generator=g).to(dtypes[i % 3]) for i in range(count)]
    return [x.T if i % 4 == 1 else x for i, x in enumerate(made)]

for name, dtypes in (
    ("float32", [torch.float32] * 3),
    ("mixed", [torch.float32, torch.bfloat16, torch.float16]),
):
    for temperature in (1.0, 0.01):
        few = [x.requires_grad_() for x in layers(200_000, dtypes)]
        masks = fast_lapsum.soft_topk_list(few, 12_500, temperature)
        torch.autograd.grad(masks, few, masks)  # load what is loaded on the first call
        tensors = [x.requires_grad_() for x in layers(n, dtypes)]
        k, size = sum(x.numel() for x in tensors) // 16, sum(x.nbytes for x in tensors)
        copied = peak_of(lambda: [x.detach().clone() for x in tensors])[0]
        assert copied > 0.95 * size, (copied, size)  # a copy would be seen
        for _ in range(repeats):
            forward, masks = peak_of(lambda: fast_lapsum.soft_topk_list(tensors, k, temperature))
            assert abs(sum(x.double().sum().item() for x in masks) - k) < 1e-3 * k
            given = [x.detach() for x in masks]
            backward, grads = peak_of(lambda: torch.autograd.grad(masks, tensors, given))
            print(json.dumps([name, temperature, size, forward, backward]))
            del masks, given, grads
"""


def _measured(script: str, n: int, *names: str) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE + script, str(n), *names],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        # Memory that is freed goes back at once: kept for the next call it would not be seen again.
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_forward_needs_little_beyond_the_output() -> None:
    """At n = 1e7 in float32: at most 5% of the input on top of what is returned."""
    found = _measured(FUNCTIONS, N, *OUTPUTS)
    assert len(found) == 2 * len(OUTPUTS)
    for name, temperature, peak in found:
        size = OUTPUTS[name]
        assert peak - size <= 0.05 * 4 * N, (
            f"{name} at t = {temperature}: {(peak - size) / 1e6:.1f} MB beyond the output of "
            f"{size / 1e6:.0f} MB"
        )


def test_lists_are_read_where_they_lie() -> None:
    """160 tensors of 5e6 scores: at most 5% of them on top of the masks, and of the gradients."""
    least: dict[tuple[str, float], list[float]] = {}
    for name, temperature, size, *peaks in _measured(LISTS, N // 2):
        beyond = [(peak - size) / size for peak in peaks]
        before = least.get((name, temperature), beyond)
        least[name, temperature] = [min(pair) for pair in zip(before, beyond, strict=True)]
    assert len(least) == 4
    for case, beyond in least.items():
        assert max(beyond) <= 0.05, f"{case}: {beyond} of the scores beyond what is returned"
