"""What the site does beyond MkDocs: formulas as MathML, and files from outside of docs/."""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
#: Pages that lie beside the sources, for those who read them there.
ROOT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "DESIGN.md")

_FORMULA = re.compile(
    r'<(?:span|div) class="arithmatex">\s*\\[(\[](.*?)\\[)\]]\s*</(?:span|div)>', re.DOTALL
)
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)\s#]+)")


def _links(text: str) -> list[str]:
    """The relative links of a page, those in code left out."""
    return _LINK.findall(re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))


def _in_site(source: Path, link: str) -> str | None:
    """Where in the repository a page's link leads; None where there is no such file."""
    target = Path(posixpath.normpath((source.parent / link).as_posix()))
    if not target.is_relative_to(ROOT) or not target.is_file():
        return None
    return target.relative_to(ROOT).as_posix()


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the root, and whatever files outside of docs/ the pages link to."""
    wanted = set(ROOT_PAGES)
    for page in [ROOT / name for name in ROOT_PAGES] + [
        Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path
    ]:
        for link in _links(page.read_text(encoding="utf-8")):
            place = _in_site(page, link)
            if place and not place.startswith("docs/"):
                wanted.add(place)
    for place in sorted(wanted):
        if (ROOT / place).suffix in (".md", ".json"):
            files.append(File.generated(config, place, abs_src_path=str(ROOT / place)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links between pages in docs/ and files beside it, as they are in the site."""
    source = Path(page.file.abs_src_path)
    here = posixpath.dirname(page.file.src_uri) or "."

    def moved(link: re.Match[str]) -> str:
        place = _in_site(source, link[1])
        if place is None:
            return link[1]
        return posixpath.relpath(place.removeprefix("docs/"), here)

    # Code blocks stay as they are.
    parts = re.split(r"(^```.*?^```)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(
        part if index % 2 else _LINK.sub(moved, part) for index, part in enumerate(parts)
    )


def on_page_content(content: str, **_: Any) -> str:
    """Formulas as MathML, which browsers draw by themselves."""

    def drawn(found: re.Match[str]) -> str:
        display = "block" if found[0].startswith("<div") else "inline"
        formula = convert(html.unescape(found[1]).strip(), display=display)
        return f'<div class="formula">{formula}</div>' if display == "block" else formula

    return _FORMULA.sub(drawn, content)
