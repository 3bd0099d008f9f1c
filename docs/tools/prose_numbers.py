"""Finds numbers of sentences by the words around them (prose_pages.py), and writes them anew."""

from __future__ import annotations

import re
from collections.abc import Iterator

from prose_pages import PAGES, Entry, Stated, Tied
from result_tables import RESULTS

ROOT = RESULTS.parent
#: Pages of what was: their figures are those of their time.
HISTORY = {"gpu-history.md", "wrong-rows.md", "dropped-ideas.md"}

#: What is no prose: parts that are made, code, addresses and formulas.
_ASIDE = (
    r"<!-- costs: (?!end).*?<!-- costs: end -->",
    r"<!--.*?-->",
    r"^```.*?^```",
    r"^    .*?$",
    r"`[^`]*`",
    r"\]\([^)]*\)",
    r"\$\$.*?\$\$",
)
_WORDS = "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|hundred"
_UNITS = (
    "us|ms|ns|s|seconds?|minutes?|hours?|microseconds?|milliseconds?|times|dB|percent|bytes|kB|MB"
    "|MiB|GiB|GB/s|Gb/s|rows|pictures|files"
)
_PARTS = "third|quarter|fifth|sixth|seventh|eighth|ninth|tenth|twelfth"
_NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?"
#: Numbers that may be measurements: with a unit, as a share, or tiny, as errors are.
_FIGURE = re.compile(
    rf"(?<![\w.^-])(?:{_NUMBER}\s*%|{_NUMBER}\s+(?:{_UNITS})\b|\d(?:\.\d+)?e-\d+)"
    rf"|\b(?:(?:{_WORDS})\s+(?:times|percent|seconds|minutes|hours)|twice|(?:a|one|two|three|four)\s+(?:{_PARTS})s?)\b"
)
#: What stands in the place of {}.
_SLOT = r"(\d(?:[\d,.]*\d)?(?:e-\d+)?%?(?:\s(?:kB|of\s\d+))?|two|three|four)"
_ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
#: A cell that is a number, and perhaps a unit.
_CELL = re.compile(rf"\|\s*\**[-+]?{_NUMBER}(?:\s*%|\s+(?:{_UNITS}))?\**\s*(?=\|)")


def pages() -> dict[str, str]:
    """The pages whose prose is looked at, by their paths: all but CHANGELOG.md and history."""
    above = [ROOT / name for name in ("README.md", "DESIGN.md", "CONTRIBUTING.md")]
    paths = [*above, *sorted((ROOT / "docs").rglob("*.md"))]
    made = ROOT / "docs" / "costs.md"
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in paths
        if path != made and path.name not in HISTORY
    }


def figures(text: str) -> Iterator[re.Match[str]]:
    """Numbers in a page's prose and in tables that are not made from results."""
    for pattern in _ASIDE:
        text = re.sub(
            pattern,
            lambda aside: re.sub(r"[^\n]", " ", aside[0]),
            text,
            flags=re.DOTALL | re.MULTILINE,
        )
    yield from _FIGURE.finditer(text)
    for row in _ROW.finditer(text):
        yield from _CELL.finditer(text, *row.span())


def _pattern(text: str) -> re.Pattern[str]:
    """The words of a text, wherever lines end, with a number in the place of every {}."""
    parts = [r"\s+".join(map(re.escape, part.split(" "))) for part in text.split("{}")]
    return re.compile(_SLOT.join(parts))


def places(page: str, entry: Entry) -> list[tuple[int, int]]:
    """Where a page has the words of an entry, with whatever numbers; tables to their ends."""
    found = [match.span() for match in _pattern(entry.text).finditer(page)]
    if entry.text.startswith("| ") and isinstance(entry, Stated):
        ends = [re.compile(r"\n(?!\|)").search(page, end) for _, end in found]
        return [(start, end.start()) for (start, _), end in zip(found, ends, strict=True) if end]
    return found


def section(page: str, place: int) -> str:
    """The text between two headings that holds a place."""
    headings = [match.start() for match in re.finditer(r"^#+ ", page, re.MULTILINE)]
    start = max((one for one in headings if one <= place), default=0)
    end = min((one for one in headings if one > place), default=len(page))
    return page[start:end]


def written(name: str, page: str) -> str:
    """A page with the numbers of its sentences as results files have them."""
    for entry in PAGES.get(name, ()):
        if isinstance(entry, Tied):
            numbers = list(entry.numbers())
            found = list(_pattern(entry.text).finditer(page))
            if len(found) != 1:
                raise SystemExit(f"error: {name} has {len(found)} times, not once: {entry.text}")
            spans = [found[0].span(group + 1) for group in range(entry.text.count("{}"))]
            for (start, end), number in reversed(list(zip(spans, numbers, strict=True))):
                page = page[:start] + number + page[end:]
    return page
