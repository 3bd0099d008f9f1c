"""Pictures that the image coder reads: what is taken, what is refused, and how it says so."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from fast_lapsum.apps.coder import picture
from fast_lapsum.apps.coder.bitstream import CoderError

RAMP = np.arange(6 * 5 * 3, dtype=np.uint8).reshape(6, 5, 3)


def saved(tmp_path, image, name="in.png", **options):
    path = tmp_path / name
    image.save(path, **options)
    return path


def test_colour_and_grey_come_as_they_are(tmp_path):
    assert np.array_equal(picture.read(saved(tmp_path, Image.fromarray(RAMP))), RAMP)
    grey = RAMP[:, :, :1]
    found = picture.read(saved(tmp_path, Image.fromarray(grey[:, :, 0])))
    assert np.array_equal(found, grey)
    assert found.flags.writeable


def test_written_and_read_back(tmp_path):
    for planes in (1, 3):
        picture.write(tmp_path / "out.png", RAMP[:, :, :planes])
        assert np.array_equal(picture.read(tmp_path / "out.png"), RAMP[:, :, :planes])
    assert [path.name for path in tmp_path.iterdir()] == ["out.png"]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied(tmp_path, orientation):
    image = Image.fromarray(RAMP)
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = picture.read(saved(tmp_path, image, exif=exif))
    turned = [
        RAMP,
        RAMP[:, ::-1],
        RAMP[::-1, ::-1],
        RAMP[::-1],
        RAMP.transpose(1, 0, 2),
        np.rot90(RAMP, -1),
        RAMP.transpose(1, 0, 2)[::-1, ::-1],
        np.rot90(RAMP),
    ]
    assert np.array_equal(found, turned[orientation - 1])


def test_palettes_and_single_bits_are_converted(tmp_path):
    image = Image.fromarray(RAMP).quantize(16)
    expected = np.asarray(image.convert("RGB"))
    assert np.array_equal(picture.read(saved(tmp_path, image)), expected)
    bits = Image.fromarray(RAMP[:, :, 0] > 40)
    found = picture.read(saved(tmp_path, bits))
    assert found.shape == (6, 5, 1)
    assert set(found.ravel().tolist()) == {0, 255}


def test_transparency(tmp_path):
    alpha = np.full((6, 5, 1), 255, dtype=np.uint8)
    solid = saved(tmp_path, Image.fromarray(np.concatenate([RAMP, alpha], axis=2)))
    assert np.array_equal(picture.read(solid), RAMP)
    alpha[0, 0] = 0
    clear = saved(tmp_path, Image.fromarray(np.concatenate([RAMP, alpha], axis=2)))
    with pytest.raises(CoderError, match=r"transparent.*--background"):
        picture.read(clear)
    found = picture.read(clear, background="#ff0000")
    assert found[0, 0].tolist() == [255, 0, 0]
    assert np.array_equal(found[1:], RAMP[1:])
    with pytest.raises(CoderError, match="'no such' is no colour"):
        picture.read(clear, background="no such")


def test_transparent_grey_stays_grey(tmp_path):
    both = np.stack([RAMP[:, :, 0], np.full((6, 5), 128, np.uint8)], axis=2)
    path = saved(tmp_path, Image.fromarray(both, mode=None))
    assert picture.read(path, background="white").shape == (6, 5, 1)
    assert picture.read(path, background="blue").shape == (6, 5, 3)


def test_what_is_refused(tmp_path):
    deep = saved(tmp_path, Image.fromarray(np.full((4, 4), 40000, dtype=np.uint16)), "deep.png")
    with pytest.raises(CoderError, match=r"deep.png: mode I;16 .*8-bit"):
        picture.read(deep)
    ink = saved(tmp_path, Image.new("CMYK", (4, 4)), "ink.jpg")
    with pytest.raises(CoderError, match=r"ink.jpg: mode CMYK"):
        picture.read(ink)
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    moving = saved(tmp_path, frames[0], "two.gif", save_all=True, append_images=frames[1:])
    with pytest.raises(CoderError, match="has 2 frames"):
        picture.read(moving)
    with pytest.raises(CoderError, match="5 x 6 pixels, expected 1 to 29"):
        picture.read(saved(tmp_path, Image.fromarray(RAMP)), max_pixels=29)


def png_of_16_bits(kind: int, channels: int) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        body = name + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    rows = (b"\0" + bytes(range(2 * 5 * channels))) * 4
    head = struct.pack(">IIBBBBB", 5, 4, 16, kind, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def tiff_of_16_bits() -> bytes:
    pixels = bytes(2 * 3 * 5 * 4)
    tags = ((256, 5), (257, 4), (258, 8), (259, 1), (262, 2), (273, 14), (277, 3), (278, 4))
    entries = [struct.pack("<HHII", tag, 4, 1, value) for tag, value in (*tags, (279, len(pixels)))]
    entries[2] = struct.pack("<HHII", 258, 3, 3, 8)  # at byte 8: 16, 16, 16
    directory = struct.pack("<H", len(entries)) + b"".join(entries) + bytes(4)
    head = b"II*\0" + struct.pack("<I", 14 + len(pixels)) + struct.pack("<HHH", 16, 16, 16)
    return head + pixels + directory


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("rgb.png", png_of_16_bits(2, 3)),
        ("rgba.png", png_of_16_bits(6, 4)),
        ("la.png", png_of_16_bits(4, 2)),
        ("l.png", png_of_16_bits(0, 1)),
        ("rgb.tif", tiff_of_16_bits()),
        ("rgb.ppm", b"P6 5 4 65535\n" + bytes(5 * 4 * 3 * 2)),
        ("ten.ppm", b"P6 5 4 1023\n" + bytes(5 * 4 * 3 * 2)),
        ("text.ppm", b"P3 1 1 1023\n1 2 1023\n"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_more_than_8_bits_are_refused(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    with Image.open(tmp_path / name) as image:
        image.load()  # a whole file, which Pillow reads
    with pytest.raises(CoderError, match=rf"{name}: mode .*more than 8 bits a channel.*8-bit"):
        picture.read(tmp_path / name, background="white")


def test_fewer_than_8_bits_are_taken(tmp_path):
    (tmp_path / "few.ppm").write_bytes(b"P6 2 1 15\n" + bytes([0, 15, 0, 15, 0, 15]))
    assert picture.read(tmp_path / "few.ppm").tolist() == [[[0, 255, 0], [255, 0, 255]]]


def test_files_that_are_no_pictures(tmp_path):
    path = tmp_path / "notes.png"
    path.write_text("not a picture")
    with pytest.raises(CoderError, match=r"notes.png: not a picture"):
        picture.read(path)
    with pytest.raises(CoderError, match=r"missing.png: cannot be read, No such file"):
        picture.read(tmp_path / "missing.png")


def test_no_memory_says_nothing_about_the_picture(tmp_path, monkeypatch):
    def greedy(*arguments):
        raise MemoryError

    monkeypatch.setattr(picture.ImageOps, "exif_transpose", greedy)
    with pytest.raises(MemoryError):
        picture.read(saved(tmp_path, Image.fromarray(RAMP)))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF", "GIF", "BMP"])
def test_damaged_pictures_give_an_error(tmp_path, kind):
    whole = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(whole, format=kind)
    path = tmp_path / "cut"
    for share in (0.1, 0.5, 0.9):
        path.write_bytes(whole.getvalue()[: int(share * len(whole.getvalue()))])
        with pytest.raises(CoderError, match="cut: "):
            picture.read(path)
    random = np.random.default_rng(1)
    for _ in range(50):
        data = bytearray(whole.getvalue())
        for place in random.integers(0, min(len(data), 400), 4):
            data[place] = random.integers(256)
        path.write_bytes(data)
        with contextlib.suppress(CoderError):
            picture.read(path)
