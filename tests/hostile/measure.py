"""What reading and decoding a file takes, in a process of its own: memory and time of a core."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np

from coder_cases import random_code
from fast_lapsum.apps.coder import container, limits
from fast_lapsum.apps.coder.bitstream import CoderError
from fast_lapsum.apps.coder.dictionary import decode_picture

from . import forge
from .mutate import mutated

KINDS = ("crafted", "crafted at the limit", "mutated")
STATUS = Path("/proc/self/status")
_ENOUGH = 3600.0  # seconds after which a process is taken to hang


class Cost(NamedTuple):
    """What one file came to."""

    kind: str
    seed: int
    pixels: int  # of a file that was read, else 0
    file_bytes: int
    ending: str  # "decoded", or the message that it was refused with
    memory: int  # bytes
    seconds: float

    @property
    def memory_share(self) -> float:
        """Of what is allowed."""
        return self.memory / limits.memory(self.pixels, self.file_bytes)

    @property
    def time_share(self) -> float:
        """Of what is allowed."""
        return self.seconds / limits.seconds(self.pixels, self.file_bytes)


def make(kind: str, seed: int) -> bytes:
    """The file of a seed."""
    if kind == "mutated":
        random = np.random.default_rng(seed)
        sizes = ((9, 12), (64, 64), (5, 20), (200, 150))
        originals = [
            container.to_bytes(random_code(int(random.integers(1000)), sizes[seed % 4]), mode)
            for mode in ("plain", "context")
        ]
        return mutated(random, originals)
    return forge.crafted(forge.plan(seed, kind == KINDS[1]))


def claimed_pixels(data: bytes) -> int:
    """What the header says, where it says anything and that is within the limit; else 0."""
    try:
        place, sizes = len(container.MAGIC) + 2, []
        for _ in range(2):
            size, place = container._read_varint(data, place)
            sizes.append(size)
    except CoderError:
        return 0
    pixels = sizes[0] * sizes[1]
    return pixels if pixels <= container.MAX_PIXELS else 0


def cost(kind: str, seed: int) -> Cost:
    """Make the file in one process and decode it in another: neither sees the other's memory."""
    data = _apart(lambda: make(kind, seed))
    assert isinstance(data, bytes)
    ending, memory, seconds = _apart(lambda: _decoded(data))  # type: ignore[misc]
    return Cost(kind, seed, claimed_pixels(data), len(data), ending, memory, seconds)


def _decoded(data: bytes) -> tuple[str, int, float]:
    before, begin = _kibibytes("VmRSS"), time.process_time()
    try:
        picture = decode_picture(container.from_bytes(data, "hostile.lap"))
        ending = "decoded"
        assert picture.dtype == np.uint8
    except CoderError as error:
        ending = str(error)
        assert ending.startswith("hostile.lap: ")
    return ending, 1024 * (_kibibytes("VmHWM") - before), time.process_time() - begin


def _kibibytes(name: str) -> int:
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise RuntimeError(f"{STATUS} has no line {name}")


def _apart(work: Callable[[], object]) -> object:
    """What ``work`` returns, done in a forked process."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(there, work))
    process.start()
    there.close()
    try:
        if not here.poll(_ENOUGH):
            raise RuntimeError(f"nothing came within {_ENOUGH:.0f} s")
        found: object = here.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"a process ended with {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
    return found


def _send(connection: Connection, work: Callable[[], object]) -> None:
    connection.send(work())
    connection.close()
