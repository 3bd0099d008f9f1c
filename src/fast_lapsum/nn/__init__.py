"""Modules over the functional interface: a soft top-k layer and its temperature schedule."""

from .layer import SoftTopK
from .schedule import ScheduleShape, TemperatureSchedule, annealed_temperature

__all__ = ["ScheduleShape", "SoftTopK", "TemperatureSchedule", "annealed_temperature"]
