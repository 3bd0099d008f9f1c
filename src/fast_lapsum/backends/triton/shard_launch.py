"""Launches of a search over ranks: each begins beside the one before, for whose end it waits."""

from __future__ import annotations

from typing import Any

import torch

from .device import can_overlap
from .step_launch import launch_steps
from .steps import Step


def launch(device: torch.device, step: Step, given: tuple[Any, ...]) -> None:
    """Launch a step whose kernel begins with :func:`team.await_last`."""
    overlap = can_overlap(device)
    options = step.options | ({"launch_pdl": True} if overlap else {})
    step = step._replace(constants=step.constants | {"OVERLAP": overlap}, options=options)
    launch_steps(device, [step], given)
