"""No allocation in proportion to n beyond the output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fast_lapsum.backends.cpu import kernel

N = 10_000_000
#: Bytes that are returned.
OUTPUTS = {"soft_topk": 4 * N, "log_soft_topk": 4 * N, "threshold": 0, "sample_topk": 4 * N}

SCRIPT = """
import json, sys
import torch
import fast_lapsum

n, temperature, repeats = int(sys.argv[1]), float(sys.argv[2]), 2
function = getattr(fast_lapsum, sys.argv[3])

def status(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))

def call(scores):
    return function(scores, len(scores) // 16, temperature)

scores = torch.randn(n, generator=torch.Generator().manual_seed(0))
call(scores[:200_000])  # start the threads and load what is loaded on the first call
peaks = []
for _ in range(repeats):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the high-water mark starts again from here
    before = status("VmRSS")
    found = call(scores)
    peaks.append(status("VmHWM") - before)
    if sys.argv[3] in ("soft_topk", "sample_topk"):
        assert abs(found.double().sum().item() - n / 16) < 1
    del found
print(json.dumps(peaks))
"""


@pytest.mark.skipif(
    not kernel.supports(torch.empty(1)), reason="the compiled CPU kernel is not built"
)
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("temperature", [1.0, 0.01])
@pytest.mark.parametrize("function", OUTPUTS)
def test_forward_needs_little_beyond_the_output(function: str, temperature: float) -> None:
    """At n = 1e7 in float32: at most 5% of the input on top of what is returned."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(N), str(temperature), function],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    size = OUTPUTS[function]
    extra = min(json.loads(done.stdout)) - size
    assert extra <= 0.05 * 4 * N, f"{extra / 1e6:.1f} MB beyond the output of {size / 1e6:.0f} MB"
