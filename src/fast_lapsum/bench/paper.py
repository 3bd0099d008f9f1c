"""The paper's own numbers, every cell, by LaTeX label; times in milliseconds as printed there.

Methods and variants have the names that this suite gives them. What the paper's grids call Base,
V1, V2 and V3 is "bisection", "scan", "block scan" and "fused" here.
"""

from __future__ import annotations

from typing import NamedTuple

#: What the paper's times were taken on: PyTorch 2.11, CUDA 12.8, 8 GB of memory.
MACHINE = "RTX 5060 laptop"

#: "OOM", and bounds such as "<1e-5", are text.
Cell = float | int | str


class PaperTable(NamedTuple):
    """One table of the paper; of a figure, the points that its text spells out."""

    label: str
    #: What was measured, in a few words.
    setting: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    #: "ms" where numbers of no other unit are times.
    unit: str = "ms"
    machine: str = MACHINE

    def records(self) -> list[dict[str, Cell]]:
        """The rows with their columns' names.

        >>> PAPER["tab:ks-main"].records()[0]
        {'n': 1000000, 'full sort': 0.41, 'noised bracket': 0.64, 'speedup': 0.6}
        """
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def row(self, **key: Cell) -> dict[str, Cell]:
        """The first row that has these cells.

        >>> PAPER["tab:dftopk"].row(n=1000)["DFTopK"]
        0.472
        """
        for record in self.records():
            if all(record[name] == value for name, value in key.items()):
                return record
        raise KeyError(f"{self.label} has no row with {key}")


_GRID = ("sweep", "B", "n", "k", "temperature")
_ALPHA = "temperature"  # the sweep; t is |alpha|
_VARIANTS = ("bisection", "scan", "block scan", "fused")

_TABLES = (
    PaperTable(
        "tab:ks-main",
        "forward, B = 1, k = n/16, alpha = -1",
        ("n", "full sort", "noised bracket", "speedup"),
        (
            (1_000_000, 0.41, 0.64, 0.6),
            (3_000_000, 1.71, 0.60, 2.9),
            (10_000_000, 6.43, 1.15, 5.6),
            (30_000_000, 20.1, 2.55, 7.9),
            (100_000_000, 99.0, 5.23, 19.0),
        ),
    ),
    PaperTable(
        "fig:baseline-plot",
        "forward, B = 1, k = n/16; points that the text names",
        ("method", "n", "forward"),
        (
            ("fast-lapsum", 100_000_000, 5.2),
            ("DFTopK", 100_000_000, 1400.0),
            ("Official LapSum (serial)", 32_000_000, 2900.0),
        ),
    ),
    PaperTable(
        "fig:baseline-plot-fb",
        "forward + backward, B = 1, k = n/16; points that the text names",
        ("method", "n", "forward+backward"),
        (
            ("fast-lapsum", 30_000, 1.0),
            ("NeuralSort", 30_000, 1800.0),
            ("SoftSort", 30_000, 440.0),
        ),
    ),
    PaperTable(
        "tab:budget",
        "|sum p - k| / k, k = n/16, alpha = -1, Gaussian scores",
        ("method", "1e3", "1e4", "1e5", "1e6", "1e7"),
        (
            ("fast-lapsum", "<1e-5", "<1e-5", "<1e-5", "<1e-5", "<1e-5"),
            ("DFTopK", 2.39, 2.46, 2.47, 2.46, 2.46),
            ("NeuralSort", "<1e-6", "<1e-6", "OOM", "OOM", "OOM"),
            ("SoftSort", "<1e-6", "<1e-6", "<1e-6", "OOM", "OOM"),
            ("SOFT top-k (Sinkhorn)", "<1e-5", "<1e-5", "<1e-5", "<1e-5", "<1e-5"),
            ("Perturbed top-k", "<1e-2", "1e-2", "1e-2", "1e-2", "OOM"),
        ),
        unit="",
    ),
    PaperTable(
        "tab:robustness",
        "unvalidated bracket, z = 5.16, k = n/16, alpha = -1, worst of n = 1e5, 1e6, 1e7; percent",
        ("distribution", "coverage", "fallback", "budget_error"),
        (
            ("gaussian", 93.3, 6.7, 5.9e-6),
            ("student-t2", 96.7, 3.3, 1.7e-5),
            ("log-normal", 100.0, 0.0, 2.9e-5),
            ("cauchy", 100.0, 0.0, 1.6e-5),
            ("3-cluster", 100.0, 0.0, 2.9e-6),
            ("16-level", 100.0, 0.0, 1.4e-6),
        ),
        unit="%",
    ),
    PaperTable(
        "tab:fast-main",
        "forward, B = 8, k = n/16, alpha = -1",
        ("n", *_VARIANTS),
        (
            (1024, 1.04, 0.239, 0.245, 0.106),
            (4096, 6.19, 0.338, 0.251, 0.100),
            (8192, 12.89, 0.748, 0.343, 0.228),
            (16384, 25.50, 1.211, 0.366, 0.287),
        ),
    ),
    PaperTable(
        "tab:ablation-main",
        "forward, B = 16, n = 4096, k = 256, alpha = -1",
        ("variant", "forward", "speedup"),
        (
            ("bisection", 7.29, 1.0),
            ("scan", 0.442, 16.5),
            ("block scan", 0.269, 27.1),
            ("fused", 0.107, 68.1),
        ),
    ),
    PaperTable(
        "tab:bench-fwd",
        "forward; error is the largest |mask - mask by bisection|",
        (*_GRID, *_VARIANTS, "scan speedup", "block scan speedup", "fused speedup", "error"),
        (
            ("n", 8, 256, 16, 1.0, 0.32, 0.254, 0.257, 0.103, 1.3, 1.2, 3.1, 7.5e-7),
            ("n", 8, 512, 32, 1.0, 0.57, 0.254, 0.252, 0.102, 2.2, 2.3, 5.6, 1.2e-6),
            ("n", 8, 1024, 64, 1.0, 1.04, 0.239, 0.245, 0.106, 4.3, 4.2, 9.8, 2.1e-6),
            ("n", 8, 2048, 128, 1.0, 2.00, 0.223, 0.252, 0.101, 9.0, 7.9, 19.7, 3.3e-6),
            ("n", 8, 4096, 256, 1.0, 6.19, 0.338, 0.251, 0.100, 18.3, 24.6, 62.1, 4.9e-6),
            ("n", 8, 8192, 512, 1.0, 12.89, 0.748, 0.343, 0.228, 17.2, 37.5, 56.5, 6.9e-6),
            ("n", 8, 16384, 1024, 1.0, 25.50, 1.211, 0.366, 0.287, 21.1, 69.7, 88.7, 1.5e-5),
            ("B", 4, 4096, 256, 1.0, 3.24, 0.272, 0.245, 0.097, 11.9, 13.2, 33.3, 4.4e-6),
            ("B", 16, 4096, 256, 1.0, 7.29, 0.420, 0.243, 0.102, 17.3, 30.0, 71.7, 4.8e-6),
            ("B", 64, 4096, 256, 1.0, 8.91, 1.114, 0.229, 0.099, 8.0, 38.8, 90.4, 5.7e-6),
            ("B", 256, 4096, 256, 1.0, 22.86, 2.254, 0.375, 0.258, 10.1, 60.9, 88.6, 6.0e-6),
            (_ALPHA, 16, 2048, 128, 0.25, 3.67, 0.286, 0.249, 0.121, 12.9, 14.8, 30.4, 2.1e-6),
            (_ALPHA, 16, 2048, 128, 1.0, 3.66, 0.268, 0.255, 0.105, 13.7, 14.4, 34.9, 3.5e-6),
            (_ALPHA, 16, 2048, 128, 4.0, 3.64, 0.273, 0.257, 0.101, 13.4, 14.2, 36.1, 1.2e-6),
            ("k", 16, 4096, 16, 1.0, 7.29, 0.443, 0.252, 0.107, 16.5, 29.0, 68.0, 1.4e-6),
            ("k", 16, 4096, 256, 1.0, 7.29, 0.442, 0.269, 0.107, 16.5, 27.1, 68.1, 5.7e-6),
            ("k", 16, 4096, 2048, 1.0, 7.30, 0.442, 0.277, 0.112, 16.5, 26.4, 65.1, 1.7e-6),
            ("k", 16, 4096, 3840, 1.0, 7.25, 0.412, 0.296, 0.114, 17.6, 24.5, 63.5, 1.2e-5),
        ),
    ),
    PaperTable(
        "tab:bench-fb",
        "forward + backward; error is the largest |gradient fused - gradient scan|",
        (*_GRID, *_VARIANTS, "fused speedup", "error"),
        (
            ("n", 8, 256, 16, 1.0, 0.57, 0.618, 0.604, 0.402, 1.4, 4.2e-7),
            ("n", 8, 512, 32, 1.0, 0.67, 0.561, 0.568, 0.396, 1.7, 7.2e-7),
            ("n", 8, 1024, 64, 1.0, 1.23, 0.562, 0.584, 0.415, 3.0, 5.4e-7),
            ("n", 8, 2048, 128, 1.0, 2.13, 0.622, 0.594, 0.398, 5.4, 9.5e-7),
            ("n", 8, 4096, 256, 1.0, 6.59, 0.589, 0.565, 0.391, 16.8, 1.7e-6),
            ("n", 8, 8192, 512, 1.0, 13.16, 0.841, 0.685, 0.558, 23.6, 1.8e-6),
            ("n", 8, 16384, 1024, 1.0, 25.94, 1.273, 0.671, 0.629, 41.3, 3.9e-6),
            ("B", 4, 4096, 256, 1.0, 3.35, 0.542, 0.565, 0.421, 8.0, 8.3e-7),
            ("B", 16, 4096, 256, 1.0, 7.53, 0.635, 0.598, 0.400, 18.8, 2.3e-6),
            ("B", 64, 4096, 256, 1.0, 9.11, 1.270, 0.504, 0.419, 21.8, 3.1e-6),
            ("B", 256, 4096, 256, 1.0, 23.10, 2.499, 0.634, 0.458, 50.4, 3.1e-6),
            (_ALPHA, 16, 2048, 128, 0.25, 3.79, 0.535, 0.551, 0.403, 9.4, 4.1e-6),
            (_ALPHA, 16, 2048, 128, 1.0, 3.77, 0.571, 0.570, 0.433, 8.7, 2.3e-6),
            (_ALPHA, 16, 2048, 128, 4.0, 3.79, 0.547, 0.592, 0.417, 9.1, 7.5e-8),
            ("k", 16, 4096, 16, 1.0, 7.50, 0.657, 0.602, 0.440, 17.0, 2.7e-7),
            ("k", 16, 4096, 256, 1.0, 7.56, 0.605, 0.579, 0.430, 17.6, 2.7e-6),
            ("k", 16, 4096, 2048, 1.0, 7.52, 0.643, 0.557, 0.442, 17.0, 2.4e-6),
            ("k", 16, 4096, 3840, 1.0, 7.43, 0.635, 0.612, 0.544, 13.7, 1.4e-6),
        ),
    ),
    PaperTable(
        "tab:gradcheck",
        "VJP against centred differences, eps = 1e-5, float64",
        ("B", "n", "k", "temperature", "absolute_error", "relative_error", "status"),
        (
            (2, 32, 4, 1.0, 4.33e-11, 4.24e-11, "pass"),
            (1, 64, 8, 0.5, 6.01e-11, 5.25e-11, "pass"),
            (2, 64, 16, 2.0, 1.33e-10, 2.83e-10, "pass"),
        ),
        unit="",
    ),
    PaperTable(
        "tab:dftopk",
        "forward + backward, k = n // 2, B = 1; sparse top-k forward only, in JAX",
        (
            "n",
            "DFTopK",
            "fast-lapsum",
            "Official LapSum (serial)",
            "NeuralSort",
            "SoftSort",
            "Sparse top-k (Dykstra)",
            "SOFT top-k (Sinkhorn)",
            "Perturbed top-k",
        ),
        (
            (10, 0.475, 0.642, 0.591, 0.847, 0.616, 4.231, 103.9, 0.729),
            (100, 0.957, 0.564, 0.652, 0.713, 0.537, 3.803, 98.5, 0.555),
            (1000, 0.472, 0.547, 0.786, 0.627, 0.535, 3.584, 94.8, 0.651),
            (10_000, 0.526, 0.681, 0.893, 14.95, 18.77, 7.530, 99.1, 1.081),
            (100_000, 0.713, 0.700, 6.42, "OOM", "OOM", "OOM", 103.8, 25.38),
            (1_000_000, 9.307, 1.941, 142.2, "OOM", "OOM", "OOM", 222.2, 1583.0),
            (3_000_000, 15.25, 1.997, 212.7, "OOM", "OOM", "OOM", 7895.0, "OOM"),
        ),
    ),
)

PAPER: dict[str, PaperTable] = {table.label: table for table in _TABLES}
