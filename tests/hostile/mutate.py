"""Files that someone or something changed, with checksums that fit or not, made from a seed."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np


def repaired(data: bytes) -> bytes:
    """The same bytes with a checksum that fits."""
    body = data[:-4]
    return body + zlib.crc32(body).to_bytes(4, "little")


def mutated(random: np.random.Generator, originals: Sequence[bytes]) -> bytes:
    """A file that someone or something changed; half of them with a checksum that fits."""
    data = bytearray(originals[random.integers(len(originals))])
    for _ in range(random.integers(1, 4)):
        # Headers are short: a place among the first bytes is as likely as any other.
        place = int(random.integers(len(data) if random.random() < 0.5 else min(24, len(data))))
        kind = random.integers(8)
        if kind < 3:
            data[place] ^= 1 << random.integers(8)
        elif kind < 5:
            data[place] = random.choice([0, 1, 127, 128, 255, random.integers(256)])
        elif kind == 5:
            end = place + random.integers(1, 12)
            data[place:end] = random.bytes(len(data[place:end]))
        elif kind == 6:
            del data[place : place + random.integers(1, 9)]
        else:
            data[place:place] = random.bytes(random.integers(1, 9))
        if not data:
            break
    return repaired(bytes(data)) if random.random() < 0.5 else bytes(data)
