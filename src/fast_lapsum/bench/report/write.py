"""Figures and page on disk: made in full elsewhere, then moved into place."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..experiment import Experiment
from . import figures, page, style
from .load import Device


def write(
    devices: Sequence[Device],
    experiments: Mapping[str, Experiment],
    out: Path,
    *,
    figures_only: bool = False,
    report: Callable[[str], None] = lambda step: None,
) -> list[Path]:
    """Write ``out/figures/*`` and, unless ``figures_only``, ``out/index.html``; what was written.

    Nothing is moved into place before everything is there; other files in ``out`` stay.
    """
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=out) as name:
        unfinished = Path(name)
        (unfinished / "figures").mkdir()
        drawings: dict[str, list[tuple[str, str, str]]] = {}
        with style.shared_style():
            for device in devices:
                for drawing in figures.draw(device):
                    report(drawing.name)
                    style.freeze_layout(drawing.figure)
                    svg, png = (
                        unfinished / "figures" / f"{drawing.name}{suffix}"
                        for suffix in (".svg", ".png")
                    )
                    style.save(drawing.figure, svg)
                    style.save(drawing.figure, png)
                    drawings.setdefault(f"{device.slug}/{drawing.experiment}", []).append(
                        (drawing.name, svg.read_text(encoding="utf-8"), drawing.caption)
                    )
        if not figures_only:
            report("page")
            text = page.render(devices, experiments, drawings)
            (unfinished / "index.html").write_text(text, encoding="utf-8")
        return _move(unfinished, out)


def _move(unfinished: Path, out: Path) -> list[Path]:
    """The page last: what it stands beside is then already there."""
    (out / "figures").mkdir(exist_ok=True)
    made = [*sorted((unfinished / "figures").iterdir()), *sorted(unfinished.glob("*.html"))]
    moved = []
    for path in made:
        target = out / path.relative_to(unfinished)
        path.replace(target)
        moved.append(target)
    return moved
