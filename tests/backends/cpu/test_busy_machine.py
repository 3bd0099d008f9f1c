"""Where other programs keep the processors busy, small calls do not wait for a second thread."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fast_lapsum.backends.cpu import loader

CALLS = 400
#: Threads that are waited for come after a few milliseconds; alone a call takes a tenth of one.
MOST_SECONDS = 2e-3
TIMED = f"""
import time, torch
from fast_lapsum import soft_topk
torch.set_num_threads(2)
scores = torch.randn(256, 197)
def seconds():
    start = time.perf_counter()
    soft_topk(scores, 16, 0.1)
    return time.perf_counter() - start
print(sorted(seconds() for _ in range({CALLS}))[{CALLS} // 2])
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no way to choose processors")
@pytest.mark.skipif(not loader.status().available, reason="plain torch waits as torch does")
def test_small_calls_do_not_wait_for_late_threads() -> None:
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("one processor")
    os.sched_setaffinity(0, sorted(before)[:2])  # what is started from here on stays there, too
    try:
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
        try:
            timed = subprocess.run(
                [sys.executable, "-c", TIMED], capture_output=True, text=True, check=True
            )
        finally:
            for other in others:
                other.kill()
                other.wait()
    finally:
        os.sched_setaffinity(0, before)
    assert float(timed.stdout) < MOST_SECONDS
