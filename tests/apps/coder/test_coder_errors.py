"""The coder's commands where something is wrong: one line that says it, and no unfinished file."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import fast_lapsum.apps
from coder_cases import random_code
from coder_runs import names, photo, run, runner
from fast_lapsum.apps.coder import container, study
from fast_lapsum.apps.coder import run as coder_run
from fast_lapsum.cli import app

__all__ = ["photo"]  # a fixture


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
        (("--psnr", 90, "--bytes", 10), "Invalid value for --bytes and --psnr: expected one of"),
        (("--k", "50"), "Invalid value for --k: 50 atoms can be asked of the --plain coder alone"),
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


@pytest.mark.parametrize("command", ["decode", "inspect"])
def test_another_kind_of_file_is_named(photo, tmp_path, command):
    said = run(command, photo, code=1)
    assert "not a .lap file: it begins with 89 50 4E 47, not 93 4C 41 50" in said
    empty = tmp_path / "empty.lap"
    empty.touch()
    assert "it begins with nothing, not 93 4C 41 50" in run(command, empty, code=1)


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
    lap = tmp_path / "photo.lap"
    lap.write_bytes(container.MAGIC)
    source = lap if command == "inspect" else photo
    out = ("-o", tmp_path / "out.lap") if command == "encode" else ()
    assert "more memory is needed" in run(command, source, *out, code=1)
    assert names(tmp_path) == ["photo.lap", "photo.png"]


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


def test_what_is_missing_is_said_by_an_import(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("fast_lapsum.apps.coder")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(fast_lapsum.apps, "coder")
    monkeypatch.setitem(sys.modules, "numpy", None)
    said = r"numpy is missing. Get it with: pip install 'fast-lapsum\[apps\]'"
    with pytest.raises(ModuleNotFoundError, match=said):
        from fast_lapsum.apps.coder import fit  # noqa: F401
