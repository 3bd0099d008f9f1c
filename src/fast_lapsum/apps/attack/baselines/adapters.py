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
from ..protocol import Attack, Result
from . import sigma_zero, sparse_fool
from .search import Search, searching

_STEPS = 1000  # where nothing is limited

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

    def body(search: Search, seed: int) -> Result:
        if search.mask is not None:
            raise ValueError(f"mask must be None for {adapter.name}: it knows no regions")
        image, targeted = search.image, search.target is not None
        model = _Watched(search, adapter.tries_results)
        goal = search.label if search.target is None else search.target
        wanted = torch.tensor([goal], device=image.device)
        with torch.random.fork_rng(devices=[image.device] if image.is_cuda else []):
            torch.manual_seed(seed)
            with suppress(_OutOfLimits):
                found = adapter.call(model, image[None], wanted, targeted, search.planned)
                if not adapter.tries_results:
                    model.tries_results = True
                    model(found.detach())
        return search.result({"package": adapter.distribution})

    return searching(adapter.name, adapter.paper, _STEPS, body)


class _OutOfLimits(Exception):  # noqa: N818 - no error, the planned end
    """The limits are reached: what was found is kept already."""


class _Watched(nn.Module):
    """The classifier as a module that rounds, counts, keeps the best picture and stops."""

    def __init__(self, search: Search, tries_results: bool) -> None:
        super().__init__()
        self.model = search.classifier.model
        self.tries_results = tries_results
        self._search = search

    def forward(self, images: Tensor) -> Tensor:
        """Logits; of the rounded pictures where they may be results."""
        search = self._search
        if not search.allows(len(images)):
            raise _OutOfLimits
        if not self.tries_results:
            search.steps += 1
            return search.logits(images)
        rounded = round_to_8_bits(images)
        logits = search.logits(images + (rounded - images).detach())
        for picture, found in zip(rounded, logits.detach(), strict=True):
            search.note(picture, found)
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
