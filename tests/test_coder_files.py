"""Files of the image coder: damaged and hostile ones give one clear error, in bounded time."""

from __future__ import annotations

import time
import tracemalloc
import zlib

import numpy as np
import pytest

from coder_cases import random_code, same
from fast_lapsum.apps.coder import container
from fast_lapsum.apps.coder.bitstream import CoderError
from fast_lapsum.apps.coder.code import layout
from fast_lapsum.apps.coder.dictionary import decode_picture

ORIGINALS = [
    container.to_bytes(random_code(seed, size), mode)
    for seed, size in ((0, (9, 12)), (1, (11, 6)), (2, (16, 16)), (3, (5, 20)), (7, (13, 13)))
    for mode in ("plain", "context")
]
FEW_PIXELS = 1 << 12


def repaired(data: bytes) -> bytes:
    """The same bytes with a checksum that fits."""
    body = data[:-4]
    return body + zlib.crc32(body).to_bytes(4, "little")


def mutated(random: np.random.Generator) -> bytes:
    """A file that someone or something changed; half of them with a checksum that fits."""
    data = bytearray(ORIGINALS[random.integers(len(ORIGINALS))])
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


def attack(count: int, seed: int) -> tuple[int, float]:
    """Read mutated files; how many were readable, and the seconds that the slowest one took."""
    random = np.random.default_rng(seed)
    readable, slowest = 0, 0.0
    for _ in range(count):
        data = mutated(random)
        begin = time.perf_counter()
        try:
            code = container.from_bytes(data, "hostile.lap", FEW_PIXELS)
        except CoderError as error:
            assert str(error).startswith("hostile.lap: ")  # noqa: PT017
        else:
            readable += 1
            assert decode_picture(code).shape == (code.height, code.width, code.planes)
            container.check(code)
        slowest = max(slowest, time.perf_counter() - begin)
    return readable, slowest


def test_mutated_files():
    tracemalloc.start()
    try:
        readable, slowest = attack(1000, seed=0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0 < readable < 500
    assert slowest < 5
    assert peak < 32 * 2**20


@pytest.mark.slow
def test_ten_thousand_mutated_files():
    assert attack(10_000, seed=1)[1] < 5


@pytest.mark.parametrize("original", ORIGINALS[:4])
def test_every_way_to_cut_a_file_short(original):
    for length in range(len(original)):
        with pytest.raises(CoderError):
            container.from_bytes(original[:length])
        with pytest.raises(CoderError):
            container.from_bytes(repaired(original[:length]))


def test_every_flipped_bit_is_noticed():
    original = ORIGINALS[1]
    for place in range(len(original)):
        for bit in range(8):
            data = bytearray(original)
            data[place] ^= 1 << bit
            with pytest.raises(CoderError):
                container.from_bytes(bytes(data))


def with_header(data: bytes, numbers: tuple[int, ...], flags: int | None = None) -> bytes:
    """A file that claims other numbers: height, width, shrink, words."""
    varints = b"".join(container._varint(number) for number in numbers)
    flags = data[5] if flags is None else flags
    return repaired(data[:5] + bytes([flags]) + varints + bytes(4 * numbers[3]) + bytes(4))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a .lap file"),
        (b"\x89PNG\r\n\x1a\n", "not a .lap file"),
        (ORIGINALS[0][:5], "ends in its header"),
        (ORIGINALS[0][:9], "ends in its header"),
        (repaired(ORIGINALS[0][:4] + b"\x02" + ORIGINALS[0][5:]), "version 2 .* expected 1"),
        (ORIGINALS[0][:-1], "cut short"),
        (ORIGINALS[0] + b"\0", "followed by something else"),
        (ORIGINALS[0][:-1] + bytes([ORIGINALS[0][-1] ^ 1]), "checksum is wrong"),
        (with_header(ORIGINALS[0], (0, 5, 0, 0)), "5 x 0 pixels"),
        (with_header(ORIGINALS[0], (1 << 30, 1 << 30, 0, 0)), "pixels, expected 1 to"),
        (with_header(ORIGINALS[0], (4, 4, 0, 0), flags=0b11100), "dictionary 7"),
        (with_header(ORIGINALS[0], (4, 4, 1 << 30, 1)), "shrink is"),
    ],
)
def test_messages_name_the_file_and_what_is_wrong(data, message):
    with pytest.raises(CoderError, match=message) as error:
        container.from_bytes(data, "some.lap")
    assert str(error.value).startswith("some.lap: ")


def test_numbers_have_one_form():
    data = ORIGINALS[0]
    longer = data[:6] + bytes([data[6] | 128, 0]) + data[7:]
    with pytest.raises(CoderError, match="too many bytes"):
        container.from_bytes(repaired(longer))


@pytest.mark.parametrize("flags", [0b00000, 0b00001, 0b00110, 0b00111])
def test_a_tiny_file_that_claims_a_large_picture(flags):
    # 4 million pixels from a few bytes: an error or a picture, soon, without more than it takes.
    random = np.random.default_rng(0)
    for words in (0, 1, 5, 40):
        head = with_header(ORIGINALS[0], (2048, 2048, 0, words), flags)
        data = repaired(head[: -4 - 4 * words] + random.bytes(4 * words) + bytes(4))
        begin = time.perf_counter()
        try:
            code = container.from_bytes(data)
        except CoderError:
            pass
        else:
            assert len(code.bands) == len(layout(code.dictionary, "rgb", 2048, 2048, code.planes))
        assert time.perf_counter() - begin < 20


def test_a_limit_can_be_given():
    code = random_code(0, (9, 12))
    data = container.to_bytes(code)
    assert same(container.from_bytes(data, max_pixels=108), code)
    with pytest.raises(CoderError, match="12 x 9 pixels, expected 1 to 107"):
        container.from_bytes(data, max_pixels=107)


def test_parts_are_counted(tmp_path):
    code = random_code(2, (64, 64))
    path = tmp_path / "code.lap"
    path.write_bytes(container.to_bytes(code))
    assert same(container.read(path), code)
    contents = container.take_apart(path.read_bytes(), count=True)
    assert contents.mode == "context"
    assert contents.header_bytes + contents.payload_bytes == path.stat().st_size
    assert sum(contents.bits.values()) == pytest.approx(8 * contents.payload_bytes, abs=40)
    assert same(contents.code, code)


def test_pictures_of_odd_sizes_decode():
    for size in ((1, 1), (1, 7), (7, 513), (3, 2)):
        for seed in range(4):
            code = random_code(seed, size)
            again = container.from_bytes(container.to_bytes(code))
            assert np.array_equal(decode_picture(again), decode_picture(code))
