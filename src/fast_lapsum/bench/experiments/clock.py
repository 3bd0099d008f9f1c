"""Timing of one call within a case's limits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from ..experiment import Settings
from ..timing import SAMPLE_SECONDS, Timing, summary, wall_clock

#: A sample on a GPU begins and ends with a wait for the device, which must not weigh.
GPU_SAMPLE_SECONDS = 1e-2
#: As many samples as this are taken past half of the limit, as long as they fit below it.
FEWEST_SAMPLES = 3
#: No further sample starts that would take the case, with its checked call, past this share of it.
LIMIT_SHARE = 0.8


def timed(call: Callable[[], object], settings: Settings) -> Timing:
    """Wall time of ``call``, whose set-up an earlier, checked call has paid for.

    One warm-up, then at most ``settings.repeats`` samples while half of ``settings.seconds`` lasts.
    A call under a millisecond (on a GPU ten) is repeated within a sample. The device is idle at
    both ends of one.

    >>> timed(lambda: None, Settings("cpu", True, 5, 10**6, 1.0, 1.0, 0)).samples
    5
    """
    clock = wall_clock(torch.device(settings.device))
    start = time.perf_counter()
    seconds = clock(call, 1)
    sample = GPU_SAMPLE_SECONDS if settings.device.startswith("cuda") else SAMPLE_SECONDS
    loops = max(1, math.ceil(sample / max(seconds, 1e-7)))
    # A warm-up that took long is as good a sample as the next, and there may be no time for more.
    samples = [seconds] if seconds > settings.seconds / 10 else []
    while len(samples) < settings.repeats:
        used = time.perf_counter() - start
        over_half = used > settings.seconds / 2 and len(samples) >= FEWEST_SAMPLES
        over_limit = used + seconds + seconds * loops > settings.seconds * LIMIT_SHARE
        if samples and (over_half or over_limit):
            break
        samples.append(clock(call, loops) / loops)
    return summary(samples)
