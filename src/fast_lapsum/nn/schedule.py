"""Temperatures and budgets that change while a model learns."""

from __future__ import annotations

import math
from typing import Any, Literal

from .._arguments import check_number

ScheduleShape = Literal["exponential", "linear", "cosine"]


class _Schedule:
    """One value of one layer or of several, set at every step."""

    #: The attribute of the layers.
    anneals: str

    def __init__(
        self,
        layers: Any,
        steps: int,
        start: float,
        end: float,
        shape: ScheduleShape = "exponential",
    ) -> None:
        # A list of modules has no value of its own.
        is_one = hasattr(layers, self.anneals) or not hasattr(layers, "__iter__")
        self.layers: list[Any] = [layers] if is_one else list(layers)
        if not self.layers:
            raise ValueError(f"layers must have at least one layer with a {self.anneals}, got none")
        for layer in self.layers:
            if not hasattr(layer, self.anneals):
                raise TypeError(
                    f"layers must have a {self.anneals} that can be set, as SoftTopK layers do, "
                    f"got {type(layer).__name__}"
                )
        annealed_temperature(0, steps, start, end, shape)  # raises for a bad argument
        self.steps, self.start, self.end, self.shape = steps, start, end, shape
        self.step_count = 0
        self._apply()

    def step(self) -> None:
        """Move on by one step and set the value."""
        self.step_count += 1
        self._apply()

    def _apply(self) -> None:
        value = annealed_temperature(self.step_count, self.steps, self.start, self.end, self.shape)
        for layer in self.layers:
            setattr(layer, self.anneals, value)

    def state_dict(self) -> dict[str, Any]:
        """The position in the schedule."""
        return {"step_count": self.step_count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved position."""
        if "step_count" not in state:
            raise ValueError(f"state must have a step_count, got {sorted(state)}")
        self.step_count = int(state["step_count"])
        self._apply()


class TemperatureSchedule(_Schedule):
    """Anneal the temperature of soft top-k layers from ``start`` to ``end`` over ``steps`` steps.

    The paper ramps 1 to 0.05. The layers start at ``start`` at once, each :meth:`step` sets the
    next temperature; past the last step it stays at ``end``. A layer's state dict holds the
    temperature, and :meth:`state_dict` here the position in the schedule.

    Args:
        layers: one layer with a temperature, or several; what :func:`fast_lapsum.prune.soften`
            gives has one, too.
        steps: the number of steps from start to end.
        start: the first temperature.
        end: the last temperature.
        shape: ``"exponential"`` (equal ratios), ``"linear"`` (equal differences) or ``"cosine"``.

    Example:
        >>> from fast_lapsum.nn import SoftTopK
        >>> layer = SoftTopK(k=2)
        >>> schedule = TemperatureSchedule(layer, steps=2)
        >>> for _ in range(2):
        ...     schedule.step()
        >>> layer.temperature
        0.05
    """

    anneals = "temperature"

    def __init__(
        self,
        layers: Any,
        steps: int,
        start: float = 1.0,
        end: float = 0.05,
        shape: ScheduleShape = "exponential",
    ) -> None:
        super().__init__(layers, steps, start, end, shape)


class BudgetSchedule(_Schedule):
    """Anneal the budget k of layers from ``start`` to ``end`` over ``steps`` steps.

    Sparse autoencoders start with many latents and end with few. Everything else is as in
    :class:`TemperatureSchedule`.

    Example:
        >>> from fast_lapsum.nn import BatchTopK
        >>> layer = BatchTopK(k=64)
        >>> schedule = BudgetSchedule(layer, steps=2, start=256, end=64)
        >>> layer.k
        256.0
        >>> schedule.step()
        >>> layer.k
        128.0
    """

    anneals = "k"


def annealed_temperature(
    step: int,
    steps: int,
    start: float = 1.0,
    end: float = 0.05,
    shape: ScheduleShape = "exponential",
) -> float:
    """The temperature at ``step`` of a schedule of ``steps`` steps from ``start`` to ``end``.

    Example:
        >>> [round(annealed_temperature(step, 2, 1.0, 0.25), 3) for step in range(4)]
        [1.0, 0.5, 0.25, 0.25]
    """
    for name, count in (("step", step), ("steps", steps)):
        if check_number(name, count) % 1 != 0:
            raise ValueError(f"{name} must be a whole number, got {name}={count}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got steps={steps}")
    if step < 0:
        raise ValueError(f"step must be at least 0, got step={step}")
    for name, value in (("start", start), ("end", end)):
        if not 0 < check_number(name, value) < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {name}={value}")
    if shape not in ("exponential", "linear", "cosine"):
        raise ValueError(f"shape must be 'exponential', 'linear' or 'cosine', got shape={shape!r}")
    done = min(step / steps, 1.0)
    if done == 1.0:
        return end
    if shape == "exponential":
        return start * math.pow(end / start, done)
    if shape == "linear":
        return start + (end - start) * done
    return end + (start - end) * (1 + math.cos(math.pi * done)) / 2
