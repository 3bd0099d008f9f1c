"""Modules over the functional interface: soft top-k as layers that models have."""

from .dead_latents import AuxiliaryLatents, DeadLatents
from .gate import BudgetGate
from .layer import SoftTopK
from .running_threshold import RunningThreshold
from .schedule import BudgetSchedule, ScheduleShape, TemperatureSchedule, annealed_temperature
from .sparse_activation import BatchTopK, TopKActivation

__all__ = [
    "AuxiliaryLatents",
    "BatchTopK",
    "BudgetGate",
    "BudgetSchedule",
    "DeadLatents",
    "RunningThreshold",
    "ScheduleShape",
    "SoftTopK",
    "TemperatureSchedule",
    "TopKActivation",
    "annealed_temperature",
]
