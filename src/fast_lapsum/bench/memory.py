"""Peak memory of a call beyond what it returns, measured in a process of its own.

Run as ``python -m fast_lapsum.bench.memory N K TEMPERATURE`` it prints its figures as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch

from fast_lapsum import soft_topk

STATUS = Path("/proc/self/status")
RESET_PEAK = Path("/proc/self/clear_refs")


def peak_beyond_output(n: int, k: float, temperature: float) -> dict[str, int] | None:
    """Bytes that forward and backward need at their peak beyond input and output.

    None where the system has no /proc to ask.
    """
    if not (STATUS.exists() and RESET_PEAK.exists()):
        return None
    command = [sys.executable, "-m", "fast_lapsum.bench.memory", str(n), str(k), str(temperature)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, int] = json.loads(done.stdout)
    return figures


def _measure(n: int, k: float, temperature: float) -> dict[str, int]:
    # What first calls load (code, thread stacks, 33 MB by torch.autograd.grad) belongs to no call.
    small = torch.randn(200_000, requires_grad=True)
    for _ in range(3):
        torch.autograd.grad(soft_topk(small, 1000.0, temperature), small, torch.ones_like(small))

    scores = torch.randn(n, requires_grad=True)
    weights = torch.randn(n)
    before = _reset_peak()
    mask = soft_topk(scores, k, temperature)
    forward = _peak() - before - mask.nbytes
    before = _reset_peak()
    (gradient,) = torch.autograd.grad(mask, scores, weights)
    backward = _peak() - before - gradient.nbytes
    return {"input_bytes": scores.nbytes, "forward_bytes": forward, "backward_bytes": backward}


def _reset_peak() -> int:
    """Start the peak anew from what is resident now, and return that."""
    RESET_PEAK.write_text("5")
    return _status_bytes("VmRSS")


def _peak() -> int:
    return _status_bytes("VmHWM")


def _status_bytes(field: str) -> int:
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{STATUS} has no line {field}")


if __name__ == "__main__":
    print(json.dumps(_measure(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))))
