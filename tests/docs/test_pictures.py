"""Pages of layers have a picture each, and what the tool draws is shown somewhere."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from places import ROOT

DOCS = ROOT / "docs"
LAYERS = [path for path in sorted((DOCS / "layers").glob("*.md")) if path.stem != "index"]


def _shown(page: Path) -> list[Path]:
    found = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    return [(page.parent / name).resolve() for name in found]


@pytest.mark.parametrize("page", LAYERS, ids=lambda page: page.stem)
def test_a_layer_has_a_picture(page: Path) -> None:
    shown = _shown(page)
    assert shown
    assert all(picture.is_file() for picture in shown)


def test_pictures_that_are_drawn_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="pictures are drawn with matplotlib")
    monkeypatch.syspath_prepend(DOCS / "tools")
    drawn = {f"how-{name}.svg" for name in importlib.import_module("pictures").PICTURES}
    assert drawn == {path.name for path in (DOCS / "figures").glob("how-*.svg")}
    assert drawn <= {picture.name for page in DOCS.rglob("*.md") for picture in _shown(page)}
