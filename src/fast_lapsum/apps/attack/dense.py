"""The matched-budget dense control: the paper's loss and optimiser, the change on every pixel.

With eps = k / HW below half a level, rounding to 8 bits leaves nothing of delta = eps tanh(P). Just
above it, every colour at which tanh is near its bounds changes by a whole level: where that is all
of them, B is HW / 255.
"""

from __future__ import annotations

from torch import Tensor

from .paper import DEFAULT, Settings, dense, optimise
from .protocol import Attack, Classifier, Limits, ProgressHook, Result


def run(
    classifier: Classifier,
    image: Tensor,
    label: int,
    target: int | None = None,
    limits: Limits = Limits(),  # noqa: B008 - immutable
    seed: int = 0,
    progress: ProgressHook | None = None,
    mask: Tensor | None = None,
    settings: Settings | None = None,
) -> Result:
    """Attack one picture [3, H, W] by a change of all its pixels, eps learned."""
    if settings is None:
        settings = DEFAULT._replace(first_share=2 / 255)
    return optimise(dense, classifier, image, label, target, limits, seed, progress, mask, settings)


DENSE = Attack("Dense control", "Fast LapSum, matched-budget dense control", run)
