"""Gradients for scores, budget and temperature (the paper's eq. vjp) from the threshold pair.

    d r = (phi / t) (g - <g, q>)     d k = <g, q>     d t = -(1 / t) sum_i g_i phi_i (u_i - <q, u>)

q = softmax(-|u|) is taken with its largest exponent shifted to zero: phi / sum(phi) would be 0 / 0
where a gap is wide against t. Rows on chip read r and g once (12 bytes per float32 score); long
rows twice (20 bytes): sums first, then the gradient, in the opposite order for the cache's sake.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .primitives import (
    exponent_scale,
    load_tile,
    load_values,
    row_value,
    smallest_normal,
    store_tile,
    tile_count,
    tile_of,
)

LN2 = tl.constexpr(0.6931471805599453)
#: Float64 values that a program leaves: shift, sums of w, g w, w u, g w u with w = 2^(shift - |v|).
SUMS = tl.constexpr(5)
TILES_PER_SUM = tl.constexpr(16)
#: e^-|u| is zero in every format long before |v| gets here.
VANISHED_AT = tl.constexpr(2048.0)


@triton.jit
def _exponent(r, hi, lo, inverse):
    """v = (r - b) log2(e) / t, and whether the score has a gradient at all."""
    v = ((r - hi) - lo) * inverse
    is_live = tl.abs(v) < float("inf")
    return tl.where(is_live, v, 0.0), is_live


@triton.jit
def _near(v):
    """v where it can matter to d t, else 0: thousands of v near the largest float overflow."""
    return tl.where(tl.abs(v) < VANISHED_AT, v, 0.0)


@triton.jit
def _row_gradients(shift, weight, grad_weight, weight_u, grad_weight_u, hi, t, is_hard):
    """<g, q>, d k and d t of a row from its sums (float64): 0 in the hard limit, NaN unanswered."""
    has_any = weight > 0
    mean_grad = tl.where(has_any, grad_weight / weight, 0.0)
    mean_u = tl.where(has_any, weight_u / weight, 0.0)
    d_temperature = -0.5 * tl.exp2(-shift) * (grad_weight_u - grad_weight * mean_u) / t
    d_budget = tl.where(is_hard, 0.0, mean_grad)
    d_temperature = tl.where(is_hard, 0.0, d_temperature)
    unanswered = hi != hi
    return (
        mean_grad,
        tl.where(unanswered, float("nan"), d_budget),
        tl.where(unanswered, float("nan"), d_temperature),
    )


@triton.jit
def _score_gradient(r, g, hi, lo, inverse, mean_grad, half_over_t, is_hard, LARGEST: tl.constexpr):
    v, is_live = _exponent(r, hi, lo, inverse)
    d = (g - mean_grad) * (tl.exp2(-tl.abs(v)) * half_over_t)
    if not LARGEST:
        d = -d
    d = tl.where(is_live, d, 0.0)
    settled = tl.where(hi != hi, float("nan"), 0.0)
    return tl.where(tl.zeros_like(r) + tl.where(is_hard | (hi != hi), 1.0, 0.0) > 0, settled, d)


@triton.jit(do_not_specialize=["n", "programs"])
def sums_backward(
    grad,
    scores,
    mask,
    temperature,
    threshold,
    sums,
    t_hi,
    t_lo,
    n,
    inner_count,
    programs,
    grad_outer,
    grad_inner,
    grad_along,
    scores_outer,
    scores_inner,
    scores_along,
    mask_outer,
    mask_inner,
    mask_along,
    temperature_outer,
    temperature_inner,
    LARGEST: tl.constexpr,
    PER_ROW: tl.constexpr,
    BLOCK: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The sums behind <g, q> and d t, one program's share.

    Without PER_ROW the shift is zero: where all e vanish, so does the gradient for the scores.
    """
    pid = tl.program_id(0).to(tl.int64)
    row, program = pid // programs, (pid % programs).to(tl.int32)
    outer, inner = row // inner_count, row % inner_count
    t = row_value(temperature, t_hi, t_lo, outer, inner, temperature_outer, temperature_inner)
    hi = tl.load(threshold + 2 * row)
    lo = tl.load(threshold + 2 * row + 1)
    inverse = exponent_scale(t, COMPUTE)
    scores += outer * scores_outer + inner * scores_inner
    grad += outer * grad_outer + inner * grad_inner
    if mask is not None:
        mask += outer * mask_outer + inner * mask_inner
    weight = tl.zeros((), tl.float64)
    grad_weight = tl.zeros((), tl.float64)
    weight_u = tl.zeros((), tl.float64)
    grad_weight_u = tl.zeros((), tl.float64)
    total_shift = tl.full((), float("inf"), COMPUTE)
    tiles = tile_count(n, BLOCK)
    for group in range(program, tiles, programs * TILES_PER_SUM):
        w_sums = tl.zeros((BLOCK,), COMPUTE)
        gw_sums = tl.zeros((BLOCK,), COMPUTE)
        if PER_ROW:
            wu_sums = tl.zeros((BLOCK,), COMPUTE)
            gwu_sums = tl.zeros((BLOCK,), COMPUTE)
            shifts = tl.full((BLOCK,), float("inf"), COMPUTE)
        last = tl.minimum(group + programs * TILES_PER_SUM, tiles)
        for tile in range(group, last, programs):
            first, count = tile_of(tile, n, BLOCK)
            r = load_tile(
                scores, mask, first, count, scores_along, mask_along, LARGEST, BLOCK, COMPUTE
            )
            g = load_values(grad, first, count, grad_along, BLOCK, COMPUTE)
            v, is_live = _exponent(r, hi, lo, inverse)
            g = tl.where(is_live, g, 0.0)
            distance = tl.where(is_live, tl.abs(v), float("inf"))
            if PER_ROW:
                # Each lane's sums are relative to the nearest score it has seen.
                shift = tl.minimum(shifts, distance)
                anchor = tl.where(shift < float("inf"), shift, 0.0)
                kept = tl.exp2(anchor - shifts)
                w = tl.exp2(anchor - distance)
                w_sums = w_sums * kept + w
                gw_sums = gw_sums * kept + g * w
                near = _near(v)
                wu_sums = wu_sums * kept + w * near
                gwu_sums = gwu_sums * kept + g * w * near
                shifts = shift
            else:
                w = tl.exp2(-distance)
                w_sums += w
                gw_sums += g * w
        if PER_ROW:
            nearest = tl.minimum(total_shift, tl.min(shifts, 0))
            anchor = tl.where(nearest < float("inf"), nearest, 0.0)
            kept = tl.exp2(anchor - total_shift).to(tl.float64)
            factors = tl.exp2(anchor - shifts).to(tl.float64)
            weight = weight * kept + tl.sum(w_sums.to(tl.float64) * factors, 0)
            grad_weight = grad_weight * kept + tl.sum(gw_sums.to(tl.float64) * factors, 0)
            weight_u = weight_u * kept + tl.sum(wu_sums.to(tl.float64) * factors, 0)
            grad_weight_u = grad_weight_u * kept + tl.sum(gwu_sums.to(tl.float64) * factors, 0)
            total_shift = nearest
        else:
            weight += tl.sum(w_sums.to(tl.float64), 0)
            grad_weight += tl.sum(gw_sums.to(tl.float64), 0)
    sums += pid * SUMS
    tl.store(sums, total_shift.to(tl.float64))
    tl.store(sums + 1, weight)
    tl.store(sums + 2, grad_weight)
    tl.store(sums + 3, weight_u * LN2)
    tl.store(sums + 4, grad_weight_u * LN2)


@triton.jit(do_not_specialize=["n", "programs", "sum_programs"])
def scores_backward(
    grad,
    scores,
    mask,
    temperature,
    threshold,
    sums,
    out,
    d_budget,
    d_temperature,
    t_hi,
    t_lo,
    n,
    inner_count,
    programs,
    sum_programs,
    grad_outer,
    grad_inner,
    grad_along,
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
    LANES: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Adds the sums up, in their order, and writes the gradient of one program's share."""
    pid = tl.num_programs(0).to(tl.int64) - 1 - tl.program_id(0)
    row, program = pid // programs, (pid % programs).to(tl.int32)
    outer, inner = row // inner_count, row % inner_count
    t = row_value(temperature, t_hi, t_lo, outer, inner, temperature_outer, temperature_inner)
    hi = tl.load(threshold + 2 * row)
    lo = tl.load(threshold + 2 * row + 1)
    is_hard = (t < smallest_normal(COMPUTE)) | (hi == float("inf"))
    inverse = exponent_scale(t, COMPUTE)
    lane = tl.arange(0, LANES)
    has_sums = lane < sum_programs
    every = sums + (row * sum_programs + lane) * SUMS
    weights = tl.load(every + 1, mask=has_sums, other=0.0)
    grad_weights = tl.load(every + 2, mask=has_sums, other=0.0)
    if d_budget is not None:
        shifts = tl.load(every, mask=has_sums, other=float("inf"))
        shift = tl.min(shifts, 0)
        shift = tl.where(shift < float("inf"), shift, 0.0)
        factors = tl.exp2(shift - shifts)
        weight_u = tl.sum(tl.load(every + 3, mask=has_sums, other=0.0) * factors, 0)
        grad_weight_u = tl.sum(tl.load(every + 4, mask=has_sums, other=0.0) * factors, 0)
        mean_grad, d_k, d_t = _row_gradients(
            shift,
            tl.sum(weights * factors, 0),
            tl.sum(grad_weights * factors, 0),
            weight_u,
            grad_weight_u,
            hi,
            t,
            is_hard,
        )
        if program == 0:
            tl.store(d_budget + row, d_k)
            tl.store(d_temperature + row, d_t)
    else:
        weight = tl.sum(weights, 0)
        # Where all e vanish, so does the gradient.
        mean_grad = tl.sum(grad_weights, 0) / tl.where(weight > 0, weight, 1.0)
    mean_grad = mean_grad.to(COMPUTE)
    half_over_t = (0.5 / t).to(COMPUTE)
    scores += outer * scores_outer + inner * scores_inner
    grad += outer * grad_outer + inner * grad_inner
    out += outer * out_outer + inner * out_inner
    if mask is not None:
        mask += outer * mask_outer + inner * mask_inner
    tiles = tile_count(n, BLOCK)
    for step in range(program, tiles, programs):
        tile = tiles - 1 - step
        first, count = tile_of(tile, n, BLOCK)
        r = load_tile(scores, mask, first, count, scores_along, mask_along, LARGEST, BLOCK, COMPUTE)
        g = load_values(grad, first, count, grad_along, BLOCK, COMPUTE)
        d = _score_gradient(r, g, hi, lo, inverse, mean_grad, half_over_t, is_hard, LARGEST)
        store_tile(out, first, count, out_along, d, BLOCK)
