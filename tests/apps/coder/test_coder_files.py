"""Files of the image coder: damaged and hostile ones give one clear error, in bounded time."""

from __future__ import annotations

import hashlib
import time
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest

from coder_cases import random_code, same
from fast_lapsum.apps.coder import container, tiles, wavelet
from fast_lapsum.apps.coder.bitstream import CoderError
from fast_lapsum.apps.coder.code import Band, Code, layout
from fast_lapsum.apps.coder.dictionary import decode_picture
from hostile.mutate import mutated, repaired

ORIGINALS = [
    container.to_bytes(random_code(seed, size), mode)
    for seed, size in ((0, (9, 12)), (1, (11, 6)), (2, (16, 16)), (3, (5, 20)), (7, (13, 13)))
    for mode in ("plain", "context")
]
FEW_PIXELS = 1 << 12


def attack(
    count: int, seed: int, originals: Sequence[bytes] = ORIGINALS, pixels: int = FEW_PIXELS
) -> tuple[int, float]:
    """Read mutated files; how many were readable, and the seconds that the slowest one took."""
    random = np.random.default_rng(seed)
    readable, slowest = 0, 0.0
    for _ in range(count):
        data = mutated(random, originals)
        begin = time.perf_counter()
        try:
            code = container.from_bytes(data, "hostile.lap", pixels)
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
        readable, slowest = attack(500, seed=0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0 < readable < 250
    assert slowest < 5
    assert peak < 32 * 2**20


def sparse(side: int, dictionary: str, mode: str, atoms: int, value: int = 1) -> bytes:
    """A file of few bytes that claims a large picture: the first atoms of each band are on."""
    colours = "rgb" if dictionary == "blocks" else "opponent"
    bands = []
    for place in layout(dictionary, colours, side, side, 3):
        mask = np.zeros((place.height, place.width), dtype=np.bool_)
        mask.ravel()[:atoms] = True
        values = np.full((int(mask.sum()), place.planes), value, dtype=np.int32)
        levels = value if len(values) else 0
        bands.append(Band(place.level, place.plane, place.kind, mask, values, 4096, levels))
    matrix = (1 << 14, 0, 0, 0, 1 << 14, 0, 0, 0, 1 << 14) if colours == "opponent" else ()
    return container.to_bytes(
        Code(side, side, 3, dictionary, colours, 0, tuple(bands), matrix), mode
    )


def test_mutated_files_of_larger_pictures():
    originals = [
        sparse(700, "blocks", "plain", 1),
        sparse(700, "wavelet", "context", 0),
        sparse(500, "wavelet", "context", 2),
    ]
    tracemalloc.start()
    try:
        readable, slowest = attack(150, 2, originals, pixels=1 << 20)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 3 <= readable < 150
    assert slowest < 10
    assert peak < 45 * 2**20


@pytest.mark.parametrize(
    ("picture", "most"),
    [
        ((2048, "wavelet", "context", 0), 20),
        ((2048, "blocks", "plain", 0), 25),
        ((2048, "wavelet", "context", 1), 40),
        ((1024, "wavelet", "context", 1, 100_000), 45),  # beyond 32 bits
        ((2048, "blocks", "plain", 1), 25),
    ],
    ids=["empty", "empty blocks", "one atom a band", "large values", "one block a band"],
)
def test_memory_and_time_of_large_pictures(picture, most):
    """In bytes a pixel, reading included; 108 and more when all bands were joined in 64 bits."""
    data = sparse(*picture)
    assert len(data) < 1000
    tracemalloc.start()
    try:
        begin = time.perf_counter()
        picture = decode_picture(container.from_bytes(data))
        seconds = time.perf_counter() - begin
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most * picture.shape[0] * picture.shape[1]
    assert seconds < 10


# Files of version 1 and the SHA-256 of their pixels: both may never change.
GOLDEN = {
    "plain": (
        (14, 19, 3),
        "934c415001020e130018edf40b5a57371270bc91c9393fbd515f770c6e03b56f49dd1f488898539c3b19fb2f03ec63"
        "7ae3217228b0bd6007cd9ce518a5c0aab35f713c1ecfad1d519fa55bb067ed8c27c0680bc8fe86469e4e46314808ba"
        "dba4b485eef9dbc4d38e4d0b3da203c9",
        "e066a11c070e98edfbcf18a2bc874901efcd948efc41054315875d75367673ed",
    ),
    "best": (
        (17, 23, 3),
        "934c415001271117920e2589d3ce25431ad0002725e5cb062ede234b1a09abfeffb39914b5a965b10b0962774ed8eb"
        "bcb5c65a9cac5512a8545446c30fcf0cbef95cbad1748babe8411f5547299e8609471578a0134f03afd2955f444212"
        "89959593dff7a6694156240634cec983fa1c2c8fdf1664fad975cf3b4e40636cb6867760f2993c66ebb47fa2963bdc"
        "7ca5addd0b39de54584e9469e3c6218cc5716d528c2f722f2206856587c5510549ab269bcefb9a97",
        "ea40dd74dac27d4c6e98bd7098abf12e84ca7017360426f513fc3920c9c61c83",
    ),
    "best, grey": (
        (15, 9, 1),
        "934c415001050f09671009abfeffa2e0e584c4687d25a24569e213ee0ce4e51698895a4dd7966a8b1529072252f44f"
        "e1b15076888ea8e98b32a35173c7e6e4d7d5fb6dbcbaf98f26dabe7e6b955d",
        "e87f26730c8543bcfd781159e6ee65eb20a04f9c941636fa7d2b3c1c53d88dfd",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_decoded_pixels_never_change(name):
    shape, data, pixels = GOLDEN[name]
    picture = decode_picture(container.from_bytes(bytes.fromhex(data)))
    assert picture.shape == shape
    assert picture.flags.c_contiguous
    assert hashlib.sha256(picture.tobytes()).hexdigest() == pixels


def test_strips_and_widths_do_not_matter(monkeypatch):
    codes = [random_code(seed, size) for seed in range(8) for size in (None, (70, 45))]
    expected = [decode_picture(code) for code in codes]
    monkeypatch.setattr(wavelet, "_STRIP", 100)
    monkeypatch.setattr(tiles, "MOST", 100)
    monkeypatch.setattr(wavelet, "storage", lambda largest: np.int64)
    for code, picture in zip(codes, expected, strict=True):
        assert np.array_equal(decode_picture(code), picture)


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
