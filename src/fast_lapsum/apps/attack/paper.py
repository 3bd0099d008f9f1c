"""The attack as the paper states it: Adam on r, z, k and t, and its dense control.

    x' = (1 - p) I + p sigma(z),  p = soft_topk(r, k, t)
    loss = lambda k / HW + softplus_T(log q - c),  c = -2

The paper gives no lambda, T, learning rates or starts; those of ``Settings`` are this package's.
No lambda serves every picture: the hinge is worth 2 at most, so that a picture whose k / HW has to
be above 2 / lambda is never fooled, and where much less would do a small lambda leaves k as it is.
So k has no price while the picture does not fool, and lambda is so many units of log q for the k
that fooled first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fast_lapsum import soft_topk

from .measures import budget, round_to_8_bits
from .order_statistic import log_order_statistic
from .protocol import (
    Attack,
    Best,
    Classifier,
    Limits,
    Meter,
    Progress,
    ProgressHook,
    Result,
    check_goal,
    has_won,
)


class Settings(NamedTuple):
    """What the paper leaves open, c apart."""

    steps: int = 300  # where neither calls, steps nor seconds are limited
    price: float = 30.0  # lambda k / HW at the first k that fools, in units of log q
    target_log_q: float = -2.0  # c
    sharpness: float = 0.1  # T: softplus_T(v) = T softplus(v / T)
    first_share: float = 1e-3  # k / HW at the start
    first_temperature: float = 0.2
    noise: float = 1.0  # standard deviation of r at the start
    score_rate: float = 0.3
    colour_rate: float = 1.0
    budget_rate: float = 0.05  # of log k and log t
    dense_rate: float = 0.3  # of P, the dense control's


DEFAULT = Settings()
_EDGE = 1e-3  # colours of 0 and 1 have no logit


class _Learned(NamedTuple):
    """Parameters in groups of one learning rate, and the picture they decode to."""

    groups: list[dict[str, object]]
    decode: Callable[[], Tensor]
    log_k: Tensor
    extra: Callable[[], dict[str, object]]


def sparse(image: Tensor, mask: Tensor | None, seed: int, settings: Settings) -> _Learned:
    """The paper's decode."""
    generator = torch.Generator().manual_seed(seed)
    pixels = image[0].numel()
    noise = settings.noise * torch.randn(pixels, generator=generator)
    scores = noise.to(image).requires_grad_()
    # The edge is kept as an offset, so that x' is the picture itself at step zero.
    inner = image.clamp(_EDGE, 1 - _EDGE)
    offset = image - inner
    colour_logits = torch.logit(inner).requires_grad_()
    log_k = _log_budget(image, mask, settings)
    log_t = image.new_tensor(math.log(settings.first_temperature)).requires_grad_()
    flat_mask = None if mask is None else mask.flatten()

    def colours() -> Tensor:
        return (torch.sigmoid(colour_logits) + offset).clamp(0, 1)

    def decode() -> Tensor:
        p = soft_topk(scores, log_k.exp(), log_t.exp(), mask=flat_mask)
        return torch.lerp(image, colours(), p.view(image.shape[1:]))

    def extra() -> dict[str, object]:
        return {
            "k": float(log_k.detach().exp()),
            "t": float(log_t.detach().exp()),
            "scores": scores.detach().view(image.shape[1:]).clone(),
            "colours": colours().detach(),
        }

    groups: list[dict[str, object]] = [
        {"params": [scores], "lr": settings.score_rate},
        {"params": [colour_logits], "lr": settings.colour_rate},
        {"params": [log_k, log_t], "lr": settings.budget_rate},
    ]
    return _Learned(groups, decode, log_k, extra)


def dense(image: Tensor, mask: Tensor | None, seed: int, settings: Settings) -> _Learned:
    """The control: the same budget over all pixels, delta = eps tanh(P), eps = k / HW."""
    generator = torch.Generator().manual_seed(seed)
    start = 0.1 * torch.randn(image.shape, generator=generator)
    field = start.to(image).requires_grad_()
    log_k = _log_budget(image, mask, settings)
    pixels = image[0].numel() if mask is None else int(mask.sum())

    def decode() -> Tensor:
        change = log_k.exp() / pixels * torch.tanh(field)
        return (image + (change if mask is None else change * mask)).clamp(0, 1)

    groups: list[dict[str, object]] = [
        {"params": [field], "lr": settings.dense_rate},
        {"params": [log_k], "lr": settings.budget_rate},
    ]
    return _Learned(groups, decode, log_k, lambda: {"k": float(log_k.detach().exp())})


def _log_budget(image: Tensor, mask: Tensor | None, settings: Settings) -> Tensor:
    pixels = image[0].numel() if mask is None else int(mask.sum())
    return image.new_tensor(math.log(max(1.0, settings.first_share * pixels))).requires_grad_()


def optimise(
    learned: Callable[[Tensor, Tensor | None, int, Settings], _Learned],
    classifier: Classifier,
    image: Tensor,
    label: int,
    target: int | None,
    limits: Limits,
    seed: int,
    progress: ProgressHook | None,
    mask: Tensor | None,
    settings: Settings,
) -> Result:
    """Adam on the paper's loss; the rounded picture is what the classifier sees, every step."""
    image = round_to_8_bits(image)
    pixels = image[0].numel() if mask is None else int(mask.sum())
    model = learned(image, mask, seed, settings)
    optimiser = torch.optim.Adam(model.groups, eps=1e-20)
    index = torch.tensor([label if target is None else target], device=image.device)
    meter, best, step, kept = Meter(classifier, limits), Best(image), 0, model.extra()
    last, first_k = image, 0.0
    unlimited = limits.calls is None and limits.steps is None and limits.seconds is None
    while meter.allows(1, step) and not (unlimited and step >= settings.steps):
        decoded = model.decode()
        last = round_to_8_bits(decoded)
        logits = classifier.logits((last + decoded - decoded.detach())[None])
        check_goal(logits.shape[-1], label, target)
        log_q = log_order_statistic(logits, index)[0]
        over = log_q - settings.target_log_q if target is None else -1.0 - log_q
        hinge = settings.sharpness * F.softplus(over / settings.sharpness)
        won = has_won(logits[0].detach(), label, target)
        k = model.log_k.exp()
        if won and first_k == 0:
            first_k = float(k.detach())
        loss = settings.price * k / first_k + hinge if won else hinge
        if best.offer(last, won):
            kept = model.extra()
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        with torch.no_grad():
            model.log_k.clamp_(math.log(1e-2), math.log(0.999 * pixels))
        step += 1
        if progress is not None:
            now = model.extra()
            probabilities = torch.softmax(logits[0].detach(), -1)
            predicted = int(probabilities.argmax())
            told_k, told_t = now["k"], now.get("t")
            progress(
                Progress(
                    step,
                    meter.calls,
                    predicted,
                    float(probabilities[predicted]),
                    won,
                    budget(last, image),
                    best.budget if best.adversarial is not None else None,
                    told_k if isinstance(told_k, float) else None,
                    told_t if isinstance(told_t, float) else None,
                )
            )
        if best.budget == 0:
            break
    return best.result(last, meter, step, kept)


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
    """Attack one picture [3, H, W] by the paper's recipe."""
    return optimise(
        sparse, classifier, image, label, target, limits, seed, progress, mask, settings
    )


PAPER = Attack(
    "Fast LapSum (paper's recipe)", "Fast LapSum, exact-budget adversarial examples", run
)
