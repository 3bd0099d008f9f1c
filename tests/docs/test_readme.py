"""The README works where it is shown, on a package index too: its links are whole addresses."""

from __future__ import annotations

import re
from pathlib import Path

from places import ROOT

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
#: Code has no links.
PROSE = re.sub(r"^```.*?^```|^    .*?$", "", TEXT, flags=re.DOTALL | re.MULTILINE)
PICTURES = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", PROSE)
LINKS = re.findall(r"(?<!!)\[[^\]]*\]\(([^)]+)\)", PROSE)
DEFINED = dict(re.findall(r"^\[([\w-]+)\]: (\S+)$", PROSE, flags=re.MULTILINE))
USED = set(re.findall(r"\]\[([\w-]+)\]", PROSE))


def _repository() -> str:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (address,) = re.findall(r'^Homepage = "(.+)"$', project, flags=re.MULTILINE)
    return str(address)


def _anchors(page: Path) -> set[str]:
    """The places that a page's headings are, as a repository's viewer names them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_every_link_has_an_address() -> None:
    assert set(DEFINED) == USED


def test_links_lead_to_files_of_this_repository() -> None:
    before = f"{_repository()}/blob/main/"
    found = [*LINKS, *DEFINED.values()]
    assert len(found) > 10
    for link in found:
        assert link.startswith(before), link
        path, _, place = link.removeprefix(before).partition("#")
        assert (ROOT / path).is_file(), link
        assert not place or place in _anchors(ROOT / path), link


def test_pictures_are_files_of_this_repository() -> None:
    before = _repository().replace("github.com", "raw.githubusercontent.com") + "/main/"
    assert PICTURES
    for picture in PICTURES:
        assert picture.startswith(before), picture
        assert picture.endswith(".png"), f"an index shows no other kind from elsewhere: {picture}"
        assert (ROOT / picture.removeprefix(before)).is_file(), picture


def test_it_is_read_in_four_screens() -> None:
    assert len(TEXT.splitlines()) <= 160
