"""The peers: other ways to a (soft) top-k mask, all called alike.

Each module defines ``PEER = Peer(...)`` or ``PEERS = (Peer(...), ...)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from .protocol import Peer

#: In the order of the tables.
MODULES = (
    "neuralsort",
    "softsort",
    "sinkhorn",
    "perturbed",
    "dftopk",
    "sparse_topk",
    "official_lapsum",
    "bisection",
    "lml",
    "capped_simplex",
    "colt5",
    "hard",
    "published",
    "published_sorting",
)


def _peers_of(module_name: str) -> Iterator[Peer]:
    module = import_module(f"{__name__}.{module_name}")
    if hasattr(module, "PEER"):
        yield module.PEER
    else:
        yield from module.PEERS


PEERS: dict[str, Peer] = {peer.name: peer for name in MODULES for peer in _peers_of(name)}
