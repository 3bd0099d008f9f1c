"""Files of the repository are whole: what a merge could not decide was decided."""

from __future__ import annotations

import re
import subprocess

import pytest

from places import ROOT

#: Lines that a merge leaves around two versions of a text. The line between them alone says
#: nothing: a heading may be underlined by it.
CONFLICT = re.compile(rb"^(<{7}|>{7}|\|{7})( |$)", re.MULTILINE)


def _tracked_files() -> list[str]:
    """Names of the files that the repository keeps."""
    try:
        command = ["git", "ls-files", "-z"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is no checkout, or there is no git")
    return [name for name in listed.decode().split("\0") if (ROOT / name).is_file()]


@pytest.mark.parametrize("line", [b"<<<<<<< HEAD", b">>>>>>> other", b"||||||| base", b"<<<<<<<"])
def test_conflicts_are_seen(line: bytes) -> None:
    assert CONFLICT.search(b"before\n" + line + b"\nafter\n")
    assert not CONFLICT.search(b"quoted: " + line + b"\n")


def test_no_text_has_a_conflict() -> None:
    names = _tracked_files()
    assert "docs/many-tensors.md" in names
    texts = {name: (ROOT / name).read_bytes() for name in names}
    found = [name for name, text in texts.items() if b"\0" not in text and CONFLICT.search(text)]
    assert found == []
