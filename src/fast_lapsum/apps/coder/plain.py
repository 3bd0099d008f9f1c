"""Training the paper's coder: block atoms, learned amplitude and bit depth per level.

One step: exactly k atoms by the hard mask of ``soft_topk``, their dithered values, the picture and
its residual, and one correlation of the residual with all atoms. That correlation is the whole
gradient. The values take it at the k atoms that are on. For the mask it tells what switching each
atom would do to the squared error, which is quadratic with a known curvature (an atom's squared
norm n), so it need not be the slope at one end: an atom that is off and would start from c / n,
the average of what remains of the picture, gains |c|^2 / n; one that is on with value v costs
2 v c + n v^2 to remove, or a quarter of that square once the blocks above and below it take over.
Without ``Settings.switching`` it is the slope, -2 v c. The paper's straight-through estimator has
the stored value v there for every atom; here only atoms that are on have one, and for those that
are off v is c / n as well, so that their slope is -2 |c|^2 / n.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fast_lapsum.functional import soft_topk
from fast_lapsum.selection import hard_topk_mask

from .blocks import address_bits, bounded, dither_quantise, step_size
from .code import Code
from .dictionary import Dictionary
from .finish import finish, within_budget
from .settings import Profile, Settings

_SCORE_RATE, _SCORE_MOMENTUM = 0.5, 0.5
_VALUE_RATE, _VALUE_MOMENTUM = 0.3, 0.6
_LEVEL_RATE = 0.02
_TAKEN_OVER = 0.25
_LEAST_DEPTH, _MOST_DEPTH = 1.0, 8.0  # bits per channel
_WEIGHT_LIMIT = 2.5  # tanh is within 1.4% of its bound, and the gradient alive


class PlainTrainer:
    """Scores of all atoms, their values, and amplitude and bit depth of each band."""

    def __init__(self, dictionary: Dictionary, planes: Tensor, atoms: int, settings: Settings):
        device = planes.device
        self.dictionary = dictionary
        self.planes = planes
        self.settings = settings
        self.atoms = atoms
        self.profile = Profile(device)
        self.norms = dictionary.squared_norms()
        sizes = torch.tensor(dictionary.sizes, device=device)
        self.band = torch.arange(len(sizes), device=device).repeat_interleave(sizes)
        self.places = sizes.double()
        self.generator = torch.Generator(device).manual_seed(settings.seed)
        self.price = torch.tensor(0.5, dtype=torch.float64, device=device)
        start = dictionary.start(planes)
        energy = start.square().sum(0) * self.norms
        self.scores = torch.log(energy + 1e-3).requires_grad_()
        self.score_velocity = torch.zeros_like(self.scores)
        self.on = hard_topk_mask(self.scores.detach(), atoms) > 0
        self.log_amplitude = self._start_amplitudes(start).log().requires_grad_()
        self.depth = self._start_depths().requires_grad_()
        self.optimiser = torch.optim.Adam([self.log_amplitude, self.depth], lr=_LEVEL_RATE)
        self.weights = self._weight_of(start, self.log_amplitude.detach().exp()[self.band])
        self.weight_velocity = torch.zeros_like(self.weights)
        self.remains = start * self.norms
        self.error = planes.square().sum()
        self.rate = torch.zeros((), dtype=torch.float64, device=device)

    def _start_amplitudes(self, start: Tensor) -> Tensor:
        """The 90% quantile of each band's selected magnitudes: rare large ones saturate."""
        amplitudes = []
        on = torch.split(self.on, self.dictionary.sizes)
        for band, selected in zip(
            torch.split(start.abs(), self.dictionary.sizes, 1), on, strict=True
        ):
            magnitudes = band[:, selected].flatten()
            rank = max(1, round(0.9 * magnitudes.numel()))
            found = magnitudes.kthvalue(rank).values if magnitudes.numel() else start.new_tensor(32)
            amplitudes.append(found + 1)
        return torch.stack(amplitudes)

    def _start_depths(self) -> Tensor:
        """One bit more per coarser level, whose atoms are four times as large, in the budget."""
        counts = torch.stack(
            [part.sum() for part in torch.split(self.on, self.dictionary.sizes)]
        ).double()
        level = torch.tensor([place.level for place in self.dictionary.places])
        coarser = (self.dictionary.depth - level).to(counts.device)
        choices = torch.linspace(-8, 8, 65, device=counts.device)[:, None] + coarser
        choices = choices.clamp(_LEAST_DEPTH, _MOST_DEPTH)
        within = self.counted_rate(counts, choices) <= self.settings.bits
        chosen: Tensor = choices[within.sum().clamp(min=1) - 1].float()
        return chosen

    @staticmethod
    def _weight_of(value: Tensor, amplitude: Tensor) -> Tensor:
        limit = math.tanh(_WEIGHT_LIMIT)
        return torch.atanh((value / amplitude).clamp(-limit, limit))

    def counted_rate(self, counts: Tensor, depth: Tensor) -> Tensor:
        """Bits of the addresses and of the values of bands (along the last dimension)."""
        values = self.dictionary.channels * counts * depth
        return (address_bits(counts, self.places) + values).sum(-1)

    def step(self, number: int) -> None:
        """One step of training."""
        settings = self.settings
        temperature = settings.temperature(number)
        with self.profile.operator():
            mask = soft_topk(self.scores, self.atoms, temperature, hard=settings.hard)
        index = self._support(mask.detach())
        share = mask.detach()[index]
        band, norms = self.band[index], self.norms[index]
        amplitude = self.log_amplitude.exp()[band]
        weight, velocity = self._current(index, amplitude.detach())
        value = bounded(amplitude, weight)
        width = step_size(amplitude, self.depth[band])
        noisy = dither_quantise(value, width, generator=self.generator)

        amounts = self.planes.new_zeros(self.dictionary.channels, self.dictionary.count)
        amounts[:, index] = noisy.detach() * share
        residual = self.planes - self.dictionary.synthesise(amounts)
        self.error = residual.square().sum()
        self.remains = self.dictionary.correlate(residual)
        here = self.remains[:, index]

        counts = torch.zeros_like(self.places).index_add_(0, band, share.double()).requires_grad_()
        self.optimiser.zero_grad()
        rate = self.counted_rate(counts, self.depth)
        torch.autograd.backward(rate * (self.price / settings.bits))
        torch.autograd.backward(noisy, -2 * here * share / self.error)
        assert counts.grad is not None
        assert weight.grad is not None
        change = self._change_of_error(index, noisy.detach(), here, norms) / self.error
        for part, price in zip(
            torch.split(change, self.dictionary.sizes), counts.grad.float(), strict=True
        ):
            part += price
        with self.profile.operator():
            (gradient,) = torch.autograd.grad(mask, self.scores, change * self.atoms)

        with torch.no_grad():
            self.score_velocity.mul_(_SCORE_MOMENTUM).add_(gradient)
            self.scores.add_(self.score_velocity, alpha=-_SCORE_RATE)
            # Newton in the value, with a floor where tanh is flat
            slope = (1 - torch.tanh(weight).square()).square() + 0.05
            curvature = 2 * norms * amplitude.square() * slope / self.error
            velocity = _VALUE_MOMENTUM * velocity - _VALUE_RATE * weight.grad / curvature
            self.weight_velocity[:, index] = velocity
            moved = (weight + velocity).clamp(-_WEIGHT_LIMIT, _WEIGHT_LIMIT)
            self.weights[:, index] = moved
            self.optimiser.step()
            self.log_amplitude.clamp_(0.0, 6.0)
            self.depth.clamp_(_LEAST_DEPTH, _MOST_DEPTH)
            self.rate = rate.detach()
            # The price of rate rises while the budget is exceeded, and falls while it is not.
            self.price *= torch.exp(0.3 * (self.rate / settings.bits - 1))
            self.price.clamp_(0.02, 5.0)

    def _support(self, mask: Tensor) -> Tensor:
        """Indices of the atoms that are on: k of them, known beforehand, so no GPU waits."""
        if not self.settings.hard:
            return torch.arange(mask.numel(), device=mask.device)
        ranks = torch.arange(1, self.atoms + 1, device=mask.device, dtype=torch.int32)
        return torch.searchsorted(mask.cumsum(0, dtype=torch.int32), ranks)

    def _current(self, index: Tensor, amplitude: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and their velocities at the support; atoms new to it start from what remains."""
        weight, velocity = self.weights[:, index], self.weight_velocity[:, index]
        if self.settings.hard:
            known = self.on[index]
            average = self.remains[:, index] / self.norms[index]
            weight = torch.where(known, weight, self._weight_of(average, amplitude))
            velocity = torch.where(known, velocity, 0.0)
            self.on.zero_()
            self.on[index] = True
        return weight.requires_grad_(), velocity

    def _change_of_error(self, index: Tensor, value: Tensor, here: Tensor, norms: Tensor) -> Tensor:
        """What having each atom changes in the squared error, or its slope (see above)."""
        if not self.settings.hard:
            return -2 * (value * here).sum(0)
        switching = self.settings.switching
        change = self.remains.square().sum(0).div_(self.norms).mul_(-1 if switching else -2)
        kept = _TAKEN_OVER if switching else 0.0
        change[index] = -(2 * value * here + kept * norms * value.square()).sum(0)
        return change

    def finish(self, polish: bool = True) -> tuple[Code, float]:
        """The hard, rounded code within the budget, and its counted rate."""
        scores, bits = self.scores.detach(), self.settings.bits
        on = hard_topk_mask(scores, self.atoms) > 0
        on = within_budget(scores, on, self.dictionary, bits)
        amplitudes = self.log_amplitude.detach().exp()
        values = bounded(amplitudes[self.band], self.weights)
        depths = self.depth.detach().tolist()
        return finish(
            self.dictionary, self.planes, values, on, amplitudes.tolist(), depths, bits, polish
        )

    def psnr(self) -> float:
        """PSNR of the last step in dB."""
        return 10 * math.log10(255**2 * self.planes.numel() / max(float(self.error), 1e-9))
