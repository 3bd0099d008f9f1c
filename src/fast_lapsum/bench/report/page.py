"""One page that needs nothing but itself: figures, styles and script are inside.

A content policy in the page lets no other script run and nothing be loaded, whatever stands in a
results file; all text from such files is escaped besides.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from .. import functions, sources, tables
from ..experiment import Experiment, Record
from ..paper import MACHINE
from . import html_tables
from .function_table import function_table
from .load import Device
from .style import BLUE, GREYS, GRID, INK, PAPER, SKY

#: Colours of the drawings that follow the page's light or dark scheme.
SCHEME = {
    INK: "currentColor",
    PAPER: "var(--card)",
    GRID: "var(--line)",
    BLUE: "var(--blue)",
    SKY: "var(--sky)",
    **{grey: f"var(--grey-{index})" for index, grey in enumerate(GREYS, start=1)},
}
FUNCTIONS_TITLE = "Every function beside the mask"
QUICK = "A quick run: small sizes and few samples, to try the suite itself."
TITLE = "fast-lapsum: exact soft top-k, measured"


def render(
    devices: Sequence[Device],
    experiments: Mapping[str, Experiment],
    drawings: Mapping[str, Sequence[tuple[str, str, str]]],
) -> str:
    """The page.

    Args:
        devices: what was measured.
        experiments: titles, methods and tables by name.
        drawings: by ``device.slug/experiment``, each (name, SVG text, caption).
    """
    style, script = (_asset(name) for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    sections = "".join(_device(device, experiments, drawings) for device in devices)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{TITLE}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the results</a>
<div class="layout">
<header><h1>{TITLE}</h1>{_introduction(devices)}</header>
{_contents(devices, experiments)}
<main id="content">{sections}</main>
</div>
<script>{script}</script>
</body>
</html>
"""


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _introduction(devices: Sequence[Device]) -> str:
    rows = [
        row for device in devices for record in device.records.values() for row in record["rows"]
    ]
    finished = sum(row["status"] == "ok" for row in rows)
    where = " and ".join(escape(device.name) for device in devices)
    return (
        "<p>Differentiable and hard top-k operators side by side: every method gets the same "
        "scores in the same process, and passes a check of its answer before it is timed. Times "
        "are medians of wall-clock samples, with the 20th and 80th percentile in the full tables. "
        "A method that ran out of memory or time has a row that says so.</p>"
        f"<p>Measured on {where}: {len(rows):,} cases, {finished:,} with numbers. Numbers of the "
        f"paper are marked as such and were taken on its machine, an {escape(MACHINE)}. "
        "Column headers sort: up, down, and back to the order of measurement.</p>"
    )


def _contents(devices: Sequence[Device], experiments: Mapping[str, Experiment]) -> str:
    items = []
    for device in devices:
        inner = "".join(
            f'<li><a href="#{device.slug}-{name}">{escape(_title(name, experiments))}</a></li>'
            for name in device.records
        )
        if device.timings is not None:
            inner += f'<li><a href="#{device.slug}-shapes">Times by shape</a></li>'
        if device.functions is not None:
            inner += f'<li><a href="#{device.slug}-functions">{FUNCTIONS_TITLE}</a></li>'
        items.append(f'<li><a href="#{device.slug}">{escape(device.name)}</a><ul>{inner}</ul></li>')
    return f'<nav aria-label="Contents"><h2>Contents</h2><ul>{"".join(items)}</ul></nav>'


def _device(
    device: Device,
    experiments: Mapping[str, Experiment],
    drawings: Mapping[str, Sequence[tuple[str, str, str]]],
) -> str:
    environment = html_tables.pairs_table(_environment(device), "Environment")
    parts = [
        f'<h2 id="{device.slug}">{escape(device.name)} <small>({device.kind})</small></h2>',
        f'<div class="environment">{environment}</div>',
    ]
    for name, record in device.records.items():
        shown = drawings.get(f"{device.slug}/{name}", ())
        parts.append(_experiment(device, name, record, experiments.get(name), shown))
    if device.timings is not None:
        unit = tables.milliseconds if device.kind == "cpu" else tables.microseconds
        title = "Median time per call, by shape"
        summary = tables.timings_table(device.timings, title=title, unit=unit)
        parts.append(
            f'<h3 id="{device.slug}-shapes">Times by shape</h3>'
            "<p>From the separate benchmark of this package on this device, which also measures "
            "the copy rate behind the memory floor. Its state: "
            f"{sources.state(device.timings)}.</p>{html_tables.terminal_table(summary)}"
        )
    if device.functions is not None:
        parts.append(_functions(device, device.functions))
    return f"<section>{''.join(parts)}</section>"


def _functions(device: Device, record: Record) -> str:
    quick = f'<p class="warn">{QUICK}</p>' if record.get("quick") else ""
    clock = "device time, medians" if device.kind == "cuda" else "wall time, 20th percentiles"
    return (
        f'<h3 id="{device.slug}-functions">{FUNCTIONS_TITLE}</h3>{quick}'
        f"<p>One operator call each ({clock}), checked by one another before they are timed, and "
        f"what they may take. {escape(functions.summary(record))} State of the file: "
        f"{sources.state(record)}.</p>{html_tables.terminal_table(function_table(record))}"
    )


def _experiment(
    device: Device,
    name: str,
    record: Record,
    experiment: Experiment | None,
    drawings: Sequence[tuple[str, str, str]],
) -> str:
    settings = record["settings"]
    title = experiment.title if experiment else name
    labels = ", ".join(experiment.labels) if experiment else ""
    meta = (
        f"{settings['repeats']} samples per timing; limits per case: {settings['seconds']:g} s, "
        f"{settings['gibibytes']:g} GiB, {settings['max_n']:,} scores; seed {settings['seed']}."
    )
    warnings = []
    if settings["quick"]:
        warnings.append(QUICK)
    if not record["complete"]:
        warnings.append("Not complete: the run was stopped before its last case.")
    parts = [
        f'<h3 id="{device.slug}-{name}">{escape(title)}</h3>',
        *(f'<p class="warn">{warning}</p>' for warning in warnings),
        f"<p>{escape(experiment.method)}</p>" if experiment else "",
        f'<p class="meta">{escape(_sentence(labels, meta))}</p>',
        *(_figure(*drawing) for drawing in drawings),
        *(html_tables.terminal_table(table) for table in _tables(experiment, record)),
        html_tables.full_table(record),
    ]
    return f"<article>{''.join(parts)}</article>"


def _tables(experiment: Experiment | None, record: Record) -> Sequence[Any]:
    return experiment.tables(record) if experiment and record["rows"] else ()


def _sentence(labels: str, meta: str) -> str:
    return f"In the paper: {labels}. {meta}" if labels else meta


def _title(name: str, experiments: Mapping[str, Experiment]) -> str:
    return experiments[name].title if name in experiments else name


def _figure(name: str, svg: str, caption: str) -> str:
    return (
        f'<figure id="figure-{name}"><div class="drawing" role="img" '
        f'aria-label="{escape(caption, quote=True)}">{inline(svg, name)}</div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def inline(svg: str, name: str) -> str:
    """A drawing for use within a page: no prologue, ids of its own, colours of the page."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", body)
    for colour, variable in SCHEME.items():
        body = body.replace(colour, variable)
    return body.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1)


def _environment(device: Device) -> list[tuple[str, str]]:
    """Environment and sources of all records; where they differ, each value with its owners."""
    records = dict(device.records)
    if device.functions is not None:
        records["functions"] = device.functions
    records = records or {"shapes": device.timings or {}}
    told = {
        experiment: {**record["environment"], "sources": sources.state(record)}
        for experiment, record in records.items()
    }
    names = dict.fromkeys(name for parts in told.values() for name in parts)
    pairs = []
    for name in names:
        found: dict[str, list[str]] = {}
        for experiment, parts in told.items():
            text = _text(parts.get(name))
            found.setdefault(text, []).append(experiment)
        value = "; ".join(
            text if len(found) == 1 else f"{text} ({', '.join(owners)})"
            for text, owners in found.items()
        )
        pairs.append((name.replace("_", " "), value))
    return pairs


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("description", value))
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, float):
        return f"{value:.3g}"
    return "none" if value is None else str(value)
