"""The kinds of passes over scores: what a score adds to each, and how two sums of it are added.

A KIND is a name that a kernel is compiled for: the numbers that it gives, the terms of a score for
them, and how terms are joined. What goes over a row and adds them up is in passes.py.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from .views import across

constexpr_function: Any = getattr(triton, "constexpr_function", None)
if constexpr_function is None:  # Triton 3.4
    constexpr_function = tl.core.constexpr_function


@triton.jit
def _add_glance(a0, a1, a2, b0, b1, b2):
    return a0 + b0, a1 + b1, a2 + b2


@triton.jit
def _add_pass(a0, a1, a2, a3, a4, a5, b0, b1, b2, b3, b4, b5):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, tl.maximum(a4, b4), tl.minimum(a5, b5)


@triton.jit
def _add_counts(a0, a1, a2, a3, b0, b1, b2, b3):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3


@triton.jit
def _add_ends(a0, a1, b0, b1):
    return tl.minimum(a0, b0), tl.maximum(a1, b1)


@triton.jit
def _add_moments(a0, a1, a2, a3, b0, b1, b2, b3):
    return tl.minimum(a0, b0), tl.maximum(a1, b1), a2 + b2, a3 + b3


@triton.jit
def _add_survey(a0, a1, a2, a3, a4, a5, a6, b0, b1, b2, b3, b4, b5, b6):
    lowest, highest = tl.minimum(a3, b3), tl.maximum(a4, b4)
    return a0 + b0, a1 + b1, a2 + b2, lowest, highest, a5 + b5, a6 + b6


@triton.jit
def _add_first(a0, a1, a2, a3, a4, a5, b0, b1, b2, b3, b4, b5):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, tl.minimum(a4, b4), tl.maximum(a5, b5)


@triton.jit
def _add_gathered(a0, a1, a2, a3, a4, a5, a6, b0, b1, b2, b3, b4, b5, b6):
    lowest, highest = tl.minimum(a4, b4), tl.maximum(a5, b5)
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, lowest, highest, a6 + b6


@triton.jit
def _reduced(terms, AXIS: tl.constexpr, KIND: tl.constexpr):
    if KIND == "glance" or KIND == "tails":
        return tl.reduce(terms, AXIS, _add_glance)
    elif KIND == "pass":
        return tl.reduce(terms, AXIS, _add_pass)
    elif KIND == "counts":
        return tl.reduce(terms, AXIS, _add_counts)
    elif KIND == "ends":
        return tl.reduce(terms, AXIS, _add_ends)
    elif KIND == "moments":
        return tl.reduce(terms, AXIS, _add_moments)
    elif KIND == "survey":
        return tl.reduce(terms, AXIS, _add_survey)
    elif KIND == "gathered":
        return tl.reduce(terms, AXIS, _add_gathered)
    else:
        tl.static_assert(KIND == "first")
        return tl.reduce(terms, AXIS, _add_first)


@triton.jit
def _of_threads(terms, KIND: tl.constexpr):
    """Terms of scores added up to one number per row and thread."""
    return _reduced(_reduced(terms, 3, KIND), 0, KIND)


@triton.jit
def _joined(a, b, KIND: tl.constexpr):
    """Two sums of one KIND as one."""
    if KIND == "glance" or KIND == "tails":
        return _add_glance(*a, *b)
    elif KIND == "pass":
        return _add_pass(*a, *b)
    elif KIND == "counts":
        return _add_counts(*a, *b)
    elif KIND == "ends":
        return _add_ends(*a, *b)
    elif KIND == "moments":
        return _add_moments(*a, *b)
    elif KIND == "survey":
        return _add_survey(*a, *b)
    else:
        tl.static_assert(KIND == "first")
        return _add_first(*a, *b)


@constexpr_function
def _ends(kind: str) -> tuple[int, int]:
    """The fields of a KIND that are the least and the greatest of numbers; all others are sums."""
    ends = {
        "pass": (5, 4),
        "ends": (0, 1),
        "moments": (0, 1),
        "survey": (3, 4),
        "first": (4, 5),
        "gathered": (4, 5),
    }
    return ends.get(kind, (-1, -1))


@triton.jit
def _nothing(KIND: tl.constexpr, FIELD: tl.constexpr):
    """What a field of a KIND is where there are no scores."""
    if _ends(KIND)[0] == FIELD:
        return float("inf")
    elif _ends(KIND)[1] == FIELD:
        return float("-inf")
    else:
        return 0.0


@triton.jit
def _decay(distance, inverse):
    """e^-|u| of a distance from the threshold, the sign taken by the product: one instruction."""
    return tl.exp2(tl.abs(distance) * (-inverse))


@triton.jit
def _glance_terms(r, b, inverse, COMPUTE: tl.constexpr):
    e = _decay(r - across(b), across(inverse))
    is_above = r > across(b)
    return is_above.to(COMPUTE), tl.where(is_above, 0.0, e), tl.where(is_above, e, 0.0)


@triton.jit
def _survey_terms(r, origin, COMPUTE: tl.constexpr):
    is_finite = tl.abs(r) < float("inf")
    distance = tl.where(is_finite, r - across(origin), 0.0)
    return (
        is_finite.to(COMPUTE),
        (r == float("inf")).to(COMPUTE),
        (r != r).to(COMPUTE),
        tl.where(is_finite, r, float("inf")),
        tl.where(is_finite, r, float("-inf")),
        distance,
        distance * distance,
    )


@triton.jit
def _terms(r, inside, at, KIND: tl.constexpr, COMPUTE: tl.constexpr):
    """The terms of every score; ``at`` is what the KIND looks at, per row.

    ``inside`` is for moments alone: which scores exist, None if all do.
    """
    if KIND == "glance":
        b, inverse = at
        return _glance_terms(r, b, inverse, COMPUTE)
    elif KIND == "pass":
        b, inverse = at
        e = _decay(r - across(b), across(inverse))
        is_above = r > across(b)
        is_below = r < across(b)
        return (
            is_above.to(COMPUTE),
            (r == across(b)).to(COMPUTE),
            tl.where(is_below, e, 0.0),
            tl.where(is_above, e, 0.0),
            tl.where(is_below, r, float("-inf")),
            tl.where(is_above, r, float("inf")),
        )
    elif KIND == "counts":
        return (
            (r > across(at[0])).to(COMPUTE),
            (r > across(at[1])).to(COMPUTE),
            (r > across(at[2])).to(COMPUTE),
            (r > across(at[3])).to(COMPUTE),
        )
    elif KIND == "ends":
        left, right = at
        low = tl.where(r > across(left), r, float("inf"))
        return low, tl.where(r <= across(right), r, float("-inf"))
    elif KIND == "tails":
        lower, upper, from_lower, from_upper, inverse = at
        is_above = r >= across(upper)
        below = tl.exp2((r - across(from_lower)) * across(inverse))
        higher = tl.exp2((across(from_upper) - r) * across(inverse))
        return (
            is_above.to(COMPUTE),
            tl.where(r <= across(lower), below, 0.0),
            tl.where(is_above, higher, 0.0),
        )
    elif KIND == "moments":
        distance = r - across(at[0])
        low = r
        high = r
        if inside is not None:
            distance = tl.where(inside, distance, 0.0)
            low = tl.where(inside, r, float("inf"))
            high = tl.where(inside, r, float("-inf"))
        return low, high, distance, distance * distance
    elif KIND == "survey":
        return _survey_terms(r, at[0], COMPUTE)
    else:
        tl.static_assert(KIND == "first")
        b, inverse = at
        above, below, higher = _glance_terms(r, b, inverse, COMPUTE)
        is_nothing = r == float("-inf")
        low = tl.where(is_nothing, float("inf"), r)
        return above, below, higher, is_nothing.to(COMPUTE), low, r


@constexpr_function
def _fields(kind: str) -> int:
    """How many numbers a KIND gives."""
    fields = {"counts": 4, "ends": 2, "moments": 4, "pass": 6, "survey": 7, "first": 6}
    return {**fields, "gathered": 7}.get(kind, 3)


@constexpr_function
def _is_common(kind: str) -> bool:
    """Whether many rows take such a pass."""
    return kind in ("moments", "glance", "first", "counts", "ends")
