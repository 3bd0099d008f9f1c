"""The shapes of the GPU benchmark and what is asked of each: plain limits in device time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

#: Rows up to this long stay on the chip: they are read once.
LONGEST_ON_CHIP = 32768
BUDGET_SHARE = 1 / 16
TEMPERATURES = (1.0, 0.1, 0.01, 0.001)

Part = Literal["forward", "backward", "forward+backward"]
Temperatures = Literal["t = 1", "t = 0.1", "other t", "every t"]


class Bar(NamedTuple):
    """A part's device time is at most ``factor`` times that of ``base`` plus ``microseconds``.

    The base is a floor by its bytes per score (``8n``, ``12n``, ``20n``), a peer, or nothing.
    """

    part: Part
    at: Temperatures
    factor: float = 0.0
    base: str = ""
    microseconds: float = 0.0

    def holds_at(self, temperature: float) -> bool:
        """Whether the bar is about this temperature; the other t are all but 1."""
        if self.at == "other t":
            return temperature != 1
        return self.at in ("every t", f"t = {temperature:g}")

    def describe(self) -> str:
        """The limit in words.

        >>> Bar("backward", "every t", 1.05, "20n", 5).describe()
        '1.05 x copy of 20n bytes + 5 us'
        """
        base = f"copy of {self.base} bytes" if self.base in FLOORS else self.base
        terms = [f"{self.factor:g} x {base}"] if self.base else []
        if self.microseconds or not terms:
            terms.append(f"{self.microseconds:g} us")
        return " + ".join(terms)


class Case(NamedTuple):
    """One shape, rows along its last dimension, with the bars that hold for it."""

    name: str
    shape: tuple[int, ...]
    bars: tuple[Bar, ...]


#: Bytes per score of a floor.
FLOORS = {"8n": 8, "12n": 12, "20n": 20}
TOPK = "torch.topk"
SOFTMAX = "torch.softmax"
SOFTMAX_WITH_BACKWARD = "torch.softmax forward+backward"
SORT = "torch.sort"
EVERYWHERE = (
    Bar("backward", "every t", 1.05, "20n", 5),
    Bar("forward", "every t", 1 / 5, TOPK),
)


def _microseconds(warm: float, cold: float) -> tuple[Bar, ...]:
    return (
        Bar("forward", "t = 1", microseconds=warm),
        Bar("forward", "other t", microseconds=cold),
        *EVERYWHERE,
    )


def _floors(base: str, warm: tuple[float, float], cold: tuple[float, float]) -> tuple[Bar, ...]:
    return (
        Bar("forward", "t = 1", warm[0], base, warm[1]),
        Bar("forward", "other t", cold[0], base, cold[1]),
        *EVERYWHERE,
    )


CASES = (
    Case("n = 1e6", (1_000_000,), _microseconds(12, 30)),
    Case("n = 1e7", (10_000_000,), _microseconds(40, 70)),
    Case("256 x 4096", (256, 4096), _microseconds(9, 14)),
    Case(
        "4096 x 4096",
        (4096, 4096),
        (Bar("forward", "t = 1", 1.5, SOFTMAX), *_floors("8n", (1.5, 0), (2.5, 0))),
    ),
    Case("64 x 65536", (64, 65536), _floors("12n", (2, 10), (3, 15))),
    Case("8 x 1e6", (8, 1_000_000), _floors("12n", (2, 10), (3, 15))),
    Case("n = 1e8", (100_000_000,), _floors("12n", (1.06, 0), (1.5, 0))),
    Case("n = 1e9", (1_000_000_000,), _floors("12n", (1.03, 0), (1.45, 0))),
)
#: Shapes so small that the figures mean nothing: for tests of the benchmark itself.
QUICK_CASES = (
    Case("n = 2e4", (20_000,), _microseconds(12, 30)),
    Case("16 x 512", (16, 512), _floors("8n", (1.5, 0), (2.5, 0))),
    Case("2 x 2e4", (2, 20_000), _floors("12n", (2, 10), (3, 15))),
)


def floors(scores: int, bytes_per_second: float) -> dict[str, float]:
    """Seconds in which the measured copy moves each floor's bytes."""
    return {name: size * scores / bytes_per_second for name, size in FLOORS.items()}


def forward_floor(row_length: int) -> str:
    """The floor of the forward pass: one reading of a row on chip, two of a longer one."""
    return "8n" if row_length <= LONGEST_ON_CHIP else "12n"


def ours(part: str, temperature: float) -> str:
    """The name of a timing of soft_topk."""
    return f"soft_topk {part} t={temperature:g}"


def compare(
    bar: Bar, temperature: float, timings: Mapping[str, float], bases: Mapping[str, float]
) -> dict[str, Any]:
    """The bar beside what was measured; ``met`` is None where one side of it was not.

    Args:
        bar: the bar.
        temperature: which of our timings to take.
        timings: median seconds by name.
        bases: seconds of the floors by name.
    """
    found = timings.get(ours(bar.part, temperature))
    base = {"": 0.0, **bases, **timings}.get(bar.base)
    limit = None if base is None else bar.factor * base + bar.microseconds * 1e-6
    return {
        "temperature": temperature,
        "part": bar.part,
        "at_most": bar.describe(),
        "measured": found,
        "limit": limit,
        "met": None if found is None or limit is None else found <= limit,
    }
