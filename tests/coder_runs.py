"""The image coder's commands in this process, on a small picture; for several test files."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

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
