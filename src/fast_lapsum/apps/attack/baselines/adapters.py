"""Other people's implementations, where they are installed: to check ours against.

σ-zero of ``adv-lib``, the l0 attack of ``foolbox`` (FMN, Pintor et al., arXiv 2102.12827) and
SparseFool of ``torchattacks``. Each is handed a model that counts, rounds every picture to 8 bits
(the gradient goes straight through), keeps the best and stops at the limits, so their rows compare.
They know no region masks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..measures import round_to_8_bits
from ..protocol import Attack, Best, Classifier, Limits, Meter, ProgressHook, Result, has_won
from . import sigma_zero, sparse_fool

_STEPS = 1000

# (model, images [1, 3, H, W], labels [1], targeted, steps) -> pictures, or whatever it returns
Call = Callable[[nn.Module, Tensor, Tensor, bool, int], Any]


class Adapter(NamedTuple):
    """An attack in somebody else's package."""

    name: str
    paper: str
    module: str
    #: What pip calls it.
    distribution: str
    call: Call
    #: Whether every picture it tries may be its result; otherwise only the one it returns.
    tries_results: bool = True


def installed() -> list[Adapter]:
    """The adapters whose packages are here."""
    return [one for one in ADAPTERS if find_spec(one.module) is not None]


def attack(adapter: Adapter) -> Attack:
    """The adapter as an attack; its package is imported when it runs."""

    def run(
        classifier: Classifier,
        image: Tensor,
        label: int,
        target: int | None,
        limits: Limits,
        seed: int,
        progress: ProgressHook | None,
        mask: Tensor | None,
    ) -> Result:
        if mask is not None:
            raise ValueError(f"mask must be None for {adapter.name}: it knows no regions")
        meter, best = Meter(classifier, limits), Best(image)
        model = _Watched(classifier, image, (label, target), meter, best, adapter.tries_results)
        wanted = torch.tensor([label if target is None else target], device=image.device)
        given = [n for n in (limits.calls, limits.steps) if n is not None]
        with torch.random.fork_rng(devices=[image.device] if image.is_cuda else []):
            torch.manual_seed(seed)
            with suppress(_OutOfLimits):
                found = adapter.call(
                    model, image[None], wanted, target is not None, min(given, default=_STEPS)
                )
                if not adapter.tries_results:
                    model.tries_results = True
                    model(found.detach())
        return best.result(model.last, meter, model.steps, {"package": adapter.distribution})

    return Attack(adapter.name, adapter.paper, run)


class _OutOfLimits(Exception):  # noqa: N818 - no error, the planned end
    """The limits are reached: what was found is kept already."""


class _Watched(nn.Module):
    """The classifier as a module that rounds, counts, keeps the best picture and stops."""

    def __init__(
        self,
        classifier: Classifier,
        image: Tensor,
        goal: tuple[int, int | None],
        meter: Meter,
        best: Best,
        tries_results: bool,
    ) -> None:
        super().__init__()
        self.model = classifier.model
        self.last = image
        self.steps = 0
        self._classifier = classifier
        self.tries_results = tries_results
        self._goal = goal
        self._meter = meter
        self._best = best

    def forward(self, images: Tensor) -> Tensor:
        """Logits; of the rounded pictures where they may be results."""
        if not self._meter.allows(len(images), self.steps):
            raise _OutOfLimits
        self.steps += 1
        if not self.tries_results:
            return self._classifier.logits(images)
        rounded = round_to_8_bits(images)
        logits = self._classifier.logits(images + (rounded - images).detach())
        for picture, found in zip(rounded, logits.detach(), strict=True):
            self._best.offer(picture, has_won(found, *self._goal))
        self.last = rounded[-1]
        return logits


def _adv_lib(model: nn.Module, images: Tensor, labels: Tensor, targeted: bool, steps: int) -> Any:
    return import_module("adv_lib.attacks").sigma_zero(
        model, images, labels, num_steps=steps, targeted=targeted
    )


def _foolbox(model: nn.Module, images: Tensor, labels: Tensor, targeted: bool, steps: int) -> Any:
    foolbox = import_module("foolbox")
    wrapped = foolbox.PyTorchModel(model.eval(), bounds=(0, 1), device=images.device)
    kind = "TargetedMisclassification" if targeted else "Misclassification"
    goal = getattr(foolbox.criteria, kind)(labels)
    return foolbox.attacks.L0FMNAttack(steps=steps)(wrapped, images, goal, epsilons=None)


def _torchattacks(
    model: nn.Module, images: Tensor, labels: Tensor, targeted: bool, steps: int
) -> Any:
    if targeted:
        raise ValueError("target must be None for torchattacks' SparseFool: it takes none")
    return import_module("torchattacks").SparseFool(model.eval(), steps=20)(images, labels)


ADAPTERS = (
    Adapter("sigma-zero (adv-lib)", sigma_zero.PAPER, "adv_lib", "adv-lib", _adv_lib),
    Adapter(
        "fmn-l0 (foolbox)", "Pintor et al. 2021, arXiv 2102.12827", "foolbox", "foolbox", _foolbox
    ),
    Adapter(
        "sparse-fool (torchattacks)",
        sparse_fool.PAPER,
        "torchattacks",
        "torchattacks",
        _torchattacks,
        tries_results=False,  # DeepFool's pictures on the way change every pixel
    ),
)
