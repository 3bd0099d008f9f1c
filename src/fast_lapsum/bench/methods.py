"""Everything that is measured: this package first, then its peers."""

from __future__ import annotations

from torch import Tensor

from fast_lapsum import soft_topk

from .peers import PEERS
from .peers.protocol import Peer


def _fast_lapsum(scores: Tensor, k: int | float, temperature: float) -> Tensor:
    return soft_topk(scores, k, temperature)


OURS = Peer(
    name="fast-lapsum",
    paper="this package",
    function=_fast_lapsum,
    exact_budget=True,
    memory="O(n)",
    temperature="t itself: the scale of the Laplace distribution",
    compiles=True,
)

#: In the order of the tables.
METHODS: dict[str, Peer] = {OURS.name: OURS, **PEERS}


def caveats() -> str:
    """What readers of a table of all methods have to know about some of them."""
    return " ".join(f"{peer.name}: {peer.caveat}." for peer in METHODS.values() if peer.caveat)
