"""The entries for rows that are spread over ranks (see shards.py): the C++ kernel."""

from .shard_steps import Steps
from .shards import Shard, gradient_sums, write, write_gradient

#: The kernel divides by 1 where a temperature is not to be divided by.
TAKES_ANY_TEMPERATURE = True

__all__ = ["TAKES_ANY_TEMPERATURE", "Shard", "Steps", "gradient_sums", "write", "write_gradient"]
