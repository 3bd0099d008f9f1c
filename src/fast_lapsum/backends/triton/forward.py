"""The forward call on rows that one program holds: a tile of short ones, or a block of one row.

Every score is read once and every p written once: 8 bytes per float32 score.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .boundary import find_boundary
from .mask import are_plain
from .numbers import any_row, smallest_normal
from .passes import Source, read_parts
from .solve import guess_of, solve, survey_rows
from .views import budget_of, coordinates, first_score, temperature_of, warm_start_of
from .write import store_pair, write_held, write_read

#: Programs of so many threads read again what few rows need: see passes.py.
FEW_LANES = tl.constexpr(256)


@triton.jit
def _solve_tile(
    source,
    out,
    is_row,
    k,
    t,
    start,
    origin,
    OUTPUT: tl.constexpr,
    CLAMP: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Threshold pairs of rows in registers, and what is written of them."""
    survey, mean, square = survey_rows(source, origin, source.call.n, COMPUTE)
    is_hard = t < smallest_normal(COMPUTE)
    if CLAMP:
        k = tl.minimum(k, survey.finite + survey.infinite)
    guess = guess_of(survey, origin, mean, square, k, t, start, is_hard, COMPUTE)
    meetings = tl.zeros((), tl.int32)  # there is nobody to meet
    pair, _ = solve(source, survey, k, t, is_hard, guess, None, meetings, COMPUTE)
    written = pair
    if OUTPUT == "hard":
        if any_row(~is_hard):
            near = guess_of(survey, origin, mean, square, k, t, start, t >= 0, COMPUTE)
            written, _ = find_boundary(source, survey, k, t, pair, near, meetings, COMPUTE)
    if OUTPUT != "threshold":
        if any_row(~are_plain(written, k, t, OUTPUT, COMPUTE)):
            write_read(source, 0, source.PARTS, out, is_row, k, t, written, None, OUTPUT, COMPUTE)
        else:
            write_held(source, source.r, 0, out, is_row, k, t, written, OUTPUT, COMPUTE)
    return pair


@triton.jit(do_not_specialize=["row_count"])
def tile_forward(
    call,
    row_count,
    warm_start,
    out,
    threshold,
    LARGEST: tl.constexpr,
    OUTPUT: tl.constexpr,
    CLAMP: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    REPEATS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Masks and threshold pairs of ROWS rows, held in registers from load to mask."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_row = row < row_count
    outer, inner = coordinates(call, row, row_count)
    r = read_parts(
        Source(
            *(None, 0, call, outer, inner, None, 0, None),
            *(LANES <= FEW_LANES, PADDED, LARGEST, PARTS, REPEATS, LANES, WIDTH, 1),
        ),
        0,
        COMPUTE,
    )
    k = budget_of(call, outer, inner)
    t = temperature_of(call, outer, inner)
    start = warm_start_of(warm_start, outer, inner, LARGEST, COMPUTE)
    origin = first_score(call, outer, inner, LARGEST, COMPUTE)
    pair = _solve_tile(
        Source(
            *(r, 0, call, outer, inner, None, 0, None),
            *(LANES <= FEW_LANES, PADDED, LARGEST, PARTS, REPEATS, LANES, WIDTH, 1),
        ),
        *(out, is_row, k, t, start, origin, OUTPUT, CLAMP, COMPUTE),
    )
    store_pair(threshold, row, pair.hi, pair.lo, is_row)
