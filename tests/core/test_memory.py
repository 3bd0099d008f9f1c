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

n, repeats = int(sys.argv[1]), 2

def status(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))

scores = torch.randn(n, generator=torch.Generator().manual_seed(0))
for name in sys.argv[2:]:
    function = getattr(fast_lapsum, name)
    for temperature in (1.0, 0.01):
        function(scores[:200_000], 12_500, temperature)  # load what is loaded on the first call
        peaks = []
        for _ in range(repeats):
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # the high-water mark starts again from here
            before = status("VmRSS")
            found = function(scores, n // 16, temperature)
            peaks.append(status("VmHWM") - before)
            if name in ("soft_topk", "sample_topk"):
                assert abs(found.double().sum().item() - n / 16) < 1
            del found
        print(json.dumps([name, temperature, min(peaks)]))
"""


@pytest.mark.skipif(
    not kernel.supports(torch.empty(1)), reason="the compiled CPU kernel is not built"
)
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
def test_forward_needs_little_beyond_the_output() -> None:
    """At n = 1e7 in float32: at most 5% of the input on top of what is returned."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(N), *OUTPUTS],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == 2 * len(OUTPUTS)
    for name, temperature, peak in found:
        size = OUTPUTS[name]
        assert peak - size <= 0.05 * 4 * N, (
            f"{name} at t = {temperature}: {(peak - size) / 1e6:.1f} MB beyond the output of "
            f"{size / 1e6:.0f} MB"
        )
