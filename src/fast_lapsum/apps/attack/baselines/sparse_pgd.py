"""Sparse-PGD: one gradient for the colours, one for the mask (Zhong, Huang and Liu, 2024).

"Towards Efficient Training and Evaluation of Robust Models against l0 Bounded Adversarial
Perturbations", ICML 2024, arXiv 2405.05075. The change is δ = p ⊙ Π_k(sigmoid(m)): colours p and a
mask of the k pixels with the largest m. With g the gradient of the loss at image + δ, raised:

    p <- clip(p + α sign(g ⊙ s)),    m <- m + β sqrt(HW) d / |d|,
    d = s (1 - s) sum_c g_c p_c,     s = sigmoid(m),

where the colours' gradient is masked by the hard mask instead of by s in the variant with projected
gradients. m is drawn anew when its k largest have stayed the same for three steps. The loss is the
cross-entropy until the margin is under 0.5, then minus the margin.

The method is given k. It is searched here: a bracket, then bisection, the colours and the mask
going on from one k to the next. Defaults: α = β = 0.25 and three steps, as in the paper and its
code, and of the two variants projected gradients: on a photograph of 600 x 400, resized to 256
inside a ResNet-50, 100 calls of ten steps per k ended at B = 114 with them and at 302 without.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..measures import changed_pixels, round_to_8_bits
from ..protocol import Attack, Result
from .search import Search, SparsitySearch, cross_entropy, margin, searching

PAPER = "Zhong, Huang and Liu 2024, arXiv 2405.05075"
_CALLS = 300  # the paper's number of steps
_LOW_MARGIN = 0.5


class Settings(NamedTuple):
    """The paper's numbers, and those of the search for k."""

    colour_step: float = 0.25
    mask_step: float = 0.25
    patience: int = 3
    unprojected: bool = False
    random_start: bool = True
    #: The first k, as a share of the pixels that may change.
    first_share: float = 0.002
    #: One k is given up after so many steps; twice that in every further round. No share of all
    #: calls: so a run with more of them goes on where one with fewer ends.
    steps_per_k: int = 5
    #: The next k after one that fooled, as a share of it, until one fails.
    shrink: float = 0.5


def hard_mask(scores: Tensor, k: int) -> Tensor:
    """1 at the k largest of ``scores`` [H, W], else 0."""
    chosen = scores.flatten().topk(k, sorted=False).indices
    return torch.zeros_like(scores).flatten().index_fill_(0, chosen, 1).view_as(scores)


def mask_gradient(gradient: Tensor, colours: Tensor, scores: Tensor) -> Tensor:
    """d: what the loss gains from a larger m, the sigmoid's slope included."""
    soft = torch.sigmoid(scores)
    return (gradient * colours).sum(0) * soft * (1 - soft)


def attack(settings: Settings | None = None) -> Attack:
    """Sparse-PGD with these settings."""
    chosen = settings or Settings()
    return searching(
        "sparse-pgd", PAPER, _CALLS, lambda search, seed: _Run(search, chosen, seed).result()
    )


class _Run:
    def __init__(self, search: Search, settings: Settings, seed: int) -> None:
        self._search = search
        self._settings = settings
        self._random = torch.Generator(search.image.device).manual_seed(seed)
        self._scores = self._drawn_scores()
        self._colours = torch.zeros_like(search.image)
        if settings.random_start:
            noise = torch.empty_like(search.image).uniform_(-1, 1, generator=self._random)
            self._colours = self._valid(noise)

    def result(self) -> Result:
        """Search k until the limits or the bracket end it."""
        search = self._search
        most = search.free_pixels()
        sparsity = SparsitySearch(
            most, round(self._settings.first_share * most), self._settings.shrink
        )
        patience = self._settings.steps_per_k
        while search.allows():
            won = self._fool_with(sparsity.k, patience)
            if won is not None:
                sparsity.fooled(won)
            elif search.allows():
                sparsity.failed()
            if sparsity.done:
                sparsity.reopen()
                patience *= 2
        return search.result({"k": sparsity.k, "settings": self._settings._asdict()})

    def _fool_with(self, k: int, steps: int) -> int | None:
        """Up to so many steps with k pixels: the pixels changed when it fooled, or None."""
        search, settings = self._search, self._settings
        before: Tensor | None = None
        unchanged = 0
        for _ in range(steps):
            if not search.allows():
                return None
            allowed = self._scores if search.mask is None else self._masked_scores()
            hard = hard_mask(allowed, k)
            change = self._colours * hard
            trial = search.try_change(change, self._loss, k)
            if trial.won:
                rounded = round_to_8_bits(search.image + change)
                return changed_pixels(rounded, search.image)
            unchanged = unchanged + 1 if before is not None and torch.equal(before, hard) else 0
            before = hard
            self._step(trial.gradient, hard)
            if unchanged >= settings.patience:
                self._scores, before, unchanged = self._drawn_scores(), None, 0
        return None

    def _step(self, gradient: Tensor, hard: Tensor) -> None:
        settings = self._settings
        direction = mask_gradient(gradient, self._colours, self._scores)
        through = torch.sigmoid(self._scores) if settings.unprojected else hard
        moved = self._colours + settings.colour_step * (gradient * through).sign()
        self._colours = self._valid(moved)
        length = direction.norm(dtype=torch.float64)  # squares of tiny ones are 0 in float32
        if length > 0:
            scale = settings.mask_step * math.sqrt(direction.numel())
            self._scores = self._scores + direction / length.to(direction.dtype) * scale

    def _loss(self, logits: Tensor) -> Tensor:
        label, target = self._search.label, self._search.target
        missing = margin(logits, label, target)
        return -missing if missing < _LOW_MARGIN else cross_entropy(logits, label, target)

    def _drawn_scores(self) -> Tensor:
        image = self._search.image
        return torch.randn(image.shape[1:], generator=self._random, device=image.device)

    def _masked_scores(self) -> Tensor:
        assert self._search.mask is not None
        return self._scores.masked_fill(~self._search.mask, -math.inf)

    def _valid(self, colours: Tensor) -> Tensor:
        image = self._search.image
        return colours.add(image).clamp_(0, 1).sub_(image)
