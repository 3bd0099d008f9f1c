"""PGD-L0: gradient steps projected onto k changed pixels (Croce and Hein, ICCV 2019).

"Sparse and Imperceivable Adversarial Attacks", arXiv 1909.05040, section 4. A step goes along the
gradient of the cross-entropy divided by its l1 norm,

    δ <- Π_k(δ + η g / |g|_1),

and Π_k, the nearest change of at most k pixels within valid colours, keeps the k pixels whose
clipped change saves the most distance, |δ_i|² - |δ_i - clip(δ_i)|², and clips those.

The method is given k. It is searched here: a bracket, then bisection, each k starting where the
last one ended. On a photograph of 600 x 400, resized to 160 inside a ResNet-50, 100 calls ended at
B = 53 with five steps per k and at 68 with ten (η of 0.01 per pixel, k shrunk by 0.8).

The authors' own η for CIFAR-10, pictures of 1,024 pixels, is 120000/255, 0.46 per pixel: it drives
every chosen pixel to its bounds at once. η is given per pixel here. Resized to 256, with ten steps
per k and k halved, 100 calls ended at B = 700, 54, 64 and 58 with 0.46, 0.05, 0.01 and 0.002; the
default is 0.05. The authors start at random colours; at megapixels the k largest of millions of
random changes are never displaced again, so the default starts at the picture.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..measures import changed_pixels, round_to_8_bits
from ..protocol import Attack, Result
from .search import Search, SparsitySearch, cross_entropy, searching
from .sparse_pgd import hard_mask

PAPER = "Croce and Hein 2019, arXiv 1909.05040"
_CALLS = 500  # the authors' 5 starts of 100 steps


class Settings(NamedTuple):
    """The step, and the numbers of the search for k."""

    #: η for each pixel that may change; doubled when even all pixels failed.
    step_per_pixel: float = 0.05
    random_start: bool = False
    #: The first k, as a share of the pixels that may change.
    first_share: float = 0.002
    #: One k is given up after so many steps; twice that in every further round. No share of all
    #: calls: so a run with more of them goes on where one with fewer ends.
    steps_per_k: int = 5
    #: The next k after one that fooled, as a share of it, until one fails.
    shrink: float = 0.8


def project(change: Tensor, image: Tensor, k: int) -> Tensor:
    """The nearest change [3, H, W] of at most k pixels that keeps image + change in [0, 1]."""
    clipped = (image + change).clamp_(0, 1).sub_(image)
    saved = change.square().sum(0) - (change - clipped).square_().sum(0)
    return clipped * hard_mask(saved, k)


def attack(settings: Settings | None = None) -> Attack:
    """PGD-L0 with these settings."""
    chosen = settings or Settings()
    return searching("pgd-l0", PAPER, _CALLS, lambda search, seed: _run(search, chosen, seed))


def _run(search: Search, settings: Settings, seed: int) -> Result:
    image = search.image
    most = search.free_pixels()
    sparsity = SparsitySearch(most, round(settings.first_share * most), settings.shrink)
    patience = settings.steps_per_k
    step = settings.step_per_pixel * most
    change = torch.zeros_like(image)
    if settings.random_start:
        random = torch.Generator(image.device).manual_seed(seed)
        noise = torch.empty_like(image).uniform_(-1, 1, generator=random)
        change = search.inside(noise)
    while search.allows():
        change, pixels = _fool_with(search, change, sparsity.k, patience, step)
        if pixels is not None:
            sparsity.fooled(pixels)
        elif search.allows():
            sparsity.failed()
        if sparsity.done:
            if search.best.adversarial is None:
                step *= 2
            sparsity.reopen()
            patience *= 2
    return search.result({"k": sparsity.k, "settings": settings._asdict()})


def _fool_with(
    search: Search, change: Tensor, k: int, steps: int, step: float
) -> tuple[Tensor, int | None]:
    """Up to so many steps with k pixels: the last change, and the pixels changed if it fooled."""
    image = search.image
    change = project(change, image, k)
    for _ in range(steps):
        if not search.allows():
            break
        trial = search.try_change(
            change, lambda logits: cross_entropy(logits, search.label, search.target), k
        )
        if trial.won:
            return change, changed_pixels(round_to_8_bits(image + change), image)
        length = trial.gradient.abs().sum().clamp_(min=1e-30)  # sure pictures come near it
        change = project(change + step / length * trial.gradient, image, k)
    return change, None
