"""The attack without its operator: the fewest pixels at their learned colours that still fool."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .measures import budget, pixel_changes, round_to_8_bits
from .protocol import Classifier, Result, has_won


class HardSupport(NamedTuple):
    """L* and its picture; ``pixels`` is None where no support fools."""

    pixels: int | None
    budget: float | None
    adversarial: Tensor | None
    calls: int


def hard_support(
    classifier: Classifier,
    image: Tensor,
    scores: Tensor,
    colours: Tensor,
    label: int,
    target: int | None = None,
    mask: Tensor | None = None,
) -> HardSupport:
    """The smallest L whose top-L pixels by score, at their learned colours, still fool.

    L = 1, 2, 4, ... until one fools, then a binary search between the last two: one call each, and
    about 2 log2(HW) of them. As every binary search it takes success to be monotone in L.

    Args:
        classifier: what is to be fooled.
        image: [3, H, W] in [0, 1].
        scores: r [H, W]; of tied pixels the most changed comes first, then the earliest.
        colours: sigma(z) [3, H, W].
        label: the true class.
        target: the class to be reached, or None for any other.
        mask: boolean [H, W], the pixels that may change.
    """
    image = round_to_8_bits(image)
    ranked = scores.flatten()
    if mask is not None:
        ranked = ranked.masked_fill(~mask.flatten(), -torch.inf)
    count = scores.numel() if mask is None else int(mask.sum())
    replaced = round_to_8_bits(colours)
    order = pixel_changes(replaced, image).flatten().argsort(descending=True, stable=True)
    order = order[ranked[order].argsort(descending=True, stable=True)][:count]
    start = classifier.calls

    def attempt(pixels: int) -> Tensor | None:
        """The picture with so many pixels replaced, if it fools."""
        tried = image.clone()
        places = order[:pixels]
        tried.flatten(1)[:, places] = replaced.flatten(1)[:, places]
        with torch.no_grad():
            logits = classifier.logits(tried[None])[0]
        return tried if has_won(logits, label, target) else None

    low, high = 0, 1
    found = attempt(min(high, count)) if count else None
    while found is None:
        if high >= count:
            return HardSupport(None, None, None, classifier.calls - start)
        low, high = high, 2 * high
        found = attempt(min(high, count))
    high = min(high, count)
    while high - low > 1:
        middle = (low + high) // 2
        fewer = attempt(middle)
        if fewer is None:
            low = middle
        else:
            high, found = middle, fewer
    return HardSupport(high, budget(found, image), found, classifier.calls - start)


def hard_support_of(
    classifier: Classifier,
    image: Tensor,
    result: Result,
    label: int,
    target: int | None = None,
    mask: Tensor | None = None,
) -> HardSupport:
    """L* of an attack that hands back ``scores`` and ``colours`` in ``extra``."""
    scores, colours = result.extra.get("scores"), result.extra.get("colours")
    if not isinstance(scores, Tensor) or not isinstance(colours, Tensor):
        raise ValueError(
            f"result.extra must hold the tensors scores and colours, got {sorted(result.extra)}"
        )
    return hard_support(classifier, image, scores, colours, label, target, mask)
