"""What a peer is: a mask function, and what its paper promises about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

#: (scores [B, n], k, temperature > 0) -> mask [B, n].
MaskFunction = Callable[[Tensor, int | float, float], Tensor]


def always() -> None:
    """Usable wherever torch is."""
    return


class Peer(NamedTuple):
    """A way to select k of n scores, to be measured beside this package's."""

    name: str
    #: Authors, year, title, venue.
    paper: str
    #: Differentiable in the scores, unless ``differentiable`` says otherwise.
    function: MaskFunction
    #: Whether the mask sums to k by construction, up to rounding.
    exact_budget: bool
    #: How memory grows: "O(n)", "O(n k)", "O(n^2)".
    memory: str
    #: One sentence: how the temperature maps to the method's own knob.
    temperature: str
    differentiable: bool = True
    #: Whether the first call of a size compiles, on a GPU or anywhere.
    compiles: bool = False
    #: None where the peer can run, else the reason why not.
    available: Callable[[], str | None] = always
    #: What its rows do not show by themselves, for the tables' captions.
    caveat: str = ""


def check_budget(k: float, n: int, *, least: int = 0, most: int | None = None) -> None:
    """Refuse a k outside [least, most]; most is n unless given."""
    most = n if most is None else most
    if not least <= k <= most:
        raise ValueError(f"k must lie in [{least}, {most}] for {n} scores, got k = {k}")


def whole_budget(k: float, n: int, *, least: int = 0, most: int | None = None) -> int:
    """The k of a method that knows only whole ones.

    >>> whole_budget(3.0, 10)
    3
    """
    check_budget(k, n, least=least, most=most)
    if k != int(k):
        raise ValueError(f"k must be a whole number for this method, got k = {k}")
    return int(k)
