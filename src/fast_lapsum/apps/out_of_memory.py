"""How the want of memory is told from other errors, for all applications."""

from __future__ import annotations

import torch

from fast_lapsum.bench.worker import says_out_of_memory


def is_memory(error: Exception) -> bool:
    """Whether memory was asked for and not given."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and says_out_of_memory(str(error))
    )
