"""Docstrings are written for Sphinx's roles; here they become Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

#: Where a name that a docstring refers to is documented.
PLACES = {
    "SoftTopK": "fast_lapsum.nn.SoftTopK",
    "TemperatureSchedule": "fast_lapsum.nn.TemperatureSchedule",
    "hard_topk_mask": "fast_lapsum.hard_topk_mask",
    "soft_topk": "fast_lapsum.soft_topk",
}


def _reference(found: re.Match[str]) -> str:
    name = found[1].lstrip("~").rpartition(".")[2]
    return f"[`{name}`][{PLACES[name]}]" if name in PLACES else f"`{name}`"


def to_markdown(text: str) -> str:
    """Formulas between dollars, references as links, and examples as code that was run."""
    text = re.sub(r"^( *)Example:$", r"\1Examples:", text, flags=re.MULTILINE)
    # What stands before the first colon there would be taken for a type; here that is a sentence.
    text = re.sub(r"^( *Returns:\n *)(?=\S)", r"\1: ", text, flags=re.MULTILINE)
    text = re.sub(r"^( *)\.\. math:: (.*)$", r"\1$$\n\1\2\n\1$$", text, flags=re.MULTILINE)
    text = re.sub(r":math:`([^`]*)`", r"$\1$", text)
    return re.sub(r":(?:func|class|meth|mod):`([^`]*)`", _reference, text)


class Roles(griffe.Extension):
    """Turns every docstring into Markdown before it is taken apart."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """One function, class or module."""
        if obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value)
