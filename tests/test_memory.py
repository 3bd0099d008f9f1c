"""No allocation in proportion to n beyond the output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fast_lapsum.cpu import kernel

N = 10_000_000

SCRIPT = """
import json, sys
import torch
from fast_lapsum import soft_topk

n, temperature, repeats = int(sys.argv[1]), float(sys.argv[2]), 2

def status(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))

def call(scores):
    return soft_topk(scores, len(scores) / 16, temperature)

scores = torch.randn(n, generator=torch.Generator().manual_seed(0))
call(scores[:200_000])  # start the threads and load what is loaded on the first call
peaks = []
for _ in range(repeats):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the high-water mark starts again from here
    before = status("VmRSS")
    mask = call(scores)
    peaks.append(status("VmHWM") - before)
    assert abs(mask.double().sum().item() - n / 16) < 1
    del mask
print(json.dumps(peaks))
"""


@pytest.mark.skipif(
    not kernel.supports(torch.empty(1)), reason="the compiled CPU kernel is not built"
)
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("temperature", [1.0, 0.01])
def test_forward_needs_little_beyond_the_output(temperature: float) -> None:
    """At n = 1e7 in float32: at most 5% of the input on top of the mask itself."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(N), str(temperature)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    size = 4 * N
    extra = min(json.loads(done.stdout)) - size
    assert extra <= 0.05 * size, f"{extra / 1e6:.1f} MB beyond the output of {size / 1e6:.0f} MB"
