"""``fast-lapsum encode``, ``decode`` and ``inspect``, from picture to file and back."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

import fast_lapsum.apps
from coder_cases import random_code
from fast_lapsum.apps.coder import container, encode, study
from fast_lapsum.apps.coder import run as coder_run
from fast_lapsum.apps.coder.bitstream import CoderError
from fast_lapsum.apps.coder.colour import psnr
from fast_lapsum.apps.coder.dictionary import decode_picture
from fast_lapsum.apps.coder.settings import Settings
from fast_lapsum.bench import environment, sources
from fast_lapsum.cli import app

runner = CliRunner()


def scene(height: int, width: int, planes: int = 3) -> np.ndarray:
    """A disc on a slope."""
    rows, columns = np.mgrid[:height, :width] / max(height, width)
    disc = np.hypot(rows - 0.4, columns - 0.5) < 0.25
    found = [120 + 100 * rows * (0.5 + plane / 4) - 80 * disc * (plane - 1) for plane in range(3)]
    return np.clip(np.stack(found[:planes], axis=2), 0, 255).astype(np.uint8)


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "photo.png"
    Image.fromarray(scene(48, 64)).save(path)
    return path


def run(*arguments, code=0):
    result = runner.invoke(app, [str(one) for one in arguments])
    assert result.exit_code == code, result.output
    return result.output


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("plain", [[], ["--plain"]])
def test_from_picture_to_file_and_back(photo, tmp_path, plain):
    lap, png = tmp_path / "photo.lap", tmp_path / "again.png"
    said = run("encode", photo, "-o", lap, "--bytes", 2000, "--steps", 4, "--device", "cpu", *plain)
    assert lap.stat().st_size <= 2000
    run("decode", lap, "-o", png)
    original, again = np.asarray(Image.open(photo)), np.asarray(Image.open(png))
    assert np.array_equal(again, decode_picture(container.read(lap)))
    found = re.search(r"([\d,]+) bytes, ([\d.]+) bpp, ([\d.]+) dB", said)
    assert int(found[1].replace(",", "")) == lap.stat().st_size
    assert float(found[2]) == pytest.approx(8 * lap.stat().st_size / 3072, abs=1e-4)
    assert float(found[3]) == pytest.approx(psnr(original, again), abs=0.006)
    assert float(found[3]) > 25
    rates = re.search(r"rate: ([\d,]+) bits by training's count, ([\d,]+) in the file", said)
    counted, taken = (int(one.replace(",", "")) for one in rates.groups())
    assert taken == 8 * lap.stat().st_size
    assert counted == pytest.approx(taken, rel=0.5)  # a tiny picture, a short training
    shown = run("inspect", lap)
    for word in (
        "64 x 48, RGB",
        "checksum",
        "addresses",
        "Levels",
        "plain" if plain else "context",
    ):
        assert word in shown
    assert names(tmp_path) == ["again.png", "photo.lap", "photo.png"]


def test_names_follow_the_source(photo, tmp_path):
    run("encode", photo, "--steps", 2, "--plain", "--device", "cpu")
    assert (tmp_path / "photo.lap").stat().st_size <= coder_run.LEAST_BYTES
    original = photo.read_bytes()
    assert "maybe the original" in run("decode", tmp_path / "photo.lap", code=2)
    assert photo.read_bytes() == original
    photo.unlink()
    run("decode", tmp_path / "photo.lap")
    assert names(tmp_path) == ["photo.lap", "photo.png"]
    assert "end it in .png" in run("decode", tmp_path / "photo.lap", "-o", "a.jpg", code=2)


def test_bits_per_pixel_are_a_limit(photo, tmp_path):
    lap = tmp_path / "photo.lap"
    run("encode", photo, "-o", lap, "--bpp", 1.2, "--steps", 2, "--plain", "--device", "cpu")
    assert lap.stat().st_size <= 1.2 * 3072 / 8


def test_quality_is_reached(photo, tmp_path):
    lap = tmp_path / "photo.lap"
    options = ("--steps", 3, "--plain", "--device", "cpu")
    run("encode", photo, "-o", lap, "--psnr", 28, *options)
    again = decode_picture(container.read(lap))
    assert psnr(np.asarray(Image.open(photo)), again) >= 28


def test_quality_that_cannot_be_reached():
    noise = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    with pytest.raises(CoderError, match="90 dB were not reached"):
        encode.encode_to_quality(noise, Settings(bits=1, plain=True, steps=1, atoms=3), 90)


def test_figure_and_profile(photo, tmp_path):
    figure = tmp_path / "figure.png"
    options = ("--plain", "--steps", 2, "--device", "cpu", "--figure", figure, "--profile")
    said = run("encode", photo, "-o", tmp_path / "photo.lap", *options)
    assert re.search(r"profile: 1 step of [\d.]+ ms, without the first", said)
    assert re.search(r"the operator takes [\d.]+ ms of each, [\d.]+%", said)
    with Image.open(figure) as image:
        assert image.width > 3 * 170


def test_a_single_step_has_no_profile(photo):
    options = ("--plain", "--steps", 1, "--device", "cpu", "--profile")
    assert "profile: nothing to count" in run("encode", photo, *options)


def recorded(photo, path, steps=3, target=None):
    settings = Settings(bits=1.0, plain=True, steps=steps, atoms=40)
    target = target or coder_run.Target(size=600)
    out = photo.with_suffix(".lap")
    with Path(os.devnull).open("w") as nowhere:
        console = Console(file=nowhere)
        coder_run.run_encode(photo, out, target, settings, console, record_path=path)
    return out


def test_a_record_of_what_was_made(photo, tmp_path):
    path = tmp_path / "record.json"
    lap = recorded(photo, path)
    text = path.read_text()
    found = json.loads(text)
    assert (found["format"], found["version"]) == ("fast-lapsum encode", 1)
    assert found["environment"].keys() == environment.describe().keys()
    assert found["sources"] == sources.describe("encode", "cpu")
    assert found["picture"] == {"name": "photo.png", "width": 64, "height": 48, "planes": 3}
    assert str(tmp_path) not in text
    asked = found["settings"]
    assert asked["target"] == {"bits_per_pixel": None, "size": 600, "quality": None}
    assert (asked["plain"], asked["atoms"], asked["steps"], asked["seed"]) == (True, 40, 3, 0)
    assert "bits" not in asked
    size, code = lap.stat().st_size, container.read(lap)
    assert (found["bytes"], found["file_bits"]) == (size, 8 * size)
    assert found["bpp"] == pytest.approx(8 * size / 3072, abs=1e-5)
    assert found["atoms"] == sum(len(band.values) for band in code.bands) <= 40
    assert found["counted_bits"] == pytest.approx(8 * size, rel=0.5)
    reached = psnr(np.asarray(Image.open(photo)), decode_picture(code))
    assert found["psnr"] == pytest.approx(reached, abs=1e-4)
    assert found["seconds"] > 0
    times = found["profile"]
    assert times["steps"] == 2
    assert 0 < times["operator_ms"] < times["step_ms"]
    assert times["share"] == pytest.approx(times["operator_ms"] / times["step_ms"], abs=0.01)
    assert names(tmp_path) == ["photo.lap", "photo.png", "record.json"]


def test_the_option_writes_a_record(photo, tmp_path):
    path = tmp_path / "record.json"
    options = ("--plain", "--steps", 2, "--bytes", 700, "--device", "cpu", "--record", path)
    assert f"Record: {path}" in run("encode", photo, *options)
    found = json.loads(path.read_text())
    assert found["settings"]["target"]["size"] == 700
    assert found["bytes"] == photo.with_suffix(".lap").stat().st_size


def test_a_record_without_numbers_has_none(tmp_path):
    """An exact file has no PSNR, a single step no profile."""
    photo, path = tmp_path / "grey.png", tmp_path / "record.json"
    Image.fromarray(np.full((16, 16), 128, dtype=np.uint8)).save(photo)
    recorded(photo, path, steps=1)
    found = json.loads(path.read_text())
    assert found["psnr"] is None
    assert found["profile"] == {"steps": 0, "step_ms": None, "operator_ms": None, "share": None}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere/record.json", "the folder .*nowhere does not exist"),
        ("record.txt", "end it in .json"),
        ("folder.json", "a folder"),
        ("photo.json", "would replace"),
    ],
)
def test_a_record_that_cannot_be_written_is_refused_first(photo, tmp_path, name, message):
    (tmp_path / "folder.json").mkdir()
    settings, taken = Settings(bits=1.0, plain=True), tmp_path / "photo.json"
    with pytest.raises(CoderError, match=message):
        coder_run.run_encode(
            photo, taken, coder_run.Target(), settings, Console(), record_path=tmp_path / name
        )
    assert names(tmp_path) == ["folder.json", "photo.png"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--bpp", 1, "--bytes", 900), "one of --bpp, --bytes and --psnr"),
        (("--bytes", 5), "a file of 5 bytes is too small: 64 x 48 pixels need at least"),
        (("-o", "nowhere/photo.lap"), "the folder nowhere does not exist"),
        (("-o", "photo.png"), "is the file to be read"),
        (("--max-pixels", 100), "64 x 48 pixels, expected 1 to 100"),
        (("--figure", "nowhere/figure.png"), "the folder nowhere does not exist"),
        (("--figure", "figure.jpg"), "end it in .png"),
        (("--k", "50"), "is for --plain"),
        (("--record", "nowhere/record.json"), "the folder nowhere does not exist"),
        (("--record", "record.txt"), "end it in .json"),
        (("--bpp", "-1"), "'-1' is not a finite number above 0"),
        (("--background", "no such"), "--background: 'no such' is no colour, expected a name or"),
    ],
)
def test_errors_say_what_was_given(photo, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, ["encode", "photo.png", *map(str, arguments)])
    assert result.exit_code in (1, 2)
    plain = re.sub(r"[\s│]+", " ", re.sub(r"\x1b\[[\d;]*m", "", result.output))
    assert message in plain
    assert names(tmp_path) == ["photo.png"]


@pytest.mark.parametrize("missing", [1, 12, 20])
@pytest.mark.parametrize("command", ["encode", "coder-study", "coder-report"])
def test_a_picture_that_is_cut_short_is_refused(photo, tmp_path, monkeypatch, command, missing):
    """Although all its pixels can be had: who has lost the end may have lost more."""
    monkeypatch.chdir(tmp_path)
    photo.write_bytes(photo.read_bytes()[:-missing])
    said = run(command, "photo.png", code=1)
    assert said == "Error: photo.png: cut short: the end of the PNG is missing\n"
    assert names(tmp_path) == ["photo.png"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_a_pipe_is_not_read_before_its_picture_is(photo, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(photo.read_bytes()), daemon=True)
    writer.start()
    run("encode", pipe, "-o", tmp_path / "photo.lap", "--steps", 2)
    writer.join(10)
    assert (tmp_path / "photo.lap").stat().st_size > 0


def test_bytes_after_the_end_of_a_picture_are_none_of_it(photo, tmp_path):
    photo.write_bytes(photo.read_bytes() + b"some more")
    run("encode", photo, "--steps", 2)
    assert names(tmp_path) == ["photo.lap", "photo.png"]


def test_one_atom_is_one(photo, tmp_path):
    out = tmp_path / "photo.lap"
    assert " dB, 1 atom, " in run("encode", photo, "-o", out, "--plain", "--k", 1, "--steps", 2)
    assert " bpp, 1 atom, " in run("inspect", out)


def test_a_damaged_file_is_one_line(tmp_path):
    path = tmp_path / "bad.lap"
    path.write_bytes(b"\x93LAP\x01 nothing of that kind")
    for command in ("decode", "inspect"):
        said = run(command, path, code=1)
        assert said.count("\n") == 1
        assert "bad.lap: " in said
    assert names(tmp_path) == ["bad.lap"]


LIMITED = """
import resource, sys
from pathlib import Path
from fast_lapsum.cli import app

small, large, out = sys.argv[1:]
app(["decode", small, "-o", out], standalone_mode=False)  # what is imported on the way is here now
Path(out).unlink()
status = Path("/proc/self/status").read_text().splitlines()
taken = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData:"))
limits = resource.getrlimit(resource.RLIMIT_DATA)
resource.setrlimit(resource.RLIMIT_DATA, (taken + (8 << 20), limits[1]))
print("limited", flush=True)
app(["decode", large, "-o", out])
"""


def test_no_memory_is_one_line(tmp_path):
    """A limit on memory, as a container has it: a message and an exit code, not a traceback.

    In a process of its own: what other tests have freed would be there for decoding.
    """
    pytest.importorskip("resource", reason="limits of memory are for Unix")
    for name, size in (("small", 64), ("large", 4000)):
        code = random_code(1, (size, size), "wavelet", density=0.0)
        (tmp_path / f"{name}.lap").write_bytes(container.to_bytes(code))
    paths = [str(tmp_path / name) for name in ("small.lap", "large.lap", "large.png")]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *paths], capture_output=True, text=True, timeout=120
    )
    said = done.stdout.split("limited\n")[1] + done.stderr
    assert done.returncode == 1, said
    assert said.count("\n") == 1
    assert "Error: more memory is needed than there is" in said
    assert names(tmp_path) == ["large.lap", "small.lap"]


#: The command under a limit on its address space, of so many bytes or none.
COMMAND = """
import resource, sys
from fast_lapsum_command import main

limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_AS, (limit or resource.RLIM_INFINITY, resource.RLIM_INFINITY))
try:
    main()
finally:
    if not limit:
        with open("/proc/self/status") as status:
            print(next(line for line in status if line.startswith("VmPeak:")))
"""


NEEDS_LIMITS = pytest.mark.skipif(
    not Path("/proc/self/status").exists(),
    reason="limits of address space, and what a process takes of it, are Linux's",
)


def command_under_limit(limit, *arguments):
    given = [str(one) for one in (limit, *arguments)]
    return subprocess.run(
        [sys.executable, "-c", COMMAND, *given],
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # each would have a stack of its own
        capture_output=True,
        text=True,
        timeout=240,
    )


@NEEDS_LIMITS
def test_commands_under_a_limit_of_memory(tmp_path):
    """What `ulimit -v` does: one line and an exit code, of commands that need a little more.

    How much a process takes before it has work is for the version of torch to say.
    """
    for name, size in (("small", 64), ("large", 4000)):
        code = random_code(1, (size, size), "wavelet", density=0.0)
        (tmp_path / f"{name}.lap").write_bytes(container.to_bytes(code))
    Image.new("RGB", (2500, 2500), "teal").save(tmp_path / "large.png")
    out = tmp_path / "small.png"
    done = command_under_limit(0, "decode", tmp_path / "small.lap", "-o", out)
    assert done.returncode == 0, done.stderr
    out.unlink()
    taken = int(done.stdout.split("VmPeak:")[1].split()[0]) << 10
    before = names(tmp_path)
    for command, source, out in (
        ("decode", "large.lap", "out.png"),
        ("encode", "large.png", "out.lap"),
    ):
        done = command_under_limit(
            taken + (32 << 20), command, tmp_path / source, "-o", tmp_path / out
        )
        assert done.returncode == 1, (command, done)
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1
        assert "error: more memory is needed than there is" in done.stderr.lower()
        assert names(tmp_path) == before


@NEEDS_LIMITS
@pytest.mark.parametrize("mebibytes", [150, 420])
def test_a_limit_that_torch_does_not_fit_in(mebibytes):
    """Without a look at the limit it would end as an error of the loader, or by an abort."""
    done = command_under_limit(mebibytes << 20, "info")
    assert done.returncode == 1
    wanted = f"needs 600 MiB to start, and its limit (ulimit -v) is {mebibytes} MiB\n"
    assert done.stderr == f"error: the command {wanted}"
    assert done.stdout == ""


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")]
)
@pytest.mark.parametrize("command", ["encode", "inspect", "coder-study"])
def test_commands_without_memory(photo, tmp_path, monkeypatch, error, command):
    def greedy(*arguments, **options):
        raise error

    monkeypatch.setattr(coder_run, "encode", greedy)
    monkeypatch.setattr(coder_run.container, "take_apart", greedy)
    monkeypatch.setattr(study, "run", greedy)
    assert "more memory is needed" in run(command, photo, code=1)
    assert names(tmp_path) == ["photo.png"]


def test_other_errors_are_not_taken_for_memory(photo, monkeypatch):
    def broken(*arguments):
        raise RuntimeError("a bug")

    monkeypatch.setattr(coder_run, "encode", broken)
    result = runner.invoke(app, ["encode", str(photo)])
    assert isinstance(result.exception, RuntimeError)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("existing", [False, True])
def test_an_interruption_leaves_nothing_unfinished(
    photo, tmp_path, monkeypatch, number, code, existing
):
    lap = tmp_path / "photo.lap"
    if existing:
        lap.write_text("older")
    real = container.from_bytes

    def interrupted(*arguments):
        # The unfinished file is there, whole but under another name.
        assert len(names(tmp_path)) == 2 + existing
        os.kill(os.getpid(), number)
        return real(*arguments)

    monkeypatch.setattr(coder_run.container, "from_bytes", interrupted)
    before = signal.getsignal(signal.SIGTERM)
    said = run("encode", photo, "-o", lap, "--plain", "--steps", 1, "--device", "cpu", code=code)
    assert "Stopped." in said
    assert names(tmp_path) == (["photo.lap", "photo.png"] if existing else ["photo.png"])
    assert not existing or lap.read_text() == "older"
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_is_missing_is_said(photo, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("fast_lapsum.apps.coder")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(fast_lapsum.apps, "coder")
    monkeypatch.setitem(sys.modules, "constriction", None)
    said = run("encode", photo, code=1)
    assert "constriction is missing" in said
    assert "pip install 'fast-lapsum[apps]'" in said


def check_round_trip(seed: int, plain: bool) -> None:
    random = np.random.default_rng(seed)
    sizes = ((1, 1), (7, 33), (1, 9), (12, 1), (17, 15), (32, 32), (5, 40))
    height, width = (7, 513) if seed == 0 else sizes[seed % len(sizes)]
    planes = (1, 3)[seed // 2 % 2]
    picture = scene(height, width, planes)
    picture = picture + random.integers(-8, 8, picture.shape)
    picture = np.clip(picture, 0, 255).astype(np.uint8)
    settings = Settings(bits=1, plain=plain, steps=1, seed=seed)
    found = encode.encode(picture, settings, int(random.integers(250, 900)))
    again = container.from_bytes(found.data)
    assert np.array_equal(decode_picture(again), decode_picture(found.code))
    assert decode_picture(again).shape == picture.shape


def test_pictures_of_odd_sizes_come_back():
    for seed in range(40):
        check_round_trip(seed, plain=True)
    for seed in range(4):
        check_round_trip(seed, plain=False)


@pytest.mark.slow
def test_two_hundred_pictures_come_back():
    for seed in range(200):
        check_round_trip(seed, plain=seed % 2 == 0)


def test_trimmed_to_a_limit():
    picture = scene(64, 64)
    for plain in (True, False):
        mode = "plain" if plain else "context"
        found = encode.encode(picture, Settings(bits=1, plain=plain, steps=2), 700)
        full = found.code
        limit = len(found.data) * 2 // 3
        shorter, data = encode.trimmed(full, limit, mode)
        assert len(data) <= limit
        container.check(shorter)
        assert 15 < psnr(picture, decode_picture(shorter)) < psnr(picture, decode_picture(full))


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "best"])
def test_what_is_trimmed_is_in_no_number(monkeypatch, plain):
    picture = scene(64, 64)
    settings, limit = Settings(bits=1, plain=plain, steps=3), 600
    real = encode.fit
    # Training gets a third more than the file has room for.
    monkeypatch.setattr(
        encode, "fit", lambda p, s, progress: real(p, replace(s, bits=1.35 * s.bits), progress)
    )
    trimmed = []
    drop = encode.trimmed
    monkeypatch.setattr(encode, "trimmed", lambda *a: trimmed.append(drop(*a)) or trimmed[-1])
    found = encode.encode(picture, settings, limit)
    shorter = trimmed[0][0]
    assert len(found.data) <= limit
    assert found.fit.code is found.code
    assert found.fit.atoms == sum(int(band.mask.sum()) for band in found.code.bands)
    assert found.fit.psnr == psnr(picture, decode_picture(found.code))
    assert found.fit.file_bits == 8 * len(found.data)
    again = decode_picture(container.from_bytes(found.data))
    assert np.array_equal(again, decode_picture(found.code))
    if plain:  # values are refitted to the atoms that are left
        assert found.fit.psnr > psnr(picture, decode_picture(shorter))
        assert found.fit.counted == pytest.approx(8 * len(found.data), rel=0.05)
