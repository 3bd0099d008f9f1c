"""The default sparse attack: the paper's decode, with a price on B beside the price on k.

    x' = (1 - p) I + p sigma(z),  p = soft_topk(r, k, t)
    loss = lambda k / HW + mu B + softplus_T(log q - c)

z, k and t are learned from slopes and r is summed up from gains, but not by Adam: a step takes the
slope of log q where the rounded picture is, and moves each of the four in the way that suits it.

1. One call: decode, round to 8 bits, classify, and the gradient of log q straight through the
   rounding. A rounded picture that fools is a result: no call is spent on checks.
2. Colours z: a proximal step on log q + mu B from the change that was tried. The price mu is what
   makes B the sum that the boundary log q = c asks for: more while the true class is on top, less
   otherwise, by Newton's step between a least and a most that shrink. It takes lambda's place in
   keeping the softplus active, so that nothing has to be set per picture.
3. Scores r: a leaky sum of how much each pixel would gain by its next colours, in units of the
   price; no gradient goes through the operator to them. Which pixels change is decided twice: the
   proximal step leaves most without another colour, and of those that have one the operator's p
   says which are shown, and how much. Pixels that only noise brought forward for one step stay out.
4. Budget k and temperature t: steps of log k and log t against their slopes of the loss, which the
   operator's backward pass gives. A pixel's price lambda / HW is that of half a level of one
   colour: less would not survive the rounding. Until the picture fools k grows.

Steps shrink along half a cosine over the calls that are allowed, so that any limit is used whole.
All steps are relative: nothing is set per picture or per resolution.

With calls enough and no target, that is done several times (:mod:`.race`): for single classes, with
few calls each, and then for the one that was reached with the lowest B. log q is minus that of the
class gone for then, and B grows until any class but the true one is on top.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fast_lapsum import soft_topk

from .measures import round_to_8_bits
from .order_statistic import log_order_statistic
from .protocol import (
    LEAD,
    Attack,
    Best,
    Classifier,
    Limits,
    Progress,
    ProgressHook,
    Result,
    check_goal,
    lead,
)
from .proximal import no_change, proximal_step, strength
from .race import Heat, Race


class Settings(NamedTuple):
    """How the attack learns; a pair is the value at the first and at the last step."""

    steps: int = 300  # where neither calls nor steps are limited
    first_change: float = 5e-5  # B of the first step, as a share of the pixels
    first_share: float = 0.01  # k of the first step, likewise
    boundary: float = -0.75  # c: log q where the prediction changes
    growth: float = 0.3  # of log B per step at most, and until the first success
    budget_step: tuple[float, float] = (0.1, 0.01)  # of log B at least, after it
    colour_step: tuple[float, float] = (0.6, 0.03)  # of the strongest changes, in [0, 1]
    k_step: tuple[float, float] = (0.05, 0.01)  # of log k, for 100 calls
    temperature: tuple[float, float] = (0.05, 0.01)  # t, before what is learned
    temperature_step: tuple[float, float] = (0.02, 0.0)  # of log t
    momentum: float = 0.5  # of the gradient
    memory: float = 0.5  # of the scores
    levels_per_pixel: float = 0.5  # lambda: what a pixel costs, in levels of one colour
    strongest: int = 300  # entries of the gradient that set its scale
    patience: int | None = None  # an attempt stops after so many steps without a lower B
    classes: int = 12  # that are gone for in turn, at most; 3 or less: none is
    operator: bool = True  # without it every pixel that has a colour is shown, whole


DEFAULT = Settings()
_BEST_SCORE = 3.0  # in units of the price: more says nothing


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
    if not ((images >= 0) & (images <= 1)).all():
        lowest, highest = images.aminmax()
        raise ValueError(f"images must be in [0, 1], got {lowest:.4g} to {highest:.4g}")
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
    heats = _heats(steps, settings.classes)
    pictures = []
    for index in range(count):
        task = images[index], labels[index], wanted[index], None if masks is None else masks[index]
        begin = partial(_Attempt, *task, settings)
        pictures.append(Race(begin, labels[index], wanted[index], steps, heats))
    for _ in range(steps):
        active = [index for index in range(count) if not pictures[index].done]
        late = limits.seconds is not None and time.perf_counter() - start >= limits.seconds
        if not active or late:
            break
        tried = torch.stack([pictures[index].tried() for index in active]).requires_grad_()
        logits = classifier.logits(tried)
        for index in active:
            check_goal(logits.shape[-1], labels[index], wanted[index])
        log_q = torch.stack(
            [pictures[index].log_q(row) for index, row in zip(active, logits, strict=True)]
        )
        (gradients,) = torch.autograd.grad(log_q.sum(), tried)
        rows = zip(active, tried.detach(), logits.detach(), log_q.detach(), gradients, strict=True)
        for index, *said in rows:
            told = pictures[index].learn(*said)
            if progress is not None:
                progress(index, told)
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
    if image.dim() != 3:
        raise ValueError(f"image must be [3, H, W], got shape {tuple(image.shape)}")
    hook = None if progress is None else lambda _, said: progress(said)
    return attack_batch(classifier, image[None], [label], [target], limits, hook, mask, settings)[0]


def _heats(steps: int, classes: int) -> tuple[Heat, ...]:
    """How the class is chosen; more than half of few steps, because nothing else is worth as much.

    Sixteen steps are the least that reach most classes at all.
    """
    first = Heat(1 + min(classes, steps // 50), 16)
    second = Heat(3, steps // 10)
    if first.aims <= 1 + second.aims:
        return ()
    return (first, second) if 2 * second.steps >= 3 * first.steps else (first,)


class _Attempt:
    """What is learned for one picture, to raise log q of the class ``aim`` or to lower the label's.

    A picture that fools counts whichever class it is taken for, where there is no target.
    """

    def __init__(
        self,
        image: Tensor,
        label: int,
        target: int | None,
        mask: Tensor | None,
        settings: Settings,
        aim: int | None,
        steps: int,
    ) -> None:
        self.image = round_to_8_bits(image)
        self.index = torch.tensor(label if aim is None else aim, device=image.device)
        self.aim = aim
        self.label, self.target = label, target
        self.mask = mask
        self.settings = settings
        self.total = steps
        self.step = 0
        self.done = False
        self.best = Best(self.image)
        self.last = self.image
        self.improved_at = 0
        self.pixels = image[0].numel() if mask is None else int(mask.sum())
        self.goal = max(1.0, settings.first_change * self.pixels)  # B of the next step
        self.k = max(1.0, settings.first_share * self.pixels)
        self.sharpening = 0.0  # what of log t is learned
        self.momentum = torch.zeros_like(self.image)
        self.price = 0.0  # mu / 3: of a unit of one colour's change, in normalised gradients
        self.colours = no_change(self.image)  # sigma(z) - I
        self.change = self.colours.values  # what of it was tried
        self.scores: Tensor | None = None
        self.kept: dict[str, object] = {}

    @property
    def lowest(self) -> float:
        """B of the best picture so far, inf while none fools."""
        return self.best.budget

    @property
    def t(self) -> float:
        """The temperature of this step."""
        return self._scheduled(self.settings.temperature) * math.exp(self.sharpening)

    def tried(self) -> Tensor:
        """The rounded picture of this step; the picture itself at the first."""
        if self.scores is None:
            return self.image
        places = self.colours.places
        here = self.image.flatten(1)[:, places]
        changed = self.colours.values
        if self.settings.operator:
            # p, with a graph back to k and t.
            number = self.image.new_tensor
            self.budgets = (number(self.k).requires_grad_(), number(self.t).requires_grad_())
            mask = None if self.mask is None else self.mask.flatten()
            self.weights = soft_topk(self.scores, *self.budgets, mask=mask)
            changed = changed * self.weights.detach()[places]
        rounded = round_to_8_bits(here + changed)
        tried = self.image.clone()
        tried.flatten(1)[:, places] = rounded
        self.change = rounded - here
        return tried

    def log_q(self, logits: Tensor) -> Tensor:
        """Of the true class, or minus that of the aim: to be lowered."""
        log_q = log_order_statistic(logits, self.index)
        return log_q if self.aim is None else -log_q

    def learn(self, tried: Tensor, logits: Tensor, log_q: Tensor, gradient: Tensor) -> Progress:
        """One step from what the classifier said."""
        settings = self.settings
        entries = strength(gradient, self.mask).flatten()
        scale = entries.topk(min(settings.strongest, len(entries))).values.mean()
        at_change = gradient.flatten(1)[:, self.colours.places]
        by_k, by_t = self._slopes(at_change / scale)
        probability, predicted = torch.softmax(logits, -1).max(-1)
        # Everything that the host has to know, at once: to wait for the device takes time.
        numbers = (
            log_q,
            lead(logits, self.label, self.target),
            predicted,
            probability,
            scale,
            (at_change * self.change).sum(),
            self.change.abs().sum(dtype=torch.float64) / 3,
            by_k,
            by_t,
        )
        loss, ahead, top, confidence, size, elasticity, spent, slope_k, slope_t = torch.stack(
            [number.double() for number in numbers]
        ).tolist()
        won = ahead >= LEAD
        if self.best.offer(tried, won, spent):
            self.improved_at = self.step
            self.kept = self._parameters()
        # A copy: what is given is a view, and would keep the whole stack.
        self.last = self.image if self.best.adversarial is not None else tried.clone()
        tried_k, tried_t = (self.k, self.t) if settings.operator else (None, None)
        if size > 0:  # else the classifier is flat: nothing to learn from this step
            self._move(gradient, won, spent, loss, size, elasticity, slope_k, slope_t)
        self.step += 1
        succeeded = self.best.adversarial is not None
        waited = settings.patience is not None and self.step - self.improved_at > settings.patience
        self.done = self.best.budget == 0 or (waited and succeeded)
        return Progress(
            self.step,
            self.step,
            int(top),
            confidence,
            won,
            spent,
            self.best.budget if succeeded else None,
            tried_k,
            tried_t,
        )

    def result(self, seconds: float) -> Result:
        """The best picture, with the scores and colours that it was decoded from."""
        found = self.best.adversarial
        picture = self.last if found is None else found
        kept = self.kept or self._parameters()
        return Result(picture, found is not None, self.step, seconds, self.step, kept)

    def _parameters(self) -> dict[str, object]:
        colours = self.image.clone()
        colours.flatten(1)[:, self.colours.places] += self.colours.values
        scores = torch.zeros_like(self.image[0]) if self.scores is None else self.scores.clone()
        learned: dict[str, object] = {"scores": scores.view_as(self.image[0]), "colours": colours}
        learned["aim"] = self.aim
        return learned | {"k": self.k, "t": self.t} if self.settings.operator else learned

    def _slopes(self, at_change: Tensor) -> tuple[Tensor, Tensor]:
        """Of log q + mu B by k and by t, through the operator."""
        if self.scores is None or not self.settings.operator:
            return self.image.new_zeros(()), self.image.new_zeros(())
        upstream = torch.zeros_like(self.weights)
        values = self.colours.values
        upstream[self.colours.places] = (at_change * values + self.price * values.abs()).sum(0)
        by_k, by_t = torch.autograd.grad(self.weights, self.budgets, upstream)
        return by_k, by_t

    def _move(
        self,
        gradient: Tensor,
        won: bool,
        spent: float,
        loss: float,
        size: float,
        elasticity: float,
        slope_k: float,
        slope_t: float,
    ) -> None:
        settings = self.settings
        is_first = self.scores is None
        if not is_first:
            self._move_budgets(slope_k, slope_t, is_held_back=spent < 0.7 * self.goal)
            rate = self._budget_rate(loss, elasticity, won)
            # What the operator or the rounding held back is asked for again, within reason.
            asked = min(max(self.goal, spent), 2 * spent + 0.01)
            self.goal = asked * math.exp(rate)
        keep = 0.0 if is_first else settings.momentum
        self.momentum.mul_(keep).add_(gradient, alpha=(1 - keep) / size)
        step = self._scheduled(settings.colour_step)
        tried = self.colours._replace(values=self.change)
        self.colours = proximal_step(self.image, tried, self.momentum, step, self.goal, self.mask)
        self.price = self.colours.threshold / step
        gains = self.colours.potential.flatten().div_(max(self.colours.threshold, 1e-30))
        gains.sub_(1).clamp_(max=_BEST_SCORE)
        if self.scores is None:
            self.scores = gains
        else:
            self.scores = torch.lerp(gains, self.scores, settings.memory)

    def _move_budgets(self, slope_k: float, slope_t: float, is_held_back: bool) -> None:
        settings = self.settings
        # As far over all steps, however many: k must not be there before the colours are.
        rate = self._scheduled(settings.k_step) * 100 / max(100, self.total)
        per_pixel = settings.levels_per_pixel / 255 * self.price
        grows = self.best.adversarial is None or slope_k + per_pixel < 0
        if self.best.adversarial is None and is_held_back:
            rate = settings.growth  # so few pixels cannot change by as much as B allows
        k = self.k * math.exp(rate if grows else -rate)
        self.k = min(max(k, 1.0), max(1.0, 0.5 * self.pixels))
        # By no more than a factor of three away from the schedule.
        rate = math.copysign(self._scheduled(settings.temperature_step), -slope_t)
        self.sharpening = min(max(self.sharpening + rate, -1.1), 1.1)

    def _budget_rate(self, loss: float, elasticity: float, won: bool) -> float:
        """Step of log B: Newton's towards the boundary, at least the schedule's, with its sign."""
        settings = self.settings
        least = self._scheduled(settings.budget_step)
        most = max(least, settings.growth * self._scheduled((1.0, 0.0)))
        if self.best.adversarial is None:
            least = most = settings.growth
        boundary = settings.boundary if self.aim is None else -settings.boundary
        needed = abs(loss - boundary) / max(abs(elasticity), 1e-12)
        size = min(max(needed, least), most)
        return -size if won else size

    def _scheduled(self, pair: tuple[float, float]) -> float:
        share = min(1.0, self.step / max(1, self.total - 1))
        return pair[1] + (pair[0] - pair[1]) * 0.5 * (1 + math.cos(math.pi * share))


OURS = Attack("Fast LapSum (ours)", "Fast LapSum, exact-budget adversarial examples", run)
