"""Training the best coder: wavelet atoms on rotated colours, one step for all, priced by context.

The atoms have norm 1 and are nearly orthogonal, so one quantisation step suits them all, and the
price of rate that goes with it is a multiple of its square. A step of training selects exactly k
atoms by the hard mask of ``soft_topk``, rounds their values, and correlates what remains of the
picture with all atoms. Held value plus correlation is what an atom would hold were it alone free;
values drift there, and the mask's gradient is what having the atom, at its best magnitude and
price, changes in error plus rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fast_lapsum.functional import soft_topk

from .dictionary import Dictionary
from .prices import Prices
from .settings import Profile, Settings

PRICE = 0.11  # of a bit by uncalibrated prices, in squared steps
_SHARPNESS = 8.0  # scores per squared step of gain, so that temperature 1 is a few per cent
_SCORE_RATE, _SCORE_MOMENTUM = 0.5, 0.5
_VALUE_RATE = 0.12  # mirrored atoms in the corners have a Gram matrix of norm 12
_PRICES_EVERY, _MEASURE_EVERY = 10, 20


def best_magnitudes(values: Tensor, prices: Prices) -> tuple[Tensor, Tensor]:
    """Gain of each atom alone, in squared steps, and the magnitude that has it."""
    size = values.abs()
    magnitude = (size + 0.5 - 0.5 * PRICE * prices.more).floor_().clamp_(min=1)
    bits = prices.more * (magnitude - 1) + prices.on
    return magnitude * (2 * size - magnitude) - PRICE * bits, magnitude


class BestTrainer:
    """Scores and values of all atoms, in units of the quantisation step."""

    def __init__(
        self,
        dictionary: Dictionary,
        planes: Tensor,
        step_size: float,
        prices: Prices,
        settings: Settings,
        measure: Callable[[Tensor], float],
    ) -> None:
        self.dictionary = dictionary
        self.planes = planes
        self.step_size = step_size
        self.prices = prices
        self.settings = settings
        self.measure = measure  # the bits of a file of these integers
        self.profile = Profile(planes.device)
        self.values = dictionary.start(planes)[0] / step_size
        gain, _ = best_magnitudes(self.values, prices)
        self.atoms = settings.atoms or max(1, int((gain > 0).sum()))
        self.scores = _SHARPNESS * torch.where(gain > 0, torch.log1p(gain), gain)
        self.scores.requires_grad_()
        self.velocity = torch.zeros_like(self.values)
        self.held = torch.zeros_like(self.values)
        self.error = planes.square().sum()
        self.rate = prices.total

    def step(self, number: int) -> None:
        """One step of training."""
        settings = self.settings
        temperature = settings.temperature(number)
        with self.profile.operator():
            mask = soft_topk(self.scores, self.atoms, temperature, hard=True)
        _, magnitude = best_magnitudes(self.values, self.prices)
        self.held = magnitude * self.values.sign() * mask.detach()
        if number % _PRICES_EVERY == 0:
            self.prices.update(self.held.abs())
            if number % _MEASURE_EVERY == _PRICES_EVERY:
                self.prices.calibrate(self.measure(self.held))
            self.rate = self.prices.total
        residual = self.planes - self.dictionary.synthesise(self.held[None] * self.step_size)
        self.error = residual.square().sum()
        free = self.dictionary.correlate(residual)[0].div_(self.step_size).add_(self.held)
        self.values.lerp_(free, _VALUE_RATE)
        change = best_magnitudes(free, self.prices)[0].neg_()
        with self.profile.operator():
            (gradient,) = torch.autograd.grad(mask, self.scores, change)
        with torch.no_grad():
            self.velocity.mul_(_SCORE_MOMENTUM).add_(gradient)
            self.scores.add_(self.velocity, alpha=-_SCORE_RATE * _SHARPNESS)

    def psnr(self) -> float:
        """PSNR of the last step in dB."""
        return 10 * math.log10(255**2 * self.planes.numel() / max(float(self.error), 1e-9))
