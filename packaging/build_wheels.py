"""python packaging/build_wheels.py FOLDER: an sdist, a wheel with the C++ kernel, and one without.

On Linux the wheel with the kernel is checked, and marked, for manylinux_2_28 or older. libgomp is
not put into it: torch has loaded its own by the time the kernel is, under the same name, and there
is to be one pool of threads.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import manylinux_symbols
from manylinux_symbols import MANYLINUX

ROOT = Path(__file__).resolve().parents[1]


def run(*words: object) -> None:
    """A command of this Python's modules, which find its programs; its failure is ours."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path}
    command = [sys.executable, "-m", *map(str, words)]
    ended = subprocess.run(command, cwd=ROOT, env=environment).returncode
    if ended:
        raise SystemExit(f"error: {' '.join(map(str, words))}: exit code {ended}; see above")


def check_symbols(wheel: Path, scratch: Path) -> None:
    """End with one line if the kernel of a wheel needs a newer system than it is marked for."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if Path(one).name == "_lapsum.so")
        manylinux_symbols.check(Path(archive.extract(name, scratch)))


def main(folder: Path) -> None:
    """Build all of them in a new folder, which takes the place of the old one in the end."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made, native = Path(scratch) / "made", Path(scratch) / "native"
        run("build", "--quiet", "--sdist", "--outdir", made, ROOT)
        (sdist,) = made.glob("*.tar.gz")
        # From the sdist: what is not in it would be missing for others, too.
        shutil.unpack_archive(sdist, Path(scratch) / "source", filter="data")
        (source,) = (Path(scratch) / "source").iterdir()
        run("build", "--quiet", "--wheel", "--outdir", native, source)
        run("build", "--quiet", "--wheel", "-Cwheel.cmake=false", "--outdir", made, source)
        (wheel,) = native.glob("*.whl")
        if wheel.name.endswith("-any.whl"):
            raise SystemExit("error: the C++ kernel was not built; no compiler?")
        if platform.system() == "Linux":
            check_symbols(wheel, Path(scratch))
            tag = f"{MANYLINUX}_{platform.machine()}"
            options = ("--plat", tag, "--exclude", "libgomp.so.1", "-w", made)
            run("auditwheel", "repair", *options, wheel)
        else:
            shutil.copy(wheel, made)
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    for path in sorted(folder.iterdir()):
        print(f"{path.stat().st_size / 1e6:6.2f} MB  {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
