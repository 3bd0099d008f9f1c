"""python packaging/manylinux_symbols.py LIBRARY: what it asks of newer systems than wheels are for.

A wheel marked manylinux_2_28 has to load where the C and C++ libraries are those of that name. A
newer compiler may put calls into a library that older ones do not have, for code that looks the
same.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

MANYLINUX = "manylinux_2_28"
#: The newest versions that it has, as auditwheel's policy says.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}
_VERSIONED = re.compile(r"\s\((\w+?)_(\d[\d.]*)\)\s+(.+)$", re.MULTILINE)


def too_new(table: str) -> list[str]:
    """Names and versions out of a table of dynamic symbols, as ``objdump -TC`` prints it.

    >>> too_new("0 DF *UND* 0 (GLIBC_2.14) memcpy")
    []
    """
    return [
        f"{name} ({library}_{version})"
        for library, version, name in _VERSIONED.findall(table)
        if library in NEWEST and tuple(map(int, version.split("."))) > NEWEST[library]
    ]


def check(library: Path) -> None:
    """End with one line if the library asks too much; without objdump auditwheel will find out."""
    if shutil.which("objdump") is None:
        return
    command = ["objdump", "-TC", str(library)]
    table = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    if found := too_new(table):
        raise SystemExit(
            f"error: {library.name} needs {', '.join(found)}, which {MANYLINUX} does not have:"
            " write the code that asks for it in another way, or build with an older compiler"
        )


if __name__ == "__main__":
    check(Path(sys.argv[1]))
