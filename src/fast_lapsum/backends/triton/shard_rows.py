"""A rank's part of rows that are spread over many, by the GPU kernels; see backends/shards.py.

A sample says where the threshold is, one reading of the row adds up what is outside of that band
and keeps what is inside, and later questions are answered from what was kept. Every launch is made
whatever the scores are, and nothing comes back to the host. A measurement is two launches.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton.language as tl
from torch import Tensor

from ..common import DTYPES, compute_dtype
from ..layout import groups
from ..shards import COLUMNS, HEADER, SMALLEST, Measured, Sample
from .device import on_device
from .launch import _along, _rows
from .shard_finish import finish_rows
from .shard_kept import FIELDS, Band, Kept
from .shard_launch import launch
from .shard_measure import measure_chunks
from .shard_plan import ShardPlan, sample_size, shard_plan, vector
from .shard_sample import pick_nodes, sample_rows
from .step_launch import launch_steps
from .steps import Step
from .views import Call, Rows

#: Scores of a sample that a program reads, and that one finds the places of.
_SAMPLED, _PLACED = 1024, 64


class Shard:
    """This rank's part of every row, and the last band that was read of each."""

    def __init__(
        self,
        scores: Tensor,
        temperature: Tensor,
        mask: Tensor | None,
        largest: bool,
        plan: ShardPlan | None = None,
    ) -> None:
        """Scores [..., n]; temperatures [rows], 1 in the place of those that none can be."""
        self.scores, self.mask, self.largest = scores, mask, largest
        self.rows, self.length = temperature.numel(), scores.shape[-1]
        self.temperature = temperature.contiguous()
        self.kept_dtype = compute_dtype(scores.dtype)
        self.plan = plan or shard_plan(self.length, self.rows)
        self.measured = 0  # so many times
        self.nodes: Tensor | None = None
        self.kept: Kept | None = None
        self.answer: tuple[Tensor, Tensor, Tensor] | None = None  # a message that serves each time

    def sample(self, size: int) -> Sample:
        """Quantiles of a random part of every row, of all of it where that is short."""
        drawn = sample_size(self.length, size)
        message, numbers, self.nodes = self._message(HEADER, self.rows * size)
        self.nodes = found = self.nodes.view(self.rows, size)
        is_sorted = drawn > size
        blocks = -(-max(drawn, size) // _SAMPLED)
        if is_sorted:
            wide = self.kept_dtype == torch.float64
            order = torch.int64 if wide else torch.int32
            found = self.scores.new_empty((self.rows, blocks * _SAMPLED), dtype=order)
        width = found.shape[-1]
        kind = DTYPES[self.scores.dtype] + (0 if self.largest else SMALLEST)
        constants = {"LARGEST": self.largest, "SORTED": is_sorted, "LANES": _SAMPLED}
        constants |= {"COMPUTE": self._compute}
        device = self.scores.device
        with on_device(self.scores):
            for call, row_count, first in self._calls():
                step = Step(sample_rows, row_count * blocks, (), constants, {"num_warps": 8})
                told = (found[first:], numbers, drawn, width, kind, self.rows)
                launch_steps(device, [step], (call, row_count, *told))
            if is_sorted:
                own = {"OWN": _PLACED, "LANES": _SAMPLED, "BLOCK_LANES": vector(blocks)}
                own |= {"COMPUTE": self._compute}
                programs = self.rows * blocks * (_SAMPLED // _PLACED)
                step = Step(pick_nodes, programs, (), own, {"num_warps": 4})
                launch(device, step, (found, self.nodes, drawn, size, blocks))
        return Sample(self.nodes, drawn, self.length, message)

    def measure(
        self, low: Tensor, high: Tensor, pivots: Tensor, size: int, is_open: Tensor
    ) -> Measured:
        """At bands [rows] and pivots [rows, p]: NaN for pivots of which nothing is known.

        Of rows that are not open nothing is written: what was last said of them is said again. The
        next measurement takes the memory of this one, whose message has been sent by then.
        """
        count, plan = pivots.shape[-1], self.plan
        width = COLUMNS + 2 * count
        if self.answer is None or self.kept is None:
            self._prepare(count, size)
        assert self.answer is not None
        assert self.kept is not None
        message, columns, nodes = self.answer
        columns, nodes = columns.view(self.rows, width), nodes.view(self.rows, size)
        band = Band(low.contiguous(), high.contiguous(), pivots.contiguous(), is_open, low)
        band = band._replace(temperature=self.temperature)
        kept = self.kept
        numbers = (plan.chunks, size, count, int(self.measured >= plan.first_cuts))
        each = {"BINS": plan.bins, "SIZE_LANES": vector(size), "CUT_LANES": vector(count)}
        each |= {"COMPUTE": self._compute}
        own = {"LARGEST": self.largest, "READ": plan.read, "LANES": plan.lanes}
        own |= {"DEPTH": plan.depth}
        # Threads decide by sums that all have to the last bit: see config.TilePlan.may_fuse.
        alike = {"enable_fp_fusion": False}
        options = {"num_warps": plan.warps, "maxnreg": 64 if plan.warps > 8 else None, **alike}
        device = self.scores.device
        with on_device(self.scores):
            for call, row_count, first in self._calls():
                own_band = Band(*(x[first:] for x in band))
                own_kept = Kept(*(x[first:] for x in kept))
                step = Step(measure_chunks, row_count * plan.chunks, (), own | each, options)
                launch(device, step, (call, row_count, own_band, own_kept, *numbers))
            finish = each | {"CHUNK_LANES": vector(plan.chunks)}
            warps = 8 if plan.chunks > 128 else 4
            step = Step(finish_rows, self.rows, (), finish, {"num_warps": warps, **alike})
            launch(device, step, (band, kept, columns, nodes, *numbers))
        self.measured += 1
        return Measured(columns, nodes, message)

    def _message(self, numbers: int, nodes: int) -> tuple[Tensor, Tensor, Tensor]:
        """A message, and where in it numbers and nodes are, one behind the other."""
        size = numbers * torch.float64.itemsize + nodes * self.scores.itemsize
        return self._parts(self.scores.new_empty(size, dtype=torch.uint8), numbers)

    def _parts(self, message: Tensor, numbers: int) -> tuple[Tensor, Tensor, Tensor]:
        split = numbers * torch.float64.itemsize
        return message, message[:split].view(torch.float64), message[split:].view(self.scores.dtype)

    @property
    def _compute(self) -> tl.dtype:
        return tl.float64 if self.kept_dtype == torch.float64 else tl.float32

    def _prepare(self, pivots: int, size: int) -> None:
        """Memory of messages and of what is kept between them, before the first measurement.

        All that has to be 0 lies together: what is counted, the bands that were read last, none of
        which holds another, and the message, as what is said of rows that are done is sent, too.
        """
        plan, rows, new = self.plan, self.rows, self.scores.new_empty
        chunks, numbers = (rows, plan.chunks), rows * (COLUMNS + 2 * pivots)
        of_bands = 2 * rows * torch.float64.itemsize
        of_message = numbers * torch.float64.itemsize + rows * size * self.scores.itemsize
        before = of_bands + -(-of_message // 16) * 16
        total = before + rows * (plan.bins + 1) * torch.int32.itemsize
        zeros = self.scores.new_zeros(total, dtype=torch.uint8)
        self.answer = self._parts(zeros[of_bands : of_bands + of_message], numbers)
        counted = zeros[before:].view(torch.int32)
        assert self.nodes is not None
        self.kept = Kept(
            zeros[:of_bands].view(torch.float64).view(rows, 2),
            new((*chunks, plan.depth, plan.lanes), dtype=self.kept_dtype),
            new((*chunks, plan.lanes), dtype=torch.int32),
            new((*chunks, FIELDS.value), dtype=torch.float64),
            new((*chunks, 3, vector(pivots)), dtype=torch.float64),
            counted[: rows * plan.bins].view(rows, plan.bins),
            new((rows, size), dtype=self.kept_dtype),
            counted[rows * plan.bins :],
            self.nodes,
        )

    def _calls(self) -> Iterator[tuple[Call, int, int]]:
        """Rows of two strides: how kernels see them, how many there are, and the first."""
        tensors = (self.scores, self.mask)
        n = self.length
        for group in groups(tensors):
            steps = (_along(self.scores, n), _along(self.mask, n))
            scores, mask = (
                _rows(x, group, place, step)
                for place, (x, step) in enumerate(zip(tensors, steps, strict=True))
            )
            assert isinstance(scores, Rows)
            call = Call(scores, mask, None, None, None, n, group.inner)
            yield call, group.outer * group.inner, group.first_row
