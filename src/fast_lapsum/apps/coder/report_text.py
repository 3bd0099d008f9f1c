"""The results of a report as Markdown tables."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from .report import BEST, BLOCKS, FIXED_DEPTH, HAAR_BEST, HAAR_FIXED, PLAIN, Row

ORDER = (
    BEST,
    PLAIN,
    BLOCKS,
    HAAR_FIXED,
    HAAR_BEST,
    "JPEG",
    "JPEG 2000",
    "WebP",
    "AVIF",
    "JPEG XL",
)
_NONE = "–"


def markdown(record: dict[str, Any]) -> str:
    """All rates, one after the other."""
    rows = [row for row in record["rows"] if row["picture"] in record["pictures"]]
    parts = ["# The image coder beside other codecs", "", *_how(record), ""]
    for rate in sorted({row["target_bpp"] for row in rows}):
        parts += _rate(record, rate, [row for row in rows if row["target_bpp"] == rate])
    return "\n".join(parts)


def methods_of(rows: list[Row]) -> list[str]:
    """Those that are there, this package's first."""
    names = {row["method"] for row in rows}
    return [name for name in ORDER if name in names]


def _how(record: dict[str, Any]) -> list[str]:
    crop = record["settings"]["crop"]
    sizes = (
        f"Sides are cut to multiples of {crop} pixels, top left; shorter ones are left whole."
        if crop
        else "Whole pictures, as they are."
    )
    versions = ", ".join(f"{name} {one}" for name, one in record["codecs"].items() if one)
    return [
        f"{sizes} Each codec has the largest file that keeps the budget, at the scale (1, 1/2 or"
        " 1/4, Lanczos both ways) with the highest PSNR; (1/2) and (1/4) say which. *best* and"
        " *plain* are .lap files, headers included, decoded from the file alone. *Haar top-k* (with"
        f" {FIXED_DEPTH} bits per channel on every picture, and with each picture's best bit depth)"
        " and *blocks top-k* (the plain coder's blocks before training, at the best bit depth) have"
        " a counted rate and no file. PSNR is over red, green and blue together, MS-SSIM the mean"
        " of theirs.",
        "",
        f"Versions: {versions}.",
    ]


def _rate(record: dict[str, Any], rate: float, rows: list[Row]) -> list[str]:
    names = methods_of(rows)
    found = {(row["picture"], row["method"]): row for row in rows}
    pictures = [one for one in record["pictures"] if any(one == row["picture"] for row in rows)]

    def table(title: str, show: Callable[[Row], str], value: str | None, digits: int) -> list[str]:
        lines = [
            f"### {title}",
            "",
            "| photograph | size | " + " | ".join(names) + " |",
            "|---|---|" + "---:|" * len(names),
        ]
        for name in pictures:
            size = record["pictures"][name]
            cells = [_cell(found.get((name, method)), show) for method in names]
            lines.append(
                f"| {name} | {size['width']} x {size['height']} | " + " | ".join(cells) + " |"
            )
        if value is not None and len(pictures) > 1:
            middles = [_median(found, pictures, method, value, digits) for method in names]
            lines.append("| median | | " + " | ".join(middles) + " |")
        return [*lines, ""]

    return [
        f"## {rate:g} bits per pixel",
        "",
        *table("PSNR in dB", _psnr, "psnr", 2),
        *_leads(found, pictures),
        *table("MS-SSIM", lambda row: f"{row['ms_ssim']:.4f}", "ms_ssim", 4),
        *table("Bytes", lambda row: f"{row['bytes']:,}", None, 0),
        *table("Seconds to encode the file shown", lambda row: f"{row['seconds']:.1f}", None, 0),
        *_notes(found, pictures, names),
    ]


def _cell(row: Row | None, show: Callable[[Row], str]) -> str:
    if row is None:
        return ""
    return show(row) if row["status"] == "ok" else _NONE


def _psnr(row: Row) -> str:
    scale = f" (1/{row['divisor']})" if row.get("divisor", 1) > 1 else ""
    return ("exact" if row["psnr"] is None else f"{row['psnr']:.2f}") + scale


def _median(
    found: dict[tuple[str, str], Row], pictures: list[str], method: str, value: str, digits: int
) -> str:
    """Only over all pictures: another set of pictures would be another median."""
    values = [found.get((name, method), {}).get(value) for name in pictures]
    known = [one for one in values if one is not None]
    return f"{median(known):.{digits}f}" if len(known) == len(values) else _NONE


def _leads(found: dict[tuple[str, str], Row], pictures: list[str]) -> list[str]:
    lines = []
    for ours, other in (
        (PLAIN, BLOCKS),
        (PLAIN, HAAR_FIXED),
        (PLAIN, HAAR_BEST),
        (BEST, PLAIN),
        (BEST, "JPEG"),
        (BEST, "JPEG 2000"),
        (BEST, "WebP"),
        (BEST, "AVIF"),
        (BEST, "JPEG XL"),
    ):
        pairs = [
            (found.get((name, ours), {}).get("psnr"), found.get((name, other), {}).get("psnr"))
            for name in pictures
        ]
        gains = [one - two for one, two in pairs if one is not None and two is not None]
        if gains:
            lines.append(
                f"- {ours} over {other}: {min(gains):+.2f} to {max(gains):+.2f} dB, median"
                f" {median(gains):+.2f}, ahead on {sum(one > 0 for one in gains)} of {len(gains)}"
            )
    return [*lines, ""] if lines else []


def _notes(found: dict[tuple[str, str], Row], pictures: list[str], names: list[str]) -> list[str]:
    """Which codecs are not there, and which miss the budget at full size or at all."""
    lines = []
    for method in names:
        rows = [found[name, method] for name in pictures if (name, method) in found]
        missing = next((row for row in rows if row["status"] == "missing"), None)
        if missing is not None:
            lines.append(f"- {method} is not installed: {missing['reason']}.")
        lines += [
            f"- {method}, {row['picture']}: {row['reason']}."
            for row in rows
            if row["status"] == "missed"
        ]
        over = [
            row["smallest_by_divisor"]["1"] / row["budget_bytes"]
            for row in rows
            if "1" in row.get("smallest_by_divisor", {})
        ]
        if over:
            lines.append(
                f"- {method} at full size misses the budget on {len(over)} of {len(rows)}: its"
                f" smallest file is {min(over):.2f} to {max(over):.2f} times as large."
            )
    return [*lines, ""] if lines else []
