"""The site: it builds strictly, its links lead somewhere, and it works in a browser by itself."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from places import ROOT

TOOLS = ("latex2mathml", "material", "mkdocs", "mkdocstrings_handlers")
SEEN = ("index.html", "costs.html", "api/functions.html", "DESIGN.html", "notes/gpu-kernels.html")


def test_numbers_are_what_the_results_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "tools")
    costs, marked_parts = (importlib.import_module(name) for name in ("costs", "marked_parts"))
    pages = costs.written()
    assert {costs.PAGE, ROOT / "README.md"} <= set(pages)
    parts = [part for text in pages.values() for part in re.findall(r"<!-- costs: ([\w-]+)", text)]
    assert sorted(part for part in parts if part != "end") == sorted(marked_parts.PARTS)
    old = [str(path) for path, text in pages.items() if path.read_text(encoding="utf-8") != text]
    assert old == [], "results changed: `make costs`"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    missing = [name for name in TOOLS if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"the site needs {', '.join(missing)} (pip install '.[docs]', Python >= 3.11)")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Page(HTMLParser):
    """The places that a page has, where its links lead, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.places |= {value for name in ("id", "name") if (value := given.get(name))}
        if tag == "a" and (link := given.get("href")):
            self.links.append(link)
        if tag == "link" and given.get("rel") != "canonical":
            self.loaded.append(given.get("href") or "")
        if source := given.get("src"):
            self.loaded.append(source)


def test_no_link_is_broken(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 15
    broken = []
    for path, page in pages.items():
        for link in (*page.links, *page.loaded):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            place = unquote(parts.fragment)
            is_place = place in ("", "__skip") or target not in pages
            if not target.is_file() or not (is_place or place in pages[target].places):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []


def test_no_two_files_differ_by_case_alone(site: Path) -> None:
    """On some disks one would take the place of the other."""
    names = [path.relative_to(site).as_posix().lower() for path in site.rglob("*")]
    assert sorted(names) == sorted(set(names))


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    outside = [
        f"{path.relative_to(site)}: {address}"
        for path in site.rglob("*.html")
        for address in Page(path).loaded
        if urlsplit(address).scheme not in ("", "data") or urlsplit(address).netloc
    ]
    assert outside == []
    for path in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", path.read_text("utf-8")), path


@pytest.fixture(scope="module")
def browser(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("fcntl", reason="the browser is driven over POSIX pipes")
    from browser import Browser, find

    program = find()
    if program is None:
        pytest.skip("no Chromium or Chrome on PATH (Debian: apt-get install chromium)")
    with Browser(program, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("page", SEEN)
def test_a_narrow_screen_shows_all_and_nothing_complains(
    browser: Any, site: Path, page: str
) -> None:
    browser.resize(400, 800, mobile=True)
    browser.open((site / page).as_uri())
    assert browser.evaluate("document.documentElement.scrollWidth") <= 400
    # What is wider than the screen lies in a box that scrolls.
    assert browser.evaluate(
        "[...document.querySelectorAll('article table, article pre, article img')].every(wide => {"
        "for (let box = wide; box; box = box.parentElement)"
        " if (['auto', 'scroll'].includes(getComputedStyle(box).overflowX)) return true;"
        "return wide.getBoundingClientRect().right <= 400})"
    )
    sent = [
        event["params"]["request"]["url"]
        for event in browser.events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert [address for address in sent if urlsplit(address).scheme not in ("file", "data")] == []
    complaints = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
    assert [event for event in browser.events if event["method"] in complaints] == []


@pytest.mark.parametrize("page", ["index.html", "how-it-works.html", "api/functions.html"])
def test_formulas_are_drawn(browser: Any, site: Path, page: str) -> None:
    browser.resize(1280, 900)
    browser.open((site / page).as_uri())
    sizes = browser.evaluate(
        "[...document.querySelectorAll('article math')].map(formula => {"
        "const box = formula.getBoundingClientRect(); return [box.width, box.height]})"
    )
    assert len(sizes) >= 3
    assert all(width > 3 and height > 3 for width, height in sizes)
    # A fraction is higher than a line: the browser lays formulas out.
    assert browser.evaluate(
        "[...document.querySelectorAll('article math[display=block]')].every("
        "formula => formula.getBoundingClientRect().height > 20)"
    )
    text = browser.evaluate("document.querySelector('article').innerText")
    assert not re.search(r"\$\$|\\\(|\\\[|\\sum|\\frac|:math:|:func:", text)


def test_every_picture_is_seen(browser: Any, site: Path) -> None:
    browser.open((site / "how-it-works.html").as_uri())
    widths = browser.evaluate("[...document.querySelectorAll('article img')].map(one => one.width)")
    assert len(widths) == 3
    assert all(width > 400 for width in widths)


def test_search_finds_a_word(browser: Any, site: Path) -> None:
    browser.resize(1280, 900)
    browser.open((site / "index.html").as_uri())
    browser.evaluate("document.querySelector('[data-md-component=search-query]').focus()")
    browser.call("Input.insertText", text="systematic sampling")
    found: list[str] = []
    end = time.monotonic() + 20
    while not found and time.monotonic() < end:
        time.sleep(0.1)
        browser.call("Input.dispatchKeyEvent", type="keyUp", key="g")  # what the search waits for
        found = browser.evaluate(
            "[...document.querySelectorAll('a.md-search-result__link')].map(one => one.href)"
        )
    assert any("sampling.html" in address or "sample_topk" in address for address in found), found
