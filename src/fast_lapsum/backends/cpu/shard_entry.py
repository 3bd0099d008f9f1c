"""The entries for rows that are spread over ranks (see shards.py): the C++ kernel."""

from .shard_steps import Steps
from .shards import Shard, gradient_sums, write, write_gradient

__all__ = ["Shard", "Steps", "gradient_sums", "write", "write_gradient"]
