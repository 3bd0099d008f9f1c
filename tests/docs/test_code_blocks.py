"""The Python blocks of the README and of the pages run, each page's one after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from places import ROOT

BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def _for_coder() -> dict[str, Any]:
    """A picture in the folder of the test, and few steps of training."""
    pytest.importorskip("constriction", reason="the image coder needs constriction")
    from PIL import Image

    Image.effect_noise((64, 48), 40.0).convert("RGB").save("photo.png")
    return {}


def _for_attack() -> dict[str, Any]:
    """A classifier that looks at the mean colour, and a grey picture."""

    class ByColour(torch.nn.Module):
        def forward(self, pictures: torch.Tensor) -> torch.Tensor:
            mean = pictures.mean((2, 3))
            return torch.cat([mean.repeat(1, 30)[:, :88], mean.sum(1, keepdim=True) + 0.1], 1)

    return {"my_model": ByColour(), "picture": torch.full((3, 32, 32), 0.5)}


#: What the blocks of a page find there: the names that its reader would have.
PRELUDES = {"docs/coder.md": _for_coder, "docs/attack.md": _for_attack}
#: Shortened for the tests: what runs is the same, on less.
SHORTENED = {
    "docs/coder.md": {"Settings(bits=1.0)": "Settings(bits=1.0, steps=2)"},
    "docs/compiling.md": {"@torch.compile": '@torch.compile(backend="aot_eager")'},
    "docs/attack.md": {"resize=256": "resize=32", "calls=300": "calls=3"},
}


#: Their blocks are scripts for several processes: see test_distributed_page.py.
SCRIPTS = {"docs/distributed.md"}
#: First line of a block for users of another library: see nn/test_autoencoder_libraries.py.
NEEDS = "# needs "


def _pages() -> list[str]:
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    with_blocks = [path for path in found if BLOCK.search(path.read_text(encoding="utf-8"))]
    names = [path.relative_to(ROOT).as_posix() for path in with_blocks]
    assert set(names) >= SCRIPTS
    return [name for name in names if name not in SCRIPTS]


def test_pages_are_found() -> None:
    assert {"README.md", "docs/index.md", "docs/how-it-works.md", *PRELUDES} <= set(_pages())


@pytest.mark.parametrize("page", _pages())
def test_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "page", **PRELUDES.get(page, dict)()}
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in BLOCK.finditer(text):
        code = block[1]
        if code.startswith(NEEDS):
            continue
        for written, short in SHORTENED.get(page, {}).items():
            code = code.replace(written, short)
        # Line numbers are those of the page.
        lines_before = "\n" * (text[: block.start()].count("\n") + 1)
        exec(compile(lines_before + code, page, "exec"), names)


def _named_files(page: str) -> set[str]:
    """Files that a page names with their folders."""
    found = re.findall(r"`([\w./-]+\.(?:py|hpp|md|toml|json))`", (ROOT / page).read_text("utf-8"))
    return {name for name in found if "/" in name and "NAME" not in name}


PACKAGE = ROOT / "src" / "fast_lapsum"
NAMING = ["CONTRIBUTING.md", "DESIGN.md", "README.md"] + [
    path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))
]


@pytest.mark.parametrize("page", NAMING)
def test_pages_name_files_that_exist(page: str) -> None:
    folders = [ROOT, PACKAGE, PACKAGE / "backends", ROOT / "docs" / "notes"]
    missing = {
        name
        for name in _named_files(page)
        if not any((folder / name).is_file() for folder in folders)
    }
    # Written by commands that the page shows.
    assert {name for name in missing if not name.startswith(("build/", "report/"))} == set()


def test_recipes_name_their_files() -> None:
    assert len(_named_files("docs/recipes.md")) > 20
