"""What the C++ kernel's sample says about long rows, for studies of the sampler."""

from __future__ import annotations

import torch
from torch import Tensor

from ..common import DTYPES, compute_dtype
from . import kernel

#: kBandFrom of sampled_band.hpp: shorter rows are solved without a sample.
BAND_FROM = 1024


def sample_bands(scores: Tensor, k: float, temperature: float) -> tuple[Tensor, Tensor]:
    """Where the sample of each row [B, n] puts the threshold, and whether that held.

    What a forward call does first with a long row: bands [B, 2], NaN where the sample does not
    tell, and [B] booleans, False where a call would go the general way.
    """
    rows, n = scores.shape
    if n < BAND_FROM or not 0 < k < n or not temperature > 0:
        raise ValueError(
            f"a sample is taken of rows of at least {BAND_FROM} scores with 0 < k < n and "
            f"temperature > 0, got n = {n}, k = {k}, temperature = {temperature}"
        )
    bands = scores.new_empty((rows, 2), dtype=compute_dtype(scores.dtype))
    held = scores.new_empty(rows, dtype=torch.int64)
    head = (DTYPES[scores.dtype],) * 3
    tensors = (scores.contiguous(), *(None,) * 6)
    numbers, per_row = (k, temperature), (bands, None, None, held)
    for record, _ in kernel.records(head, kernel.flags_of(True), tensors, numbers, per_row):
        kernel.call("lapsum_sample_bands", record)
    return bands, held.bool()
