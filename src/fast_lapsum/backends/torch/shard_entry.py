"""The entries for rows that are spread over ranks (see shards.py): plain torch, on any device.

``Shard``, ``write``, ``gradient_sums`` and ``write_gradient`` read this rank's scores, and each
backend has its own. The rest works on the little that ranks have told each other, for all backends;
``Steps``, too, unless one has its own.
"""

from .shard_gradients import total, totals
from .shard_search import Asked
from .shard_solve import unsolved
from .shard_steps import Steps
from .shard_write import gradient_sums, write, write_gradient
from .shards import Shard

__all__ = [
    "Asked",
    "Shard",
    "Steps",
    "gradient_sums",
    "total",
    "totals",
    "unsolved",
    "write",
    "write_gradient",
]
