"""Results files as the suite writes them, with times from simple cost models instead of clocks."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from fast_lapsum.bench.experiment import Settings
from fast_lapsum.bench.experiments.distributions import DISTRIBUTIONS

#: Overhead and cost per score in seconds on a GPU, growth, and the size that no longer fits.
METHODS = {
    "fast-lapsum": (2.4e-4, 8e-12, 1.0, 1e12),
    "NeuralSort": (7e-4, 1.4e-10, 2.0, 1e5),
    "SoftSort": (5e-4, 2.0e-11, 2.0, 1e6),
    "SOFT top-k (Sinkhorn)": (9e-2, 3e-8, 1.0, 1e12),
    "Perturbed top-k": (6e-4, 1.5e-9, 1.1, 1e8),
    "DFTopK": (4.7e-4, 5e-10, 1.0, 1e12),
    "Sparse top-k (PAV)": (8e-3, 1.1e-6, 1.0, 1e12),
    "Sparse top-k (Dykstra)": (6e-2, 4e-9, 1.0, 1e12),
    "Official LapSum (serial)": (6e-4, 9e-8, 1.0, 1e12),
    "Official LapSum (vectorised)": (8e-4, 2.0e-9, 1.0, 1e12),
    "LapSum (bisection)": (5e-3, 1.3e-9, 1.0, 1e12),
    "LML": (4e-3, 4e-9, 1.0, 1e12),
    "Capped simplex": (7e-4, 9e-10, 1.0, 1e12),
    "CoLT5 (coordinate descent)": (1.2e-2, 2.5e-9, 1.0, 1e8),
    "torch.topk": (6e-5, 1.1e-10, 1.0, 1e12),
    "torch.sort": (7e-5, 3.1e-10, 1.0, 1e12),
    "entmax (budget_bisect)": (3e-3, 1.6e-9, 1.0, 1e12),
    "diffsort (sorting network)": (5e-2, 2e-8, 2.0, 1e4),
}
ENVIRONMENT = {
    "fast_lapsum": "0.1.0",
    "commit": "9287d41453a10383c082fd9c4a714b92a40e2cf8",
    "python": "3.12.3",
    "torch": "2.11.0",
    "triton": "3.6.0",
    "cuda": "13.0",
    "os": "Linux",
    "cpu": "Example CPU",
    "cores": 16,
    "threads": 16,
    "load_average": 1.5,
    "cpu_backend": {"available": True, "description": "C++ kernel"},
    "gpu_backend": "Triton kernels",
    "gpus": ["Example H200"],
    "gpu_driver": "580",
}
BYTES_PER_SECOND = 4.26e12
Row = dict[str, Any]


def record(experiment: str, rows: list[Row], device: str = "cuda") -> dict[str, Any]:
    settings = Settings(device, False, 20, 10**8, 60.0, 16.0, 0)
    return {
        "format": "fast-lapsum results",
        "version": 1,
        "experiment": experiment,
        "complete": True,
        "settings": settings._asdict(),
        "environment": ENVIRONMENT,
        "rows": rows,
    }


def write(path: Path, content: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def timing(seconds: float) -> dict[str, float]:
    return {"p20": 0.97 * seconds, "p50": seconds, "p80": 1.08 * seconds, "samples": 20}


def method_rows(sizes: list[int], key: Row, scale: float, noise: random.Random) -> list[Row]:
    """Ends of every kind: out of memory, over 60 seconds, not tried after that, not installed."""
    rows: list[Row] = []
    for method, (overhead, cost, growth, most) in METHODS.items():
        ended = False
        for n in sizes:
            row: Row = {"key": {"method": method, **key, "n": n}}
            seconds = scale * (overhead + cost * n**growth) * noise.uniform(0.9, 1.1)
            if method.startswith("entmax"):
                row.update(status="unavailable", reason="entmax is not installed")
            elif ended:
                row.update(status="limit", reason="a smaller size met a limit")
            elif n >= most:
                row.update(status="oom", reason="CUDA out of memory")
                ended = True
            elif seconds > 60:
                row.update(status="timeout", reason="over 60 s")
                ended = True
            else:
                row.update(status="ok", values={"seconds": timing(seconds), "peak_bytes": 12 * n})
            rows.append(row)
    return rows


def write_all(folder: Path, device: str = "cuda") -> None:
    """One file of every experiment for one device, and the older file with the copy rate."""
    noise = random.Random(1)
    slow = 1.0 if device == "cuda" else 12.0
    sizes = [10**power for power in range(1, 9)]
    rows = {
        "operators": method_rows(sizes, {"pass": "forward"}, slow, noise)
        + method_rows(sizes, {"pass": "forward+backward"}, 1.9 * slow, noise),
        "dftopk": method_rows(sorted([*sizes, 3 * 10**6]), {}, 1.9 * slow, noise),
        "budget": budget_rows(noise),
        "robustness": robustness_rows(noise),
        "large-n": [
            ok({"solver": solver, "n": n}, slow * (start + cost * n), relative_error=3e-8)
            for solver, start, cost in (
                ("full sort", 3e-4, 3.1e-10),
                ("noised bracket", 5e-4, 3.2e-11),
                ("default", 2.4e-4, 8e-12),
            )
            for n in (10**6, 3 * 10**6, 10**7, 3 * 10**7, 10**8)
        ],
        "forward": grid_rows(slow),
        "backward": grid_rows(2 * slow),
        "ablation": [
            ok({"table": table, "B": B, "n": n, "variant": variant}, slow * cost * n, error=2e-6)
            for table, B, sizes_of_table in (
                ("tab:fast-main", 8, (1024, 4096, 8192, 16384)),
                ("tab:ablation-main", 16, (4096,)),
            )
            for n in sizes_of_table
            for variant, cost in VARIANTS.items()
        ],
        "gradcheck": [
            {
                "key": {"B": B, "n": n, "k": k, "temperature": temperature},
                "status": "ok",
                "values": {"absolute_error": 4.3e-11, "relative_error": 4.2e-11},
            }
            for B, n, k, temperature in ((2, 32, 4, 1.0), (1, 64, 8, 0.5), (2, 64, 16, 2.0))
        ],
    }
    for experiment, found in rows.items():
        write(folder / device / f"{experiment}.json", record(experiment, found, device))
    if device == "cuda":
        copy = {"bytes_per_second": BYTES_PER_SECOND}
        write(folder / "gpu.json", timings_record(copy=copy))


def timings_record(**more: Any) -> dict[str, Any]:
    timings = {"soft_topk forward t=1": timing(3e-5), "torch.softmax forward": timing(4e-5)}
    cases = [{"case": "n = 1e6", "timings": timings}]
    return {"benchmark": "gpu", "environment": ENVIRONMENT, "cases": cases, **more}


def functions_record(device: str = "cuda", **more: Any) -> dict[str, Any]:
    """One shape with a limit that holds and one that does not, and one that did not fit."""
    line = {"call": "log", "at_most": "1.3 x mask", "measured": 2.4e-5, "base": 2e-5, "met": True}
    missed = {**line, "call": "select", "at_most": "1 x torch.topk", "met": False}
    unknown = {"call": "hard", "at_most": "28 us", "measured": None, "base": None, "met": None}
    timings = {name: timing(x) for name, x in (("mask", 2e-5), ("log", 2.4e-5), ("select", 7e-5))}
    return {
        "benchmark": "functions",
        "quick": False,
        "compared": "p50",
        "environment": ENVIRONMENT,
        "sources": {"kind": "functions", "device": device, "hash": "0" * 16},
        "cases": [
            {"case": "16 x 64, k = 6", "lines": [line, missed], "timings": timings},
            {"case": "1e9, k = 9", "lines": [unknown], "skipped": "needs 90 GiB"},
        ],
        **more,
    }


VARIANTS = {
    "bisection": 1.6e-6,
    "scan": 8e-8,
    "block scan": 4e-8,
    "fused": 2e-8,
    "sort-free": 1.2e-8,
}


def ok(key: Row, seconds: float, **more: float) -> Row:
    return {"key": key, "status": "ok", "values": {"seconds": timing(seconds), **more}}


def grid_rows(slow: float) -> list[Row]:
    points = [("n", 8, 2**power, 2**power // 16, 1.0) for power in range(8, 15)]
    points += [("B", B, 4096, 256, 1.0) for B in (4, 16, 64, 256)]
    points += [("temperature", 16, 2048, 128, temperature) for temperature in (0.25, 1.0, 4.0)]
    points += [("k", 16, 4096, k, 1.0) for k in (16, 256, 2048, 3840)]
    rows = []
    for sweep, B, n, k, temperature in points:
        for variant, cost in VARIANTS.items():
            key = {"sweep": sweep, "B": B, "n": n, "k": k, "temperature": temperature}
            seconds = slow * (5e-5 + cost * n)
            rows.append(ok({**key, "variant": variant}, seconds, error=1e-6))
    return rows


def budget_rows(noise: random.Random) -> list[Row]:
    rows: list[Row] = []
    for method, (_, _, _, most) in METHODS.items():
        for n in (10**3, 10**4, 10**5, 10**6, 10**7):
            key = {"method": method, "n": n}
            if n >= most:
                rows.append({"key": key, "status": "oom", "reason": "out of memory"})
                continue
            size = {"DFTopK": 2.46, "Perturbed top-k": 1e-2, "fast-lapsum": 3e-8}.get(method, 4e-7)
            error = 0.0 if method.startswith("torch") else size * noise.uniform(0.3, 3)
            values = {"mass": n / 16 * (1 + error), "relative_error": error}
            rows.append({"key": key, "status": "ok", "values": values})
    return rows


def robustness_rows(noise: random.Random) -> list[Row]:
    rows: list[Row] = []
    for distribution in DISTRIBUTIONS:
        for n in (10**5, 10**6, 10**7):
            for sampler in ("paper", "ours"):
                bad = sampler == "paper" and distribution in ("gaussian", "sorted", "periodic")
                coverage = noise.uniform(0.2, 0.95) if bad else 1.0
                values = {
                    "trials": 300,
                    "coverage": coverage,
                    "fallback": 1 - coverage,
                    "budget_error": noise.uniform(1e-8, 2e-7),
                }
                key = {"distribution": distribution, "n": n, "sampler": sampler}
                rows.append({"key": key, "status": "ok", "values": values})
    return rows
