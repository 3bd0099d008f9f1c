"""The process that measures: a method that takes all memory or time takes only this one with it.

Run as ``python -m fast_lapsum.bench.worker``. It reads JSON lines, first ``{"module", "settings"}``
and then one case each, and answers each of them with a line. It ends when its input does, also in
the middle of a case, so that no worker outlives who started it.
"""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import traceback
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch

from .experiment import Case, Experiment, Settings, Unavailable

#: What errors say, in lower case, when memory was asked for and not given.
MEMORY_MESSAGES = (
    "out of memory",
    "t allocate memory",
    "cannot allocate",
    "unable to allocate",
    "not enough memory",
    "bad_alloc",
    "alloc_failed",
    "can't start new thread",
    "thread creation failed",
)
GIBIBYTE = 2**30


def says_out_of_memory(message: str) -> bool:
    """Whether an error message is about memory.

    >>> says_out_of_memory("[enforce fail] DefaultCPUAllocator: can't allocate memory")
    True
    """
    return any(part in message.lower() for part in MEMORY_MESSAGES)


def measured(experiment: Experiment, case: Case, settings: Settings) -> dict[str, Any]:
    """The row of a case without its key: ok, oom, unavailable or error."""
    try:
        values = experiment.measure(case, settings)
        json.dumps(values, allow_nan=False)  # a row that cannot be written is an error of its own
    except Unavailable as error:
        return {"status": "unavailable", "reason": str(error)}
    except Exception as error:
        if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
            isinstance(error, (RuntimeError, OSError)) and says_out_of_memory(str(error))
        ):
            return {"status": "oom", "reason": _memory_reason(str(error), settings)}
        return {"status": "error", "reason": _error_reason(error)}
    return {"status": "ok", "values": values}


def limit_memory(settings: Settings) -> str:
    """Let greedy calls fail, and not the machine; a remark where that cannot be done, else ""."""
    wanted = int(settings.gibibytes * GIBIBYTE)
    device = torch.device(settings.device)
    if device.type == "cuda":
        if device.index is not None:
            torch.cuda.set_device(device)  # clocks and kernels take the current one
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, wanted / total))
        return ""
    if sys.platform != "linux":
        return f"no memory limit: {sys.platform} has none for the data of one process"
    import resource

    torch.ones(1 << 20).add_(1)  # the stacks of the thread pool are there before the limit is
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _data_bytes() + wanted
    if most != resource.RLIM_INFINITY:
        limit = min(limit, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, most))
    return ""


def _data_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no line VmData")


def _memory_reason(message: str, settings: Settings) -> str:
    asked = re.search(r"(?:tried|unable) to allocate ([\d.]+) (\w+)", message, re.IGNORECASE)
    limit = f"the limit of {settings.gibibytes:g} GiB"
    if asked is None:
        return f"needs more than {limit}"
    amount, unit = asked.groups()
    if unit == "bytes":
        amount, unit = f"{float(amount) / GIBIBYTE:.3g}", "GiB"
    return f"asked for {amount} {unit} more under {limit}"


def _error_reason(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    message = " ".join(str(error).split()) or "no message"
    return f"{type(error).__name__}: {message} ({Path(place.filename).name}:{place.lineno})"


def _read_lines(lines: SimpleQueue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)  # whoever started this process is done with it, or dead


def main() -> None:
    """Answer on what was standard output; what methods print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    lines: SimpleQueue[str] = SimpleQueue()
    Thread(target=_read_lines, args=(lines,), daemon=True).start()

    start = json.loads(lines.get())
    settings = Settings(**start["settings"])
    experiment: Experiment = import_module(start["module"]).EXPERIMENT
    answers.write(json.dumps({"remark": limit_memory(settings)}) + "\n")
    while True:
        row = measured(experiment, Case(**json.loads(lines.get())), settings)
        if row["status"] in ("oom", "error"):
            gc.collect()  # what the failed call held is not charged to the next one
            if settings.device != "cpu":
                torch.cuda.empty_cache()
        answers.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
