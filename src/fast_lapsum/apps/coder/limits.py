"""What reading and decoding a file may take, whoever made it: docs/coder.md says so.

``python -m hostile`` in the tests holds thousands of files made by hand against these numbers.
"""

from __future__ import annotations

BYTES_PER_PIXEL = 72
BYTES_PER_FILE_BYTE = 3
BYTES_BESIDE = 64 << 20
"""Memory beyond what Python and its libraries have taken before."""

SECONDS_PER_PIXEL = 4e-6
SECONDS_PER_FILE_BYTE = 2e-6
SECONDS_BESIDE = 2.0
"""Of one core."""


def memory(pixels: int, file_bytes: int) -> int:
    """Bytes that a file of that kind takes at most.

    >>> memory(1 << 20, 100) // 2**20
    136
    """
    return BYTES_PER_PIXEL * pixels + BYTES_PER_FILE_BYTE * file_bytes + BYTES_BESIDE


def seconds(pixels: int, file_bytes: int) -> float:
    """Seconds of one core that a file of that kind takes at most.

    >>> seconds(1_000_000, 0)
    6.0
    """
    return SECONDS_PER_PIXEL * pixels + SECONDS_PER_FILE_BYTE * file_bytes + SECONDS_BESIDE
