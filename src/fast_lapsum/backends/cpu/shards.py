"""A rank's part of rows that are spread over many, by the C++ kernel; see backends/shards.py.

A sample says where the threshold is, one reading of the row adds up what is outside of that band
and keeps what is inside, and later questions are answered from what was kept.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..common import DTYPES, compute_dtype
from ..shards import COLUMNS, GRADIENT_COLUMNS, Answers, Measured, Sample, Totals
from .kernel import call, flags_of, records

#: What the structs of shard_calls.hpp have beside a Call.
_SAMPLE = struct.Struct("=4q")
_MEASURE = struct.Struct("=12q")
_WRITE = struct.Struct("=4q")
_GRADIENT = struct.Struct("=2q")
#: A sample of at least so many scores; shorter parts are sampled whole.
_LEAST_SAMPLE = 1024


class Shard:
    """This rank's part of every row, and the last band that was read of each."""

    def __init__(
        self, scores: Tensor, temperature: Tensor, mask: Tensor | None, largest: bool
    ) -> None:
        """Scores [..., n]; temperatures [rows]."""
        self.scores, self.mask, self.largest = scores, mask, largest
        self.rows, self.length = temperature.numel(), scores.shape[-1]
        self.temperature = temperature.reshape(scores.shape[:-1])
        # Bands hold few scores, or as many as there are; then the row is read again.
        self.capacity = min(self.length, self.length // 32 + 8192)
        self.kept = scores.new_empty((self.rows, self.capacity), dtype=compute_dtype(scores.dtype))
        self.kept_count = scores.new_full((self.rows,), -1, dtype=torch.int64)
        self.kept_columns = scores.new_empty((self.rows, 2 + COLUMNS), dtype=torch.float64)

    def sample(self, size: int) -> Sample:
        """Quantiles of a random part of every row, of all of it where that is short."""
        drawn = min(self.length, max(_LEAST_SAMPLE, size, int(self.length ** (2 / 3))))
        places = _places(self.length, drawn) if drawn < self.length else None
        nodes = self.scores.new_empty((self.rows, size))
        for record, first in self._records():
            numbers = (size, drawn, 0 if places is None else places.data_ptr())
            call("lapsum_shard_sample", record + _SAMPLE.pack(*numbers, *_from([nodes], first)))
        return Sample(nodes, drawn, self.length)

    def measure(
        self, low: Tensor, high: Tensor, pivots: Tensor, size: int, is_open: Tensor
    ) -> Measured:
        """At bands [rows] and pivots [rows, p]: NaN for pivots outside of what was read."""
        rows, count, dtype = self.rows, pivots.shape[-1], self.scores.dtype
        of_columns = 8 * rows * (COLUMNS + 2 * count)
        message = low.new_empty(of_columns + rows * size * dtype.itemsize, dtype=torch.uint8)
        columns = message[:of_columns].view(torch.float64).view(rows, -1)
        nodes = message[of_columns:].view(dtype).view(rows, size)
        per_row = [low, high, pivots, is_open, columns, nodes]
        per_row += [self.kept, self.kept_count, self.kept_columns]
        per_row = [x.contiguous() for x in per_row]
        for record, first in self._records():
            numbers = (count, size, self.capacity)
            call("lapsum_shard_measure", record + _MEASURE.pack(*numbers, *_from(per_row, first)))
        return Measured(columns, nodes, message)

    def _records(self) -> Iterator[tuple[bytes, int]]:
        """Of this rank's scores; see kernel.py."""
        tensors = (self.scores, self.mask, None, self.temperature, None, None, None)
        dtype = DTYPES[self.scores.dtype]
        return records((dtype, dtype, 0), flags_of(self.largest), tensors, (0.0, 1.0), (None,) * 4)


@functools.lru_cache(maxsize=8)
def _places(length: int, count: int) -> Tensor:
    """One place in each of ``count`` parts of a row: a fixed stride would see only one phase."""
    generator = torch.Generator().manual_seed(length)
    jitter = torch.rand(count, generator=generator, dtype=torch.float64, device="cpu")
    parts = torch.arange(count, dtype=torch.float64, device="cpu")
    places = (parts + jitter) * (length / count)
    return places.to(torch.int64).clamp(max=length - 1)


def _from(tensors: Sequence[Tensor], first: int) -> list[int]:
    """Addresses of what tensors [rows, ...] have of a row."""
    return [x.data_ptr() + first * x.stride(0) * x.element_size() for x in tensors]


def write(
    scores: Tensor,
    temperature: Tensor,
    mask: Tensor | None,
    answers: Answers,
    largest: bool,
    output: str,
    out_dtype: torch.dtype,
) -> Tensor:
    """This rank's part of masks ("mask" and "hard")."""
    out = torch.empty_like(scores, dtype=out_dtype)
    pairs = torch.stack((answers.hi, answers.lo), -1)
    tensors = (scores, mask, None, temperature.reshape(scores.shape[:-1]), None, None, out)
    head = (DTYPES[scores.dtype], DTYPES[out_dtype], 0)
    per_row = [pairs, answers.boundary, answers.quota, answers.is_far]
    per_row = [x.contiguous() for x in per_row]
    made = records(head, flags_of(largest, output), tensors, (0.0, 1.0), (None,) * 4)
    for record, first in made:
        call("lapsum_shard_write", record + _WRITE.pack(*_from(per_row, first)))
    return out


def gradient_sums(
    grad: Tensor,
    scores: Tensor,
    temperature: Tensor,
    mask: Tensor | None,
    threshold: Tensor,
    largest: bool,
    output: str,
) -> Tensor:
    """This rank's part of the sums that gradients of masks need, [rows, 7]."""
    sums = temperature.new_empty((temperature.numel(), GRADIENT_COLUMNS), dtype=torch.float64)
    tensors = (scores, mask, None, temperature.reshape(scores.shape[:-1]), None, grad, None)
    dtype = DTYPES[scores.dtype]
    head, pairs = (dtype, dtype, DTYPES[grad.dtype]), (threshold.contiguous(), None, None, None)
    for record, first in records(head, flags_of(largest), tensors, (0.0, 1.0), pairs):
        call("lapsum_shard_gradient_sums", record + _GRADIENT.pack(*_from([sums], first), 0))
    return sums


def write_gradient(
    grad: Tensor,
    scores: Tensor,
    temperature: Tensor,
    mask: Tensor | None,
    threshold: Tensor,
    totals: Totals,
    largest: bool,
    output: str,
) -> Tensor:
    """The gradient of masks for this rank's scores."""
    out = torch.empty_like(scores)
    tensors = (scores, mask, None, temperature.reshape(scores.shape[:-1]), None, grad, out)
    dtype, level = DTYPES[scores.dtype], totals.level.contiguous()
    head, pairs = (dtype, dtype, DTYPES[grad.dtype]), (threshold.contiguous(), None, None, None)
    for record, first in records(head, flags_of(largest), tensors, (0.0, 1.0), pairs):
        call("lapsum_shard_gradient", record + _GRADIENT.pack(0, *_from([level], first)))
    return out
