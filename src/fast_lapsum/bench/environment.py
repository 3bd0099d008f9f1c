"""What a measurement was made on: versions, hardware, and the backend a call takes."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import fast_lapsum
from fast_lapsum.backends.cpu import loader
from fast_lapsum.backends.triton import loader as gpu_loader


def busy() -> str | None:
    """A warning where other processes want the cores: threads that wait for each other then crawl.

    Waiting threads spin, which takes the cores from those they wait for.
    """
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    cores = _usable_cores()
    if cores is None or load <= 0.75 * cores:
        return None
    return (
        f"load {load:.1f} on {cores} cores: times on a CPU are not what they could be"
        " (OMP_WAIT_POLICY=passive or fewer OMP_NUM_THREADS may help)"
    )


def describe() -> dict[str, Any]:
    """The environment as a JSON-ready dictionary; None for what cannot be found out.

    >>> describe()["torch"] == torch.__version__
    True
    """
    kernel = loader.status()
    return {
        "fast_lapsum": fast_lapsum.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "cuda": torch.version.cuda,
        "os": platform.platform(),
        "cpu": _cpu_model(),
        "cores": _usable_cores(),
        "threads": torch.get_num_threads(),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        # Where the file lies is nobody's business in a results file; `info` asks the loader.
        "cpu_backend": {key: v for key, v in kernel._asdict().items() if key != "path"},
        "gpu_backend": gpu_loader.description(),
        "gpus": _gpus(),
        "gpu_driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
    }


def best_device() -> torch.device:
    """The GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _commit() -> str | None:
    """The commit this package is imported from, with "+changes" if the sources differ from it."""
    package = Path(fast_lapsum.__file__).resolve().parent
    top = _output("git", "-C", str(package), "rev-parse", "--show-toplevel")
    # An installed copy may lie inside some other repository: that one's commit says nothing.
    if top is None or package != Path(top).resolve() / "src" / "fast_lapsum":
        return None
    commit = _output("git", "-C", top, "rev-parse", "--verify", "--quiet", "HEAD")
    changed = _output("git", "-C", top, "status", "--porcelain", "--", "src")
    return f"{commit}+changes" if commit and changed else commit


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str | None:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    brand = _output("sysctl", "-n", "machdep.cpu.brand_string")
    return brand or platform.processor() or None


def _usable_cores() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _gpus() -> list[str]:
    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _output(*command: str) -> str | None:
    """First line that a command prints, or None where it is missing, fails or prints nothing."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(done.stdout.splitlines()), "").strip() or None
