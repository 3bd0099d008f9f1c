"""Device time of a call, cheaply: thousands of different calls are timed in a minute.

A graph for every call would cost more than all its replays. Instead the device spins while the
host queues a few calls between two events, so that the host's own time is not between them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

Call = Callable[[], object]

#: Calls between two events.
CALLS = 3
#: Calls that take longer are timed once: what disturbs a sample is short.
LONG_SECONDS = 2e-3
#: The spin before a sample, in terms of what the host needed for the one before.
SPIN_SHARE = 1.5
SPIN_SECONDS = 1e-4
#: A call that waits for the device waits for the spin, too, which must not grow with that.
MOST_SPIN_SECONDS = 5e-3
#: Of the fastest device: on a slower one the spin takes longer, which does no harm.
CYCLES_PER_SECOND = 2e9
#: A host that was too late tries again with a longer spin; a call that waits is late each time.
TRIES = 4


class QueuedClock:
    """Seconds of a call on a GPU, the host's left out; on a CPU the host's clock, for tests."""

    def __init__(self, device: torch.device, samples: int) -> None:
        self._sample = self._queued if device.type == "cuda" else _host_seconds
        self._samples = samples
        self._spin = SPIN_SECONDS

    def seconds(self, call: Call) -> float:
        """The median of some samples. The call has run before, and is compiled."""
        found = [self._sample(call)]
        while len(found) < self._samples and found[-1] < LONG_SECONDS:
            found.append(self._sample(call))
        return statistics.median(found)

    def _queued(self, call: Call) -> float:
        for _ in range(TRIES):
            start, end = (
                torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                for _ in range(2)
            )
            torch.cuda._sleep(int(self._spin * CYCLES_PER_SECOND))  # type: ignore[no-untyped-call]
            began = time.perf_counter()
            start.record()
            for _ in range(CALLS):
                call()
            end.record()
            needed = SPIN_SECONDS + SPIN_SHARE * (time.perf_counter() - began)
            self._spin = min(needed, MOST_SPIN_SECONDS)
            was_ahead = not start.query()  # type: ignore[no-untyped-call]
            end.synchronize()
            if was_ahead:
                break
        return float(start.elapsed_time(end)) / 1e3 / CALLS


def _host_seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
