"""Long rows, last launch: the mask, for thresholds that are known."""

from __future__ import annotations

import triton
import triton.language as tl

from .primitives import (
    any_mask,
    await_launch,
    exponent_scale,
    load_tile,
    row_value,
    store_tile,
    tile_of,
)


@triton.jit(do_not_specialize=["n", "tiles"])
def mask_forward(
    scores,
    mask,
    temperature,
    out,
    threshold,
    t_hi,
    t_lo,
    n,
    inner_count,
    tiles,
    scores_outer,
    scores_inner,
    scores_along,
    mask_outer,
    mask_inner,
    mask_along,
    temperature_outer,
    temperature_inner,
    out_outer,
    out_inner,
    out_along,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """p for known thresholds, a tile per program, the last tile first: it may still be in cache."""
    pid = tl.num_programs(0).to(tl.int64) - 1 - tl.program_id(0)
    row, tile = pid // tiles, pid % tiles
    outer, inner = row // inner_count, row % inner_count
    t = row_value(temperature, t_hi, t_lo, outer, inner, temperature_outer, temperature_inner)
    scores += outer * scores_outer + inner * scores_inner
    out += outer * out_outer + inner * out_inner
    if mask is not None:
        mask += outer * mask_outer + inner * mask_inner
    first, count = tile_of(tile, n, BLOCK)
    r = load_tile(scores, mask, first, count, scores_along, mask_along, LARGEST, BLOCK, COMPUTE)
    await_launch(OVERLAP)
    hi = tl.load(threshold + 2 * row)
    lo = tl.load(threshold + 2 * row + 1)
    p = any_mask(r, hi, lo, t, exponent_scale(t, COMPUTE), COMPUTE)
    store_tile(out, first, count, out_along, p, BLOCK)
