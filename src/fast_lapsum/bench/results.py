"""Files that appear whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def finished_file(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path``, renamed to it on success and removed on failure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(
        prefix=f".{path.stem}-", suffix=f".unfinished{path.suffix}", dir=path.parent
    )
    os.close(handle)
    unfinished = Path(name)
    try:
        yield unfinished
        unfinished.chmod(0o644)  # mkstemp makes private files
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Write ``record``, readable and in a stable order."""
    with finished_file(path) as unfinished:
        unfinished.write_text(json.dumps(record, indent=2, allow_nan=False) + "\n")
