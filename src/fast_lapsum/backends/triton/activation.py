"""ReLU of what a hard gate lets through, with all that is to be known of the scores, in one pass.

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
