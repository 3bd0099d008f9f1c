"""Every number in a sentence is what results files have, or is known to be no measurement."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest

from places import ROOT


@pytest.fixture
def prose(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "docs" / "tools")
    return importlib.import_module("prose_numbers")


@pytest.fixture
def table(prose: Any) -> Any:
    return importlib.import_module("prose_pages")


def _unknown(prose: Any, table: Any, name: str, page: str) -> list[str]:
    """Numbers of a page that no entry has, with the words around them."""
    entries = [one for one in table.PAGES.get(name, ()) if not isinstance(one, table.Holds)]
    known = [place for one in entries for place in prose.places(page, one)]
    return [
        " ".join(page[max(0, found.start() - 40) : found.end() + 30].split())
        for found in prose.figures(page)
        if not any(start <= found.start() and found.end() <= end for start, end in known)
    ]


def test_every_number_has_a_source(prose: Any, table: Any) -> None:
    pages = prose.pages()
    assert {"README.md", "DESIGN.md", "docs/notes/cpu-kernel.md"} <= set(pages)
    assert set(table.PAGES) <= set(pages)
    unknown = {name: _unknown(prose, table, name, page) for name, page in pages.items()}
    unknown = {name: found for name, found in unknown.items() if found}
    assert unknown == {}, "docs/tools/prose_pages.py: tie it to a results file, or say why not"


def test_entries_are_on_their_pages(prose: Any, table: Any) -> None:
    pages = prose.pages()
    gone = [
        (name, one.text)
        for name, entries in table.PAGES.items()
        for one in entries
        if not prose.places(pages[name], one)
    ]
    assert gone == []


def test_what_holds_is_true(table: Any) -> None:
    claims = [
        (name, one.text, one.is_true())
        for name, entries in table.PAGES.items()
        for one in entries
        if isinstance(one, table.Holds)
    ]
    assert [claim for claim in claims if not claim[2]] == []


def test_what_was_seen_once_is_admitted(prose: Any, table: Any) -> None:
    pages = prose.pages()
    for name, entries in table.PAGES.items():
        for one in entries:
            if getattr(one, "why", None) == table.SEEN_ONCE:
                for start, _ in prose.places(pages[name], one):
                    text = " ".join(prose.section(pages[name], start).split())
                    assert table.ADMITS in text, (name, one.text)


def test_a_wrong_number_is_found_and_mended(prose: Any) -> None:
    name = "docs/ranking.md"
    page = prose.pages()[name]
    assert prose.written(name, page) == page
    wrong = re.sub(r"one of 1,000,000 \| [\d.]+", "one of 1,000,000 | 1.1", page)
    assert wrong != page
    assert prose.written(name, wrong).split() == page.split()


@pytest.mark.parametrize(
    "sentence",
    [
        "A call takes 12.5 ms.",
        "It is four times as fast.",
        "It saves 7% of the memory.",
        "Masses are off by 3e-8.",
        "| cpu | 12.5 | 13 |",
    ],
)
def test_a_number_without_a_source_is_found(prose: Any, table: Any, sentence: str) -> None:
    assert _unknown(prose, table, "README.md", f"# Page\n\n{sentence}\n") != []


@pytest.mark.parametrize(
    "text",
    [
        "<!-- costs: some -->\n\nA call takes 12.5 ms.\n\n<!-- costs: end -->",
        "```python\nk = 3  # 12.5 ms\n```",
        "    make test  # 12.5 ms",
        "`--seconds 12.5 ms`",
        "Rows of 1,000 scores.",
    ],
)
def test_what_is_made_or_code_is_passed_over(prose: Any, table: Any, text: str) -> None:
    assert _unknown(prose, table, "README.md", f"# Page\n\n{text}\n") == []
