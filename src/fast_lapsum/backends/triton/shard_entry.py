"""The entries for rows that are spread over ranks (see shards.py): the GPU kernels."""

from .shard_results import gradient_sums, write, write_gradient
from .shard_rows import Shard
from .shard_steps import Steps

#: Whether a Shard looks for itself what can be divided by.
TAKES_ANY_TEMPERATURE = True

__all__ = ["TAKES_ANY_TEMPERATURE", "Shard", "Steps", "gradient_sums", "write", "write_gradient"]
