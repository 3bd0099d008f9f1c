"""Kernels that launch nothing and write down what they are told, for tests without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="the GPU backend needs Triton")

from triton.runtime import JITFunction

from fast_lapsum.backends.triton import launch, relaunch, steps

#: A shape for every way that rows are solved, and the kernels that solve them.
SHAPES = {
    "tile": ((6, 40), {"tile_forward"}),
    "block": ((5000,), {"tile_forward"}),
    "team": ((1, 100_000), {"guess_rows", "team_forward"}),
    "long": ((96, 32_769), {"long_forward"}),
    "cached": ((65, 32_776), {"guess_rows", "team_forward"}),
    "shared": ((65, 200_000), {"place_rows", "gather_rows", "solve_rows", "write_rows"}),
}
CORES = 132
COOPERATIVE = {"team_forward", "solve_rows"}


class Entry(NamedTuple):
    """One launch: whether it was made again, and all that the kernel was told, by position."""

    kernel: str
    again: bool
    programs: int
    values: tuple[Any, ...]
    options: dict[str, Any]


Diary = list[Entry]


class Watched:
    """A kernel that launches nothing; its launches and relaunches are written down."""

    def __init__(self, name: str, real: Any, diary: Diary) -> None:
        self.name, self.arg_names, self.diary = name, list(real.arg_names), diary
        self.function, self.packed_metadata = f"{name} compiled", "metadata"

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Watched]:
        def launched(*arguments: Any, **named: Any) -> Watched:
            constants = tuple(named.pop(x) for x in self.arg_names[len(arguments) :])
            values = _addressed((*arguments, *constants))
            self.diary.append(Entry(self.name, False, grid[0], values, named))
            return self

        return launched

    def run(self, *values: Any) -> None:
        programs, one, other, stream, function, metadata, *hooks = values[:9]
        assert (one, other, stream, function) == (1, 1, 7, self.function)
        assert (metadata, hooks) == ("metadata", [None] * 3)
        assert len(values[9:]) == len(self.arg_names)
        self.diary.append(Entry(self.name, True, programs, values[9:], {}))


def _addressed(value: Any) -> Any:
    """A copy with addresses where tensors are, so that a diary keeps none of them alive."""
    if isinstance(value, Tensor):
        return value.data_ptr()
    return tuple(map(_addressed, value)) if isinstance(value, tuple) else value


@pytest.fixture
def diary(monkeypatch: pytest.MonkeyPatch) -> Diary:
    written: Diary = []
    for name, value in list(vars(steps).items()):
        if isinstance(value, JITFunction):
            monkeypatch.setattr(steps, name, Watched(name, value, written))
    monkeypatch.setattr(launch, "room_of", lambda device: CORES)
    monkeypatch.setattr(relaunch, "_calls", {})
    monkeypatch.setattr(relaunch, "_is_known", True)
    monkeypatch.setattr(relaunch, "_device", lambda: None)  # the "device" of a CPU tensor
    monkeypatch.setattr(relaunch, "_stream", lambda device: 7)
    return written


def forward(
    scores: Tensor,
    k: float = 10,
    t: float = 1.0,
    *,
    mask: Tensor | None = None,
    largest: bool = True,
    hard: bool = False,
    out_dtype: torch.dtype | None = None,
    plan: Any = None,
) -> tuple[Tensor, Tensor]:
    out_dtype = out_dtype or scores.dtype
    given = (None, k, None, t, mask, None, largest, "hard" if hard else "mask", out_dtype)
    return launch.forward(scores, *given, plan=plan)


def told(entries: Diary, named: dict[str, Tensor]) -> list[Any]:
    """Launches with addresses as (tensor, offset); scratch memory by its offset from the lowest."""
    spans = {name: (x.data_ptr(), x.numel() * x.itemsize) for name, x in named.items()}

    def is_address(value: Any) -> bool:
        return type(value) is int and value > 1 << 32

    def owner(address: int) -> tuple[str, int]:
        for name, (first, size) in spans.items():
            if first <= address < first + size:
                return name, address - first
        return "scratch", address

    def flat(value: Any) -> Iterator[Any]:
        for x in value if isinstance(value, tuple) else (value,):
            yield from flat(x) if isinstance(x, tuple) else (x,)

    addresses = [x for entry in entries for x in flat(entry.values) if is_address(x)]
    base = min((a for a in addresses if owner(a)[0] == "scratch"), default=0)

    def tell(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(tell, value))
        if not is_address(value):
            return value
        name, offset = owner(value)
        return name, offset - (base if name == "scratch" else 0)

    return [(entry.kernel, entry.programs, tell(entry.values)) for entry in entries]
