"""The default sparse attack: the paper's decode, learned by proximal steps on B.

The picture is decoded as in the paper, x' = (1 - p) I + p sigma(z) with p = soft_topk(r, k, t) over
the pixels, one weight for a pixel's three colours. How r, z, k and t are learned is not the
paper's (``paper`` is): no Adam, no lambda and no softplus. A step is one call:

1. Decode, round to 8 bits, classify, and take the gradient g of log q straight through the
   rounding. A rounded picture that fools is a result: no call is spent on checks.
2. Budget: B grows while the true class is on top and shrinks otherwise, by Newton's step for
   log q = c, between a least and a most that shrink. It stands in for the loss's slope by k.
3. A proximal step on log q + mu B from the change p (sigma(z) - I), with the price mu at which B is
   that budget. It decides which pixels change: what is worth less than the price shrinks to
   nothing, a colour at a time, and the rest grows. The result is written as sigma(z) (the change
   stretched to the edge of the colour cube), r and k = sum p, from which the operator at the same
   t gives the step back.
4. Temperature: a step against the gradient of log q + mu B by log t, through the operator. It
   changes the contrast of p at that k, and is all that the operator adds to the proximal step.

Steps shrink along half a cosine over the calls that are allowed, so that any limit is used whole.
All steps are relative: nothing is set per picture or per resolution.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fast_lapsum import soft_topk

from .measures import round_to_8_bits
from .order_statistic import log_order_statistic
from .protocol import (
    Attack,
    Best,
    Classifier,
    Limits,
    Progress,
    ProgressHook,
    Result,
    has_won,
)
from .proximal import encode, no_change, proximal_step, strength


class Settings(NamedTuple):
    """How the attack learns; a pair is the value at the first and at the last step.

    change_step and momentum were compared on one photograph only (macaw, 288 x 192, 100 calls, one
    run each): B is 5.4 with these, 6.8 with (0.3, 0.02), 7.7 with (0.15, 0.01); 8.0 with (0.3,
    0.02) and a momentum of 0.8. The rest was set by hand.
    """

    steps: int = 300  # where neither calls nor steps are limited
    first_budget: float = 5e-5  # of the number of pixels
    boundary: float = -0.75  # c: log q where the prediction changes
    growth: float = 0.3  # of log k per step at most, and until the first success
    budget_step: tuple[float, float] = (0.1, 0.01)  # of log k at least, after it
    change_step: tuple[float, float] = (0.6, 0.03)  # of the strongest changes, in [0, 1]
    temperature_step: tuple[float, float] = (0.01, 0.0)  # of log t
    momentum: float = 0.5
    strongest: int = 300  # entries of the gradient that set its scale
    patience: int | None = None  # stop after so many steps without a lower B


DEFAULT = Settings()


def attack_batch(
    classifier: Classifier,
    images: Tensor,
    labels: Sequence[int],
    targets: Sequence[int | None] | None = None,
    limits: Limits = Limits(),  # noqa: B008 - immutable
    progress: Callable[[int, Progress], None] | None = None,
    masks: Tensor | None = None,
    settings: Settings = DEFAULT,
) -> list[Result]:
    """Attack pictures of one size together; limits are per picture.

    Args:
        classifier: what is to be fooled.
        images: [N, 3, H, W] in [0, 1], rounded to 8 bits before anything else.
        labels: the true classes.
        targets: the classes to be reached; None (for all or for one) is any but the true one.
        limits: calls and steps of each picture, seconds of the whole.
        progress: called with the picture's number after each of its steps.
        masks: boolean [N, H, W] or [H, W], the pixels that may change.
        settings: how to learn.
    """
    if images.dim() != 4 or images.shape[1] != 3:
        raise ValueError(f"images must be [N, 3, H, W], got shape {tuple(images.shape)}")
    count = images.shape[0]
    wanted = [None] * count if targets is None else list(targets)
    for name, values in (("labels", labels), ("targets", wanted)):
        if len(values) != count:
            raise ValueError(f"{name} must have one entry for each of {count} pictures")
    if masks is not None:
        size = images.shape[-2:]
        if masks.dtype != torch.bool or masks.shape not in (size, (count, *size)):
            raise ValueError(
                f"masks must be boolean {tuple(size)} or {(count, *size)},"
                f" got {masks.dtype} {tuple(masks.shape)}"
            )
        masks = masks.expand(count, *size)
        if not masks.flatten(1).any(1).all():
            raise ValueError("masks must leave some pixel of every picture free, got none")
    allowed = [number for number in (limits.calls, limits.steps) if number is not None]
    steps = min(allowed) if allowed else settings.steps
    start = time.perf_counter()
    pictures = [
        _Picture(
            images[index],
            labels[index],
            wanted[index],
            None if masks is None else masks[index],
            settings,
            steps,
        )
        for index in range(count)
    ]
    for _ in range(steps):
        active = [index for index in range(count) if not pictures[index].done]
        late = limits.seconds is not None and time.perf_counter() - start >= limits.seconds
        if not active or late:
            break
        tried = torch.stack([pictures[index].tried() for index in active]).requires_grad_()
        logits = classifier.logits(tried)
        loss = torch.stack(
            [pictures[index].loss(row) for index, row in zip(active, logits, strict=True)]
        )
        (gradients,) = torch.autograd.grad(loss.sum(), tried)
        rows = zip(active, tried.detach(), logits.detach(), gradients, strict=True)
        for index, picture, row, gradient in rows:
            said = pictures[index].learn(picture, row, gradient)
            if progress is not None:
                progress(index, said)
    seconds = time.perf_counter() - start
    return [picture.result(seconds) for picture in pictures]


def run(
    classifier: Classifier,
    image: Tensor,
    label: int,
    target: int | None = None,
    limits: Limits = Limits(),  # noqa: B008 - immutable
    seed: int = 0,
    progress: ProgressHook | None = None,
    mask: Tensor | None = None,
    settings: Settings = DEFAULT,
) -> Result:
    """Attack one picture [3, H, W]. Nothing is drawn at random: every seed gives the same."""
    hook = None if progress is None else lambda _, said: progress(said)
    return attack_batch(classifier, image[None], [label], [target], limits, hook, mask, settings)[0]


class _Picture:
    """What is learned for one picture."""

    def __init__(
        self,
        image: Tensor,
        label: int,
        target: int | None,
        mask: Tensor | None,
        settings: Settings,
        steps: int,
    ) -> None:
        self.image = round_to_8_bits(image)
        self.label, self.target = label, target
        self.mask = mask
        self.settings = settings
        self.total = steps
        self.step = 0
        self.done = False
        self.best = Best(self.image)
        self.last = self.image
        self.improved_at = 0
        self.extra: dict[str, object] = {}
        pixels = image[0].numel() if mask is None else int(mask.sum())
        self.allowance = max(1.0, settings.first_budget * pixels)
        self.momentum = torch.zeros_like(self.image)
        self.k = 0.0
        self.t = 1.0
        self.price = 0.0  # mu / 3: of a unit of one colour's change, in normalised gradients
        self.change = no_change(self.image)
        self.scores = image.new_zeros(image.shape[-2:])
        self.colours = self.image
        self.weights = self.temperature = self.scores

    def tried(self) -> Tensor:
        """The rounded picture of this step; the picture itself at the first."""
        places = self.change.places
        if not len(places):
            return self.image
        self.temperature = self.image.new_tensor(self.t).requires_grad_()
        mask = None if self.mask is None else self.mask.flatten()
        self.weights = soft_topk(self.scores.flatten(), self.k, self.temperature, mask=mask)
        # The weights of all other pixels are too small to survive the rounding.
        here = self.image.flatten(1)[:, places]
        colours = self.colours.flatten(1)[:, places]
        rounded = round_to_8_bits(torch.lerp(here, colours, self.weights.detach()[places]))
        tried = self.image.clone()
        tried.flatten(1)[:, places] = rounded
        self.change = self.change._replace(values=rounded - here)
        return tried

    def loss(self, logits: Tensor) -> Tensor:
        """log q of the true class, or minus that of the target."""
        index = self.label if self.target is None else self.target
        log_q = log_order_statistic(logits, torch.tensor(index, device=logits.device))
        return log_q if self.target is None else -log_q

    def learn(self, tried: Tensor, logits: Tensor, gradient: Tensor) -> Progress:
        """One step from what the classifier said."""
        won = has_won(logits, self.label, self.target)
        spent = float(self.change.values.abs().sum(dtype=torch.float64)) / 3
        if self.best.offer(tried, won):
            self.improved_at = self.step
            self.extra = {"k": self.k, "t": self.t, "scores": self.scores, "colours": self.colours}
        self.last = tried
        self._move(gradient, won, spent, float(self.loss(logits)))
        self.step += 1
        patience = self.settings.patience
        waited = patience is not None and self.step - self.improved_at > patience
        succeeded = self.best.adversarial is not None
        self.done = self.best.budget == 0 or (waited and succeeded)
        probabilities = torch.softmax(logits, -1)
        predicted = int(probabilities.argmax())
        return Progress(
            self.step,
            self.step,
            predicted,
            float(probabilities[predicted]),
            won,
            spent,
            self.best.budget if succeeded else None,
            self.k,
            self.t,
        )

    def result(self, seconds: float) -> Result:
        """The best picture, with the scores and colours that it was decoded from."""
        found = self.best.adversarial
        picture = self.last if found is None else found
        if not self.extra:
            self.extra = {"k": self.k, "t": self.t, "scores": self.scores, "colours": self.colours}
        return Result(picture, found is not None, self.step, seconds, self.step, self.extra)

    def _move(self, gradient: Tensor, won: bool, spent: float, loss: float) -> None:
        settings = self.settings
        entries = strength(gradient, self.mask).flatten()
        scale = float(entries.topk(min(settings.strongest, len(entries))).values.mean())
        if not scale > 0:
            return  # a flat classifier: nothing to learn from this step
        keep = settings.momentum if self.step else 0.0
        self.momentum.mul_(keep).add_(gradient, alpha=(1 - keep) / scale)
        at_change = gradient.flatten(1)[:, self.change.places]
        rate = self._budget_rate(loss, float((at_change * self.change.values).sum()), won)
        goal = max(spent, 1e-3) * math.exp(rate) if self.step else self.allowance
        temperature = self._next_temperature(gradient, scale)
        step_size = self._scheduled(settings.change_step)
        self.change = proximal_step(
            self.image, self.change, self.momentum, step_size, goal, self.mask
        )
        self.price = self.change.threshold / step_size
        encoded = encode(self.image, self.change, self.t)
        self.scores, self.colours, self.k = encoded
        # The scores are those of the old temperature: the new one changes the contrast of p.
        self.t = temperature

    def _next_temperature(self, gradient: Tensor, scale: float) -> float:
        """A step of log t against the slope of log q + mu B, through the operator."""
        places = self.change.places
        if not len(places):
            return self.t
        change = self.colours.flatten(1)[:, places] - self.image.flatten(1)[:, places]
        by_weight = (gradient.flatten(1)[:, places] * change).sum(0) / scale
        by_weight += self.price * change.abs().sum(0)
        upstream = torch.zeros_like(self.weights)
        upstream[places] = by_weight
        (slope,) = torch.autograd.grad(self.weights, self.temperature, upstream)
        rate = self._scheduled(self.settings.temperature_step)
        return self.t * math.exp(-rate * float(slope.sign()))

    def _budget_rate(self, loss: float, elasticity: float, won: bool) -> float:
        """Step of log k: Newton's towards the boundary, at least the schedule's, with its sign."""
        settings = self.settings
        least = self._scheduled(settings.budget_step)
        most = max(least, settings.growth * self._scheduled((1.0, 0.0)))
        if self.best.adversarial is None:
            least = most = settings.growth
        boundary = settings.boundary if self.target is None else -settings.boundary
        needed = abs(loss - boundary) / max(abs(elasticity), 1e-12)
        size = min(max(needed, least), most)
        return -size if won else size

    def _scheduled(self, pair: tuple[float, float]) -> float:
        share = self.step / max(1, self.total - 1)
        return pair[1] + (pair[0] - pair[1]) * 0.5 * (1 + math.cos(math.pi * share))


OURS = Attack("Fast LapSum (ours)", "Fast LapSum, exact-budget adversarial examples", run)
