"""Symbols to bytes and back through a range coder, with probabilities that are integers.

One walk over a code (:mod:`.bands`) serves writing, reading and counting: it asks for each array of
symbols and gives the true ones where they are known. What decides a probability is an integer
score, the log-odds in 1/32 bit. The range coder takes it as a float64, which is exact: a whole
number of 2^-24, from a table made in decimal arithmetic or from whole numbers divided by 2^24. No
machine with IEEE doubles can come to another one.
"""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal, localcontext
from typing import Protocol

import constriction
import numpy as np
import numpy.typing as npt

from .tiles import spans

Integers = npt.NDArray[np.int32]
Bits = npt.NDArray[np.bool_]

SCORE_UNIT = 32
"""A score of 32 is one bit of log-odds: the odds are 2 to 1."""
SCORE_LIMIT = 20 * SCORE_UNIT
"""Larger scores count as this one: nothing is less likely than about one in a million."""
PRECISION = 24
"""The range coder's probabilities are multiples of 2^-24."""


SYMBOLS_PER_PIXEL, SYMBOLS_PER_BYTE, FEW_SYMBOLS = 16, 64, 1 << 16
"""A file has at most so many symbols: a pixel, a byte of payload, and in any case.

Decoding takes its time by the symbol, and one that its model is sure of costs a millionth of a bit.
What an encoder writes has 2 a pixel and about 1 a bit; files made by hand had 200 a pixel.
"""


class CoderError(ValueError):
    """A file or a picture that cannot be coded; the message says what is wrong with it."""


def _probabilities() -> npt.NDArray[np.float64]:
    """1 / (1 + 2^(-score / 32)), rounded to multiples of 2^-24: decimal arithmetic is exact."""
    with localcontext() as context:
        context.prec = 40
        odds = [
            Decimal(2) ** (Decimal(-score) / SCORE_UNIT)
            for score in range(-SCORE_LIMIT, SCORE_LIMIT + 1)
        ]
        counts = [int((1 << PRECISION) / (1 + one) + Decimal("0.5")) for one in odds]
    return np.array(counts, dtype=np.float64) / (1 << PRECISION)


PROBABILITY = _probabilities()
COST = -np.log2(np.stack([1 - PROBABILITY, PROBABILITY]))
"""Bits of a 0 and of a 1, by score + SCORE_LIMIT."""

_BERNOULLI = constriction.stream.model.Bernoulli(perfect=False)
_UNIFORM = constriction.stream.model.Uniform()


class Coder(Protocol):
    """Takes symbols if they are known, finds them if not, and returns them."""

    part: str  # what the next symbols belong to, for those who count and for error messages

    def bits(self, scores: Integers, symbols: Bits | None) -> Bits:
        """One bit per score; a positive score says that a 1 is likely."""

    def chances(self, chance: int, count: int, symbols: Bits | None) -> Bits:
        """``count`` bits that are 1 with probability ``chance`` / 2^24."""

    def uniform(self, sizes: Integers, symbols: Integers | None) -> Integers:
        """Integers from 0 to size - 1, all equally likely, with sizes in 1 ... 2^24 - 1."""


def most_symbols(pixels: int, payload_bytes: int) -> int:
    """The symbols that a file may have."""
    return SYMBOLS_PER_PIXEL * pixels + SYMBOLS_PER_BYTE * payload_bytes + FEW_SYMBOLS


def table_index(scores: Integers) -> Integers:
    """Where a score is in PROBABILITY and COST."""
    return np.clip(scores, -SCORE_LIMIT, SCORE_LIMIT) + SCORE_LIMIT


class Writer:
    """Collects the range coder's words."""

    def __init__(self) -> None:
        self.part = ""
        self.symbols = 0
        self._encoder = constriction.stream.queue.RangeEncoder()

    def bits(self, scores: Integers, symbols: Bits | None) -> Bits:
        """Write ``symbols``."""
        assert symbols is not None
        self.symbols += symbols.size
        if symbols.size:
            chances = PROBABILITY[table_index(scores)]
            self._encoder.encode(symbols.astype(np.int32), _BERNOULLI, chances)
        return symbols

    def chances(self, chance: int, count: int, symbols: Bits | None) -> Bits:
        """Write ``symbols``."""
        assert symbols is not None
        self.symbols += count
        if count:
            self._encoder.encode(symbols.astype(np.int32), _fixed(chance))
        return symbols

    def uniform(self, sizes: Integers, symbols: Integers | None) -> Integers:
        """Write ``symbols``."""
        assert symbols is not None
        self.symbols += sizes.size
        several = sizes > 1
        if several.any():
            self._encoder.encode(
                symbols[several].astype(np.int32), _UNIFORM, sizes[several].astype(np.int32)
            )
        return symbols

    def finish(self) -> bytes:
        """The words, little-endian."""
        words: npt.NDArray[np.uint32] = self._encoder.get_compressed()
        return words.astype("<u4").tobytes()


class Reader:
    """Takes the words of a :class:`Writer` apart again."""

    def __init__(self, data: bytes | memoryview, pixels: int) -> None:
        self.part = ""
        self._most = self._left = most_symbols(pixels, len(data))
        if len(data) % 4:
            raise CoderError(f"the payload has {len(data)} bytes, expected a multiple of 4")
        words = np.frombuffer(data, dtype="<u4").astype(np.uint32, copy=False)
        self._decoder = constriction.stream.queue.RangeDecoder(words)

    def _take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise CoderError(
                f"more than {self._most:,} symbols, which is what its pixels and bytes may have"
            )

    def _decode(self, *arguments: object) -> Integers:
        try:
            found: Integers = self._decoder.decode(*arguments)
        except AssertionError as error:  # what the library raises for impossible data
            raise CoderError(f"the payload is damaged, found in its {self.part}") from error
        return found

    def bits(self, scores: Integers, symbols: Bits | None) -> Bits:
        """Read as many bits as there are scores."""
        self._take(scores.size)
        found = np.empty(scores.shape, dtype=np.bool_)
        for part in spans(len(scores)):
            found[part] = self._decode(_BERNOULLI, PROBABILITY[table_index(scores[part])])
        return found

    def chances(self, chance: int, count: int, symbols: Bits | None) -> Bits:
        """Read ``count`` bits."""
        self._take(count)
        found = np.empty(count, dtype=np.bool_)
        for part in spans(count):
            found[part] = self._decode(_fixed(chance), part.stop - part.start)
        return found

    def uniform(self, sizes: Integers, symbols: Integers | None) -> Integers:
        """Read as many integers as there are sizes."""
        self._take(sizes.size)
        found = np.zeros(sizes.shape, dtype=np.int32)
        for part in spans(len(sizes)):
            several = sizes[part] > 1
            if several.any():
                chosen = sizes[part][several].astype(np.int32)
                found[part][several] = self._decode(_UNIFORM, chosen)
        return found

    def finish(self) -> None:
        """Check that nothing is left over."""
        if not self._decoder.maybe_exhausted():
            raise CoderError("the payload goes on after the last symbol")


class Counter:
    """Adds up the bits by band and part, of symbols that are known or that another coder finds."""

    def __init__(self, found_by: Coder | None = None) -> None:
        self._coder = found_by
        self._part = ""
        self.band = 0
        self.counted: defaultdict[tuple[int, str], float] = defaultdict(float)

    def watch(self, band: int) -> None:
        """Count for this band from now on."""
        self.band = band

    @property
    def part(self) -> str:
        """What the next symbols belong to."""
        return self._part

    @part.setter
    def part(self, part: str) -> None:
        self._part = part
        if self._coder is not None:
            self._coder.part = part

    def bits(self, scores: Integers, symbols: Bits | None) -> Bits:
        """Count the bits of ``symbols``."""
        if self._coder is not None:
            symbols = self._coder.bits(scores, symbols)
        assert symbols is not None
        self.counted[self.band, self.part] += float(
            COST[symbols.astype(np.intp), table_index(scores)].sum()
        )
        return symbols

    def chances(self, chance: int, count: int, symbols: Bits | None) -> Bits:
        """Count the bits of ``symbols``."""
        if self._coder is not None:
            symbols = self._coder.chances(chance, count, symbols)
        assert symbols is not None
        ones, share = int(symbols.sum()), chance / (1 << PRECISION)
        self.counted[self.band, self.part] -= float(
            ones * np.log2(share) + (count - ones) * np.log2(1 - share)
        )
        return symbols

    def uniform(self, sizes: Integers, symbols: Integers | None) -> Integers:
        """Count the bits of ``symbols``."""
        if self._coder is not None:
            symbols = self._coder.uniform(sizes, symbols)
        assert symbols is not None
        self.counted[self.band, self.part] += float(np.log2(sizes).sum())
        return symbols


def _fixed(chance: int) -> object:
    return constriction.stream.model.Bernoulli(chance / (1 << PRECISION), perfect=False)
