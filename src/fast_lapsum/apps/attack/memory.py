"""A limit on memory for as long as something runs, so that it fails and not the machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch

from fast_lapsum.bench import options

_GIBIBYTE = 2**30
#: Of what is free: other processes want some, too.
_SHARE = 0.9


@contextmanager
def limited_memory(device: torch.device, gibibytes: float) -> Iterator[None]:
    """Let what wants more than so much fail, and not the machine.

    On a GPU so much in all, on a CPU so much beyond what the process has already.
    """
    wanted = int(gibibytes * _GIBIBYTE)
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, wanted / total), device)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, device)
        return
    if sys.platform != "linux":
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _data_bytes() + wanted
    if before[0] != resource.RLIM_INFINITY:
        limit = min(limit, before[0])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def memory_that_is_free(device: torch.device) -> AbstractContextManager[None]:
    """The same for what is free: a CPU's memory is promised without being there.

    A process that takes more is killed, and cannot say why. Of a GPU's memory torch says so.
    """
    if device.type == "cuda":
        return nullcontext()
    return limited_memory(device, _SHARE * options.memory(device) / _GIBIBYTE)


def _data_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no line VmData")
