"""A small model to prune, and its parameters that soften takes by default."""

from __future__ import annotations

import torch

NAMES = ("0.weight", "2.weight", "5.weight")


def make_model(seed: int = 0) -> torch.nn.Sequential:
    """Layers of several kinds and scales."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(4, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.Conv2d(8, 8, 3, padding=1),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 5),
    )
    return model.double()
