"""The entries for rows that are spread over ranks (see shards.py): the GPU kernels."""

from .shard_curve import sum_blocks
from .shard_finish import finish_rows
from .shard_measure import measure_chunks
from .shard_nodes import order_nodes
from .shard_results import gradient_sums, write, write_gradient
from .shard_rows import Shard
from .shard_sample import pick_nodes, sample_rows
from .shard_search import advance_rows, begin_rows
from .shard_steps import Steps
from .shard_write import add_gradient_sums, count_ties, write_gradient_pieces, write_pieces

# Found in Triton's cache on disk whatever was called first: see steps.py.
_KERNELS = (
    *(add_gradient_sums, advance_rows, begin_rows, count_ties, finish_rows, measure_chunks),
    *(order_nodes, pick_nodes, sample_rows, sum_blocks, write_gradient_pieces, write_pieces),
)
for _kernel in _KERNELS:
    getattr(_kernel, "cache_key", None)
del _kernel

#: Whether a Shard looks for itself what can be divided by.
TAKES_ANY_TEMPERATURE = True

__all__ = ["TAKES_ANY_TEMPERATURE", "Shard", "Steps", "gradient_sums", "write", "write_gradient"]
