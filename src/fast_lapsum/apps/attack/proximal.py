"""The proximal step of the colours on the loss plus a price on B."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_CUT = 0.5
#: Thresholds tried at once, and rounds of them, each between two trials of the last: 1 in 32,768.
_TRIALS = 8
_ROUNDS = 5


class Change(NamedTuple):
    """A change of few pixels: their places [n] and their colours' change [3, n].

    ``potential`` [H, W] is how far each pixel would go if its changes were free, ``threshold``
    what they cost: pixels whose potential is less do not change.
    """

    places: Tensor
    values: Tensor
    potential: Tensor
    threshold: float


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
    earlier = torch.zeros_like(potential, dtype=torch.int32)
    earlier[change.places] = torch.arange(
        1, len(change.places) + 1, dtype=torch.int32, device=image.device
    )
    values = torch.cat((torch.zeros_like(image[:, :1, 0]), change.values), 1)
    top = float(potential.max())
    cut = _CUT * (min(change.threshold, top) or top)
    while True:
        places = (potential > cut).nonzero()[:, 0]
        here = image.flatten(1)[:, places]
        moved = values[:, earlier[places].long()] - step * flat_gradient[:, places]
        found = float(_threshold(here, moved, 3 * goal, top))
        if found >= cut or cut < 1e-6 * top:
            break
        cut *= _CUT
    kept = _shrink(here, moved, found)
    is_changed = (kept != 0).any(0)
    return Change(places[is_changed], kept[:, is_changed], potential.view_as(image[0]), found)


def _shrink(image: Tensor, moved: Tensor, threshold: Tensor | float) -> Tensor:
    shrunk = moved.sign() * (moved.abs() - threshold).clamp_(min=0)
    return torch.maximum(torch.minimum(shrunk, 1 - image), -image)


def _threshold(image: Tensor, moved: Tensor, goal: float, top: float) -> Tensor:
    """Where the changes sum to ``goal``, or the next trial above; 0 where they never do."""
    wanted = moved.abs()
    room = torch.where(moved > 0, 1 - image, image)
    low, width = moved.new_zeros(()), moved.new_full((), top)
    fractions = torch.arange(_TRIALS, device=moved.device, dtype=moved.dtype) / _TRIALS
    for _ in range(_ROUNDS):
        trials = low + width * fractions
        left = (wanted - trials.view(-1, 1, 1)).clamp_(min=0)
        over = (torch.minimum(left, room).sum((1, 2)) > goal).sum()
        # The sums fall: the last trial that is over the goal, the width of a trial before the end.
        low, width = trials[(over - 1).clamp(min=0)], width / _TRIALS
    return torch.where(over > 0, low + width, low)
