"""SparseFool: to a linear boundary, one coordinate at a time (Modas et al., CVPR 2019).

"SparseFool: a few pixels make a big difference", arXiv 1811.02248. Until the picture fools, the
boundary near it is found by DeepFool as a point x_B and a normal w (Algorithm 2), the point moved
on by a factor λ, and the picture goes to that plane by Algorithm 1: in the order of |w_d|, each
coordinate moves by

    max(|w · (x - x_B)| / |w_d|, 1e-4) in the direction of w_d,

clipped to valid colours, until the plane is crossed. Every coordinate costs a search over all of
them, and confident megapixel pictures need very many: the paper that this package follows reports
no success at all, and the time limit is what usually ends it here too. The setting ``sorted`` does
all coordinates of a plane in one pass over their order: the same result (a test compares them), and
no part of the published method.

Defaults: λ = 3, at most 20 planes, DeepFool of at most 50 steps and overshoot 0.02 over the 10 most
likely classes, as in the paper and its code. Without a time limit of its own, a run may take hours.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..protocol import LEAD, Attack, Result
from .search import Search, searching

PAPER = "Modas, Moosavi-Dezfooli and Frossard 2019, arXiv 1811.02248"
_CALLS = 20 * 51  # as many planes, each with as many steps, as the defaults allow
_LEAST_MOVE = 1e-4
_BEYOND = 1e-3  # how far past the plane, so that rounding does not fall back


class Settings(NamedTuple):
    """The paper's numbers; ``sorted`` solves a plane in one pass."""

    lambda_: float = 3.0
    planes: int = 20
    deepfool_steps: int = 50
    overshoot: float = 0.02
    classes: int = 10
    sorted: bool = False


class Plane(NamedTuple):
    """The boundary, linear: normal · (x - point) = 0, the normal of length 1."""

    normal: Tensor
    point: Tensor


def attack(settings: Settings | None = None) -> Attack:
    """SparseFool with these settings."""
    chosen = settings or Settings()
    return searching("sparse-fool", PAPER, _CALLS, lambda search, _: _run(search, chosen))


def _run(search: Search, settings: Settings) -> Result:
    picture = search.image
    planes, coordinates = 0, 0
    while planes < settings.planes and search.allows():
        plane = deepfool(search, picture, settings)
        if plane is None:
            break
        planes += 1
        if settings.sorted:
            picture = cross_sorted(picture, plane)
        else:
            picture, moved, crossed = _cross(search, picture, plane)
            coordinates += moved
            if not crossed:
                break
        beyond = search.image + (1 + settings.overshoot) * (picture - search.image)
        if not search.allows() or search.try_only(beyond).won:
            break
    extra: dict[str, object] = {
        "planes": planes,
        "coordinates": coordinates,
        "settings": settings._asdict(),
    }
    return search.result(extra)


def deepfool(search: Search, picture: Tensor, settings: Settings) -> Plane | None:
    """Algorithm 2's plane at the boundary near ``picture``; None where none is found in time."""
    total = torch.zeros_like(picture)

    def rivals(logits: Tensor) -> Tensor:
        return _rivals(logits.detach(), search.label, search.target, settings.classes)

    for _ in range(settings.deepfool_steps):
        if not search.allows():
            return None
        trial = search.gradients(
            picture + (1 + settings.overshoot) * total,
            lambda logits: logits[rivals(logits)] - logits[search.label],
        )
        classes = rivals(trial.logits)
        lengths = trial.gradient.flatten(1).norm(dim=1).clamp_(min=1e-12)
        if trial.won:
            # The class that won is the most likely of the rivals, and the first.
            return Plane(trial.gradient[0] / lengths[0], picture + settings.lambda_ * total)
        missing = LEAD - (trial.logits[classes] - trial.logits[search.label])
        distances = missing.abs() / lengths
        nearest = int(distances.argmin())
        move = distances[nearest].clamp(min=_LEAST_MOVE)
        total = total + move / lengths[nearest] * trial.gradient[nearest]
    return None


def _rivals(logits: Tensor, label: int, target: int | None, count: int) -> Tensor:
    """The classes whose boundaries are looked at, likeliest first; with a target, only that one."""
    if target is not None:
        return torch.tensor([target], device=logits.device)
    others = logits.clone()
    others[label] = -torch.inf
    return others.topk(max(1, min(count, len(logits)) - 1)).indices


def cross_one(picture: Tensor, plane: Plane, unused: Tensor) -> Tensor:
    """Algorithm 1, one coordinate: flat ``picture`` and ``unused`` (|w|, 0 when used) change."""
    at = int(unused.argmax())
    value = torch.dot(plane.normal.flatten(), picture - plane.point.flatten()) - _BEYOND
    move = (value.abs() / unused[at]).clamp(min=_LEAST_MOVE)
    picture[at] = (picture[at] + move * plane.normal.flatten()[at].sign()).clamp(0, 1)
    unused[at] = 0
    return torch.dot(plane.normal.flatten(), picture - plane.point.flatten())


def _cross(search: Search, picture: Tensor, plane: Plane) -> tuple[Tensor, int, bool]:
    """Algorithm 1: the picture, the coordinates moved, and whether time was left to finish."""
    flat = picture.flatten().clone()
    unused = plane.normal.flatten().abs()
    moved = 0
    while bool(unused.any()):
        if not search.allows(calls=0):
            return flat.view_as(picture), moved, False
        moved += 1
        if cross_one(flat, plane, unused) >= 0:
            break
    return flat.view_as(picture), moved, True


def cross_sorted(picture: Tensor, plane: Plane) -> Tensor:
    """Algorithm 1 in one pass: all coordinates before the last are used up to their bounds.

    A coordinate that is not the last one is clipped: otherwise it alone would cross the plane.
    """
    normal = plane.normal.flatten().double()
    flat = picture.flatten().double()
    order = normal.abs().argsort(descending=True, stable=True)
    room = torch.where(normal > 0, 1 - flat, flat)[order]
    weights = normal.abs()[order]
    missing = torch.dot(normal, plane.point.flatten().double() - flat)
    gained = torch.cumsum(room * weights, 0)
    last = int(torch.searchsorted(gained, missing + _BEYOND))
    moves = room.clone()
    moves[last + 1 :] = 0
    if last < len(moves):
        before = gained[last - 1] if last > 0 else gained.new_zeros(())
        moves[last] = torch.minimum(room[last], (missing + _BEYOND - before) / weights[last])
    moves[weights == 0] = 0
    found = flat.clone()
    found[order] += moves * normal[order].sign()
    return found.clamp_(0, 1).to(picture.dtype).view_as(picture)
