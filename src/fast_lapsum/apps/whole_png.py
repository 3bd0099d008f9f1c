"""PNG files whose end is missing, such as copies that were interrupted.

Pillow reads them without a word if every pixel can still be had; of other formats it says so.
"""

from __future__ import annotations

from pathlib import Path

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_END = b"IEND\xae\x42\x60\x82"  # the last chunk, which is the same in every file, with its checksum

CUT_SHORT = "cut short: the end of the PNG is missing"


def is_cut_short(path: Path) -> bool:
    """Whether a file is a PNG without its last chunk; what a pipe holds can be read only once."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_SIGNATURE)) == _SIGNATURE and _END not in file.read()
