"""Modules over the functional interface: soft top-k as layers that models have."""

from .calibration import update_thresholds
from .dead_latents import AuxiliaryLatents, DeadLatents
from .gate import BudgetGate
from .layer import SoftTopK
from .router import TopKRouter
from .routing import Routing
from .running_threshold import RunningThreshold
from .schedule import BudgetSchedule, ScheduleShape, TemperatureSchedule, annealed_temperature
from .sparse_activation import BatchTopK, TopKActivation
from .sparse_attention import SparseAttentionBias
from .token_select import SelectedTokens, TokenSelect

__all__ = [
    "AuxiliaryLatents",
    "BatchTopK",
    "BudgetGate",
    "BudgetSchedule",
    "DeadLatents",
    "Routing",
    "RunningThreshold",
    "ScheduleShape",
    "SelectedTokens",
    "SoftTopK",
    "SparseAttentionBias",
    "TemperatureSchedule",
    "TokenSelect",
    "TopKActivation",
    "TopKRouter",
    "annealed_temperature",
    "update_thresholds",
]
