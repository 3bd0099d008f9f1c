"""ReLU of what a hard gate lets through, with all that is to be known of the scores, in one pass.

The way of a batch whose gate is in memory: one that a team holds, and rows with a budget each. The
other way is activation_forward.py; activation_backward.py has the gradients of both.

Scores and gate are read once and activations written once: 12 bytes per float32 score. On the way
scores over a threshold are counted, and the best score that the gate leaves out is found.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def activate_scores(scores, gate, threshold, out, counts, best, n, BLOCK: tl.constexpr):
    """relu(r) g, and of each program how many r exceed the threshold, and its best r of g = 0.

    The best is NaN where a gate is.
    """
    program = tl.program_id(0).to(tl.int64)
    programs = tl.num_programs(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    b = tl.load(threshold)
    count = tl.zeros((BLOCK,), tl.int32)
    top = tl.full((BLOCK,), float("-inf"), tl.float32)
    unknown = tl.zeros((BLOCK,), tl.int32)
    blocks = (tl.zeros((), tl.int64) + n + (BLOCK - 1)) // BLOCK
    for block in range(program, blocks, programs):
        index = block * BLOCK + lane
        inside = index < n
        r = tl.load(scores + index, mask=inside, other=float("-inf")).to(tl.float32)
        g = tl.load(gate + index, mask=inside, other=1.0).to(tl.float32)
        activation = tl.where(r <= 0, 0.0, r) * g  # a NaN is not at most 0, and stays
        tl.store(out + index, activation.to(out.dtype.element_ty), mask=inside)
        count += (r > b).to(tl.int32)
        top = tl.maximum(top, tl.where(g == 1, float("-inf"), r))
        unknown |= (g != g).to(tl.int32)
    is_unknown = tl.max(unknown, 0) != 0
    tl.store(counts + program, tl.sum(count, 0).to(tl.int64))
    tl.store(best + program, tl.where(is_unknown, float("nan"), tl.max(top, 0)))


@triton.jit
def activate_scores_backward(grad, scores, gate, d_scores, d_gate, n, BLOCK: tl.constexpr):
    """Gradients of relu(r) g: g [r > 0] for r, and relu(r) for g, of an upstream gradient."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < n
    upstream = tl.load(grad + index, mask=inside, other=0.0).to(tl.float32)
    r = tl.load(scores + index, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gate + index, mask=inside, other=0.0).to(tl.float32)
    of_scores = tl.where(r <= 0, 0.0, upstream * g)
    tl.store(d_scores + index, of_scores.to(d_scores.dtype.element_ty), mask=inside)
    if d_gate is not None:
        of_gate = upstream * tl.where(r <= 0, 0.0, r)
        tl.store(d_gate + index, of_gate.to(d_gate.dtype.element_ty), mask=inside)


@triton.jit
def _lerp(start, end, weight):
    """As torch has it: exactly the end at weight 1."""
    change = end - start
    return tl.where(weight < 0.5, start + weight * change, end - change * (1 - weight))


@triton.jit
def move_threshold(
    counts,
    best,
    programs,
    threshold,
    mean_miss,
    mean_size,
    mean_distance,
    num_batches,
    budget,
    momentum,
    LANES: tl.constexpr,
):
    """One step of a running threshold, from what the programs of a batch have left.

    Line by line it is ``RunningThreshold._move``.
    """
    lane = tl.arange(0, LANES)
    count = tl.zeros((LANES,), tl.int64)
    top = tl.full((LANES,), float("-inf"), tl.float32)
    unknown = tl.zeros((LANES,), tl.int32)
    for first in range(0, programs, LANES):
        inside = first + lane < programs
        count += tl.load(counts + first + lane, mask=inside, other=0)
        one = tl.load(best + first + lane, mask=inside, other=float("-inf"))
        top = tl.maximum(top, one)
        unknown |= (one != one).to(tl.int32)
    of_batch = tl.where(tl.max(unknown, 0) != 0, float("nan"), tl.max(top, 0))
    miss = tl.sum(count, 0).to(tl.float32) / budget - 1
    before, seen = tl.load(threshold), tl.load(num_batches)
    is_known = tl.abs(of_batch) < float("inf")
    has_start = (tl.abs(before) < float("inf")) & (seen > 0)
    is_next = is_known & has_start
    distance = tl.abs(of_batch - before)
    batches = seen.to(tl.float32)
    weight = tl.maximum(1 / tl.maximum(batches, 1.0), momentum)
    old_miss, old_size, old_distance = (
        tl.load(mean_miss),
        tl.load(mean_size),
        tl.load(mean_distance),
    )
    new_miss = tl.where(is_next, _lerp(old_miss, miss, weight), old_miss)
    new_size = tl.where(is_next, _lerp(old_size, tl.abs(miss), weight), old_size)
    new_distance = tl.where(is_next, _lerp(old_distance, distance, weight), old_distance)
    weight = tl.maximum(1 / (batches + 1), momentum)
    share = new_miss / new_size
    lag = share * share - 4 * weight
    weight = tl.where(lag > weight, lag, weight)
    step = miss * (new_distance / new_size) * weight
    # Of no miss in sight a step is NaN, which a minimum of a GPU would take for the whole way.
    step = tl.where(step == step, tl.minimum(tl.maximum(step, -distance), distance), 0.0)
    moved = tl.where(has_start, before + step, of_batch)
    kept = tl.where(before != before, of_batch, before)
    tl.store(mean_miss, new_miss)
    tl.store(mean_size, new_size)
    tl.store(mean_distance, new_distance)
    tl.store(threshold, tl.where(is_known, moved, kept))
    tl.store(num_batches, seen + is_known.to(tl.int64))
