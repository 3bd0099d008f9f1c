"""The entries for rows that are spread over ranks (see shards.py): the GPU kernels."""

from .shard_results import gradient_sums, write, write_gradient
from .shard_rows import Shard
from .shard_steps import Steps

__all__ = ["Shard", "Steps", "gradient_sums", "write", "write_gradient"]
