"""A rank's measurement of its part of rows, chunk by chunk: see backends/shards.py.

A band that lies in the one that was read last is measured from its lists, any other by a reading.
Where a chunk's lists are too short for its band, the chunk is read in every pass over the band.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .numbers import exponent_scale, largest_finite, smallest_normal
from .shard_kept import FIELDS, bins_of, is_covered, load_sample, scale_of
from .shard_look import _at_cuts, _look, _put_into_bins
from .shard_read import Chunk, read_chunk, read_quickly
from .team import await_last, begin_next
from .views import coordinates

#: Mass that is farther away than that, 3 temperatures on the average, is added up in float64.
FAR = tl.constexpr(4.328085122666891)


@triton.jit
def _is_far(sample, low, high, inverse):
    """Whether the mass outside of a band is many temperatures away, by the sample."""
    is_finite = tl.abs(sample) < float("inf")
    beyond = tl.maximum(tl.maximum(low - sample, sample - high), 0.0)
    v = tl.where(is_finite, beyond * inverse, float("inf"))
    least = tl.min(v, 0)
    e = tl.where(v < float("inf"), tl.exp2(least - v), 0.0)
    return tl.sum(tl.where(e > 0, v * e, 0.0), 0) > tl.sum(e, 0) * FAR


@triton.jit
def _measure(
    chunk,
    band,
    kept,
    row,
    size,
    pivot_count,
    with_cuts,
    low,
    after,
    high,
    inverse,
    LARGEST: tl.constexpr,
    READ: tl.constexpr,
    LANES: tl.constexpr,
    DEPTH: tl.constexpr,
    CUT_LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """A chunk's part of a measurement, of which the band is read, or holds this one.

    Exponentials are taken in the dtype of ``inverse``.
    """
    kept_low, kept_high = low, high
    if is_covered(kept, row, tl.load(band.low + row), tl.load(band.high + row)):
        limit = largest_finite(COMPUTE)
        kept_low = tl.maximum(tl.load(kept.bands + 2 * row).to(COMPUTE), -limit)
        kept_high = tl.load(kept.bands + 2 * row + 1).to(COMPUTE)
    # What was read is one number where it is no wider than what is asked for.
    is_one = (kept_low == low) & (kept_high <= after)
    parts, count, is_listed = _look(
        *(chunk, band, kept, row, size, low, after, high, kept_low, kept_high, is_one, inverse),
        *(LARGEST, READ, LANES, DEPTH, COMPUTE),
    )
    if with_cuts > 0:
        program = row * chunk.chunks + chunk.chunk
        _at_cuts(
            *(chunk, band.pivots + row * pivot_count, kept.cuts + program * (3 * CUT_LANES)),
            *(pivot_count, parts, count, is_listed, kept_low, kept_high, inverse),
            *(LARGEST, READ, LANES, CUT_LANES, COMPUTE),
        )
    return is_one


@triton.jit(do_not_specialize=["row_count", "chunks", "size", "pivot_count", "with_cuts"])
def measure_chunks(
    call,
    row_count,
    band,
    kept,
    chunks,
    size,
    pivot_count,
    with_cuts,
    LARGEST: tl.constexpr,
    READ: tl.constexpr,
    LANES: tl.constexpr,
    DEPTH: tl.constexpr,
    BINS: tl.constexpr,
    SIZE_LANES: tl.constexpr,
    CUT_LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """What the chunks of all open rows leave for :func:`finish_rows`."""
    await_last(OVERLAP)
    begin_next(OVERLAP)
    row = (tl.program_id(0) // chunks).to(tl.int64)
    if tl.load(band.is_open + row) != 0:
        number = tl.program_id(0) % chunks
        program = row * chunks + number
        outer, inner = coordinates(call, row, row_count)
        chunk = Chunk(
            *(call, outer, inner, number, chunks, kept.lists + program * (DEPTH * LANES)),
            *(kept.counts + program * LANES, kept.partials + program * FIELDS),
        )
        low = tl.maximum(tl.load(band.low + row).to(COMPUTE), -largest_finite(COMPUTE))
        high = tl.load(band.high + row).to(COMPUTE)
        after = tl.load(band.pivots + row * pivot_count + 1).to(COMPUTE)
        t = scale_of(band, row, COMPUTE)
        sample = load_sample(kept, row, size, SIZE_LANES, COMPUTE)
        inverse = exponent_scale(t, COMPUTE)
        wide = exponent_scale(t, tl.float64)
        counts_only = tl.load(band.temperature + row) < smallest_normal(COMPUTE)
        is_far = low != low
        if COMPUTE == tl.float32:
            is_far = _is_far(sample, low, high, inverse) & ~counts_only
        if not is_covered(kept, row, tl.load(band.low + row), tl.load(band.high + row)):
            # A band of one number needs no lists.
            keeps, reads = high > after, is_far
            if not is_far:
                has_left_out = tl.max((sample == float("-inf")).to(tl.int32), 0) > 0
                reads = read_quickly(
                    *(chunk, low, high, inverse, keeps, counts_only, has_left_out),
                    *(LARGEST, READ, LANES, DEPTH, COMPUTE),
                )
            if reads:
                tl.debug_barrier()
                read_chunk(*(chunk, low, high, wide, keeps, LARGEST, READ, LANES, DEPTH, COMPUTE))
            tl.debug_barrier()
        if COMPUTE == tl.float64:
            is_one = _measure(
                *(chunk, band, kept, row, size, pivot_count, with_cuts, low, after, high, inverse),
                *(LARGEST, READ, LANES, DEPTH, CUT_LANES, COMPUTE),
            )
        else:
            if is_far:
                is_one = _measure(
                    *(chunk, band, kept, row, size, pivot_count, with_cuts, low, after, high, wide),
                    *(LARGEST, READ, LANES, DEPTH, CUT_LANES, COMPUTE),
                )
            else:
                is_one = _measure(
                    *(chunk, band, kept, row, size, pivot_count, with_cuts, low, after, high),
                    *(inverse, LARGEST, READ, LANES, DEPTH, CUT_LANES, COMPUTE),
                )
        if not is_one:
            bins = bins_of(sample, low, high, BINS, COMPUTE)
            count = tl.load(chunk.counts + tl.arange(0, LANES))
            _put_into_bins(chunk, bins, kept, row, low, high, count, DEPTH, LANES, BINS)
