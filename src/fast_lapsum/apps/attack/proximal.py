"""The proximal step on log q + mu B, and how its result is written in scores and colours."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

_FLOOR = 1e-9  # weight of a pixel that does not change; millions of them spend nothing
_CEILING = 1 - 1e-3
_CUT = 0.5


class Change(NamedTuple):
    """A change of few pixels: their places [n], their colours' change [3, n], and what was paid."""

    places: Tensor
    values: Tensor
    potential: Tensor
    threshold: float


class Encoded(NamedTuple):
    """Scores [H, W] and colours [3, H, W] whose soft top-k decodes to the change, at budget k."""

    scores: Tensor
    colours: Tensor
    k: float


def no_change(image: Tensor) -> Change:
    """The start: nothing is changed."""
    nowhere = torch.empty(0, dtype=torch.long, device=image.device)
    return Change(nowhere, image.new_empty(3, 0), torch.zeros_like(image[0]), 0.0)


def strength(field: Tensor, mask: Tensor | None) -> Tensor:
    """The largest entry [H, W] of a pixel's three, nothing outside the mask."""
    largest = field[0].abs()
    for colour in field[1:]:  # a reduction over three strided planes is many times slower
        torch.maximum(largest, colour.abs(), out=largest)
    return largest if mask is None else largest * mask


def proximal_step(
    image: Tensor,
    change: Change,
    gradient: Tensor,
    step: float,
    goal: float,
    mask: Tensor | None,
) -> Change:
    """Soft-threshold change - step * gradient inside the colour cube so that B is ``goal``.

    The threshold is step * mu / 3 with the price mu of a unit of B. Few pixels can pass it: those
    above a guess (half of the last threshold) are looked at, and the guess is lowered until the
    threshold that was found lies above it.
    """
    flat_gradient = gradient.flatten(1)
    potential = strength(gradient, mask).mul_(step).flatten()
    moved = change.values - step * flat_gradient[:, change.places]
    potential[change.places] = moved.abs().amax(0)
    earlier = torch.zeros_like(potential, dtype=torch.long)
    earlier[change.places] = torch.arange(1, len(change.places) + 1, device=image.device)
    values = torch.cat((torch.zeros_like(image[:, :1, 0]), change.values), 1)
    top = float(potential.max())
    cut = _CUT * (min(change.threshold, top) or top)
    while True:
        places = (potential > cut).nonzero()[:, 0]
        here = image.flatten(1)[:, places]
        moved = values[:, earlier[places]] - step * flat_gradient[:, places]
        found = _threshold(here, moved, 3 * goal, top)
        if found >= cut or cut < 1e-6 * top:
            break
        cut *= _CUT
    return Change(
        places, _shrink(here, moved, found), potential.view(image.shape[1:]), float(found)
    )


def _shrink(image: Tensor, moved: Tensor, threshold: Tensor | float) -> Tensor:
    shrunk = moved.sign() * (moved.abs() - threshold).clamp_(min=0)
    return torch.maximum(torch.minimum(shrunk, 1 - image), -image)


def _threshold(image: Tensor, moved: Tensor, goal: float, top: float) -> Tensor:
    """Where the changes sum to ``goal``; 0 where they never do. Bisection without waiting."""
    low = moved.new_zeros(())
    high = moved.new_full((), top)
    for _ in range(26):
        middle = (low + high) / 2
        over = _shrink(image, moved, middle).abs().sum() > goal
        low, high = torch.where(over, middle, low), torch.where(over, high, middle)
    return high


def encode(image: Tensor, change: Change, temperature: float) -> Encoded:
    """Stretch each pixel's change to the edge of the colour cube; the weight undoes the stretch."""
    here = image.flatten(1)[:, change.places]
    room = torch.where(change.values > 0, 1 - here, here)
    used = (change.values.abs() / room.clamp(min=1e-6)).amax(0)
    weight = used.clamp(_FLOOR, _CEILING)
    colours = image.flatten(1).clone()
    colours[:, change.places] = (here + change.values / weight).clamp_(0, 1)
    # Pixels that do not change keep their order, by how close they came.
    nearness = (change.potential.flatten() / max(change.threshold, 1e-30)).clamp_(max=1)
    scores = nearness.add_(math.log(2 * _FLOOR) - 1)
    active = torch.where(
        weight < 0.5, torch.log(2 * weight), -torch.log(2 * (1 - weight).clamp(min=1e-12))
    )
    scores[change.places] = torch.where(used > _FLOOR, active, scores[change.places])
    k = float(weight.sum())
    return Encoded((temperature * scores).view(image.shape[1:]), colours.view_as(image), k)
