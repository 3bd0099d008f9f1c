"""`make demo` and `make install` share one virtual environment, and none takes half of it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from places import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")

#: In place of Python: writes down what pip is to install, and fails where there is a file `broken`.
PYTHON = """\
#!/bin/sh
case "$*" in
  "-m venv --clear "*) mkdir -p "$4/bin"; cp "$0" "$4/bin/python"
    printf '#!/bin/sh\\necho demo >> diary\\n' > "$4/bin/fast-lapsum"
    chmod +x "$4/bin/fast-lapsum" ;;
  "-m pip install "*) shift 4; echo "$2" >> diary; test ! -e broken ;;
esac
"""


class Checkout:
    """A folder with the Makefile and what it depends on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("Makefile", "pyproject.toml", "constraints.txt", "CMakeLists.txt"):
            (folder / name).write_bytes((ROOT / name).read_bytes())
        python = folder / "python"
        python.write_text(PYTHON)
        python.chmod(0o755)

    def make(self, *targets: str) -> tuple[list[str], bool]:
        """What was installed and run, in order, and whether it ended well."""
        diary = self.folder / "diary"
        diary.write_text("")
        command = ["make", "--silent", f"PYTHON={self.folder / 'python'}", *targets]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        return diary.read_text().split(), done.returncode == 0

    def change(self) -> None:
        """As after an edit of what is built from, by the clock of the stamps."""
        for stamp in (self.folder / ".venv").glob(".installed*"):
            subprocess.run(["touch", "-d", "2000-01-01", stamp], check=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_the_demo_installs_what_it_needs_once(checkout: Checkout) -> None:
    assert checkout.make("demo") == ([".[bench]", "demo"], True)
    assert checkout.make("demo") == (["demo"], True)


def test_all_comes_after_the_demo(checkout: Checkout) -> None:
    checkout.make("demo")
    assert checkout.make("install") == ([".[dev]"], True)
    assert checkout.make("install", "demo") == (["demo"], True)


def test_the_demo_takes_what_is_there(checkout: Checkout) -> None:
    checkout.make("install")
    assert checkout.make("demo") == (["demo"], True)
    checkout.change()  # and keeps all of it up to date
    assert checkout.make("demo") == ([".[dev]", "demo"], True)
    assert checkout.make("install") == ([], True)


def test_both_at_once(checkout: Checkout) -> None:
    assert checkout.make("-j4", "install", "demo") == ([".[dev]", "demo"], True)
    assert checkout.make("install") == ([], True)


@pytest.mark.parametrize("before", ["demo", "install"])
def test_what_failed_half_way_is_done_again(checkout: Checkout, before: str) -> None:
    checkout.make(before)
    checkout.change()
    (checkout.folder / "broken").touch()
    assert checkout.make("install") == ([".[dev]"], False)
    (checkout.folder / "broken").unlink()
    assert checkout.make("demo") == ([".[bench]", "demo"], True)
    assert checkout.make("install") == ([".[dev]"], True)
