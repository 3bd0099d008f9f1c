"""Modules over the functional interface: a soft top-k layer and its temperature schedule."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from ._arguments import check_number, check_scores
from .functional import soft_topk

ScheduleShape = Literal["exponential", "linear", "cosine"]


class SoftTopK(torch.nn.Module):
    """Exact-budget soft top-k as a layer, with a fixed or learned budget and temperature.

    A learned budget is ``num_scores * sigmoid(budget_logit)`` and a learned temperature is
    ``exp(log_temperature)``, so that every value the optimiser can reach is a legal one. The last
    threshold is kept as the warm start of the next call; it is not part of the state dict.

    Args:
        k: the budget, or where learning starts.
        temperature: the temperature, or where learning starts.
        num_scores: the row length n; needed when ``learn_k``.
        learn_k: make k a parameter, kept inside (0, num_scores).
        learn_temperature: make the temperature a parameter, kept positive.
        dim: the dimension to select along.
        largest: select the largest scores, or the smallest.
        hard: exactly k ones forward, soft gradient backward.
        keep_threshold: start each solve from the last call's threshold. It changes the speed, and
            the result by rounding at most; it helps rows of up to a thousand scores.

    Example:
        >>> layer = SoftTopK(k=2, temperature=0.1, num_scores=4, learn_k=True)
        >>> mask = layer(torch.tensor([[4.0, 3.0, 1.0, 0.0]]))
        >>> round(mask.sum().item(), 4)
        2.0
    """

    def __init__(
        self,
        k: float,
        temperature: float = 1.0,
        *,
        num_scores: int | None = None,
        learn_k: bool = False,
        learn_temperature: bool = False,
        dim: int = -1,
        largest: bool = True,
        hard: bool = False,
        keep_threshold: bool = True,
    ) -> None:
        super().__init__()
        k, temperature = check_number("k", k), check_number("temperature", temperature)
        if learn_k and hard:
            raise ValueError(
                "hard=True needs a whole k, and learn_k=True does not keep it whole: "
                "expected at most one of the two"
            )
        if learn_k and num_scores is None:
            raise ValueError("num_scores must be given when learn_k=True, got num_scores=None")
        if not 0 <= k < math.inf or (num_scores is not None and k > num_scores):
            limit = "inf)" if num_scores is None else f"{num_scores}]"
            raise ValueError(f"k must lie in [0, {limit}, got k={k}")
        if hard and k != int(k):
            raise ValueError(f"k must be a whole number for hard=True, got k={k}")
        if not 0 <= temperature < math.inf:
            raise ValueError(
                f"temperature must be finite and at least 0, got temperature={temperature}"
            )
        self.num_scores = num_scores
        self.dim, self.largest, self.hard = dim, largest, hard
        self.keep_threshold = keep_threshold
        self._fixed_k = float(k)
        self._fixed_temperature = float(temperature)
        self.budget_logit: torch.nn.Parameter | None = None
        self.log_temperature: torch.nn.Parameter | None = None
        if learn_k and num_scores is not None:
            if not 0 < k < num_scores:
                raise ValueError(
                    f"k must lie strictly inside (0, {num_scores}) to be learned, got k={k}"
                )
            self.budget_logit = torch.nn.Parameter(torch.tensor(math.log(k / (num_scores - k))))
        if learn_temperature:
            if temperature == 0:
                raise ValueError("temperature must be above 0 to be learned, got temperature=0")
            self.log_temperature = torch.nn.Parameter(torch.tensor(math.log(temperature)))
        self._last_threshold: Tensor | None = None

    @property
    def k(self) -> float | Tensor:
        """The budget: a number, or a tensor inside (0, num_scores) when it is learned."""
        if self.budget_logit is None or self.num_scores is None:
            return self._fixed_k
        # In float64 the sigmoid reaches neither 0 nor 1 before a float32 logit of 36.
        share = torch.sigmoid(self.budget_logit.to(torch.float64).clamp(-36.0, 36.0))
        return self.num_scores * share

    @property
    def temperature(self) -> float | Tensor:
        """The temperature: a number, or a positive tensor when it is learned."""
        if self.log_temperature is None:
            return self._fixed_temperature
        return self.log_temperature.clamp(-80.0, 80.0).exp()

    @temperature.setter
    def temperature(self, value: float) -> None:
        if not 0 <= value < math.inf:
            raise ValueError(f"temperature must be finite and at least 0, got temperature={value}")
        if self.log_temperature is None:
            self._fixed_temperature = float(value)
            return
        if value == 0:
            raise ValueError("temperature must be above 0 where it is learned, got temperature=0")
        with torch.no_grad():
            self.log_temperature.fill_(math.log(value))

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """The mask of ``scores``; ``mask`` marks with True the scores that take part."""
        dim = check_scores(scores, self.dim)
        if self.num_scores is not None and scores.shape[dim] != self.num_scores:
            raise ValueError(
                f"scores must have num_scores={self.num_scores} entries along dim={self.dim}, "
                f"got shape {tuple(scores.shape)}"
            )
        out, threshold = soft_topk(
            scores,
            self.k,
            self.temperature,
            dim=self.dim,
            largest=self.largest,
            mask=mask,
            hard=self.hard,
            return_threshold=True,
            warm_start=self._warm_start(scores) if self.keep_threshold else None,
        )
        if self.keep_threshold and not _under_transform():
            self._last_threshold = threshold
        return out

    def _warm_start(self, scores: Tensor) -> Tensor | None:
        last = self._last_threshold
        if last is None or last.device != scores.device:
            return None
        dim = self.dim % scores.dim()
        return last if last.shape == scores.shape[:dim] + scores.shape[dim + 1 :] else None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last_threshold": None}

    def extra_repr(self) -> str:
        """What ``print`` shows of the layer."""
        k, temperature = (torch.as_tensor(x).item() for x in (self.k, self.temperature))
        learned = [
            name
            for name, parameter in (("k", self.budget_logit), ("temperature", self.log_temperature))
            if parameter is not None
        ]
        return (
            f"k={k:g}, temperature={temperature:g}, dim={self.dim}, largest={self.largest}, "
            f"hard={self.hard}" + (f", learned={'+'.join(learned)}" if learned else "")
        )


class TemperatureSchedule:
    """Anneal the temperature of soft top-k layers from ``start`` to ``end`` over ``steps`` steps.

    The paper ramps 1 to 0.05. The layers start at ``start`` at once, each :meth:`step` sets the
    next temperature; past the last step it stays at ``end``. A layer's state dict does not hold a
    temperature that is not learned: keep the schedule's own beside it.

    Args:
        layers: one :class:`SoftTopK` or several.
        steps: the number of steps from start to end.
        start: the first temperature.
        end: the last temperature.
        shape: ``"exponential"`` (equal ratios), ``"linear"`` (equal differences) or ``"cosine"``.

    Example:
        >>> layer = SoftTopK(k=2)
        >>> schedule = TemperatureSchedule(layer, steps=2)
        >>> for _ in range(2):
        ...     schedule.step()
        >>> layer.temperature
        0.05
    """

    def __init__(
        self,
        layers: SoftTopK | list[SoftTopK],
        steps: int,
        start: float = 1.0,
        end: float = 0.05,
        shape: ScheduleShape = "exponential",
    ) -> None:
        self.layers = [layers] if isinstance(layers, torch.nn.Module) else list(layers)
        for layer in self.layers:
            if not isinstance(layer, SoftTopK):
                raise TypeError(f"layers must be SoftTopK layers, got {type(layer).__name__}")
        annealed_temperature(0, steps, start, end, shape)  # raises for a bad argument
        self.steps, self.start, self.end, self.shape = steps, start, end, shape
        self.step_count = 0
        self._apply()

    def step(self) -> None:
        """Move on by one step and set the temperature."""
        self.step_count += 1
        self._apply()

    def _apply(self) -> None:
        value = annealed_temperature(self.step_count, self.steps, self.start, self.end, self.shape)
        for layer in self.layers:
            layer.temperature = value

    def state_dict(self) -> dict[str, Any]:
        """The position in the schedule."""
        return {"step_count": self.step_count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved position."""
        self.step_count = int(state["step_count"])
        self._apply()


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
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got steps={steps}")
    if step < 0:
        raise ValueError(f"step must be at least 0, got step={step}")
    for name, value in (("start", start), ("end", end)):
        if not 0 < value < math.inf:
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


def _under_transform() -> bool:
    """Inside ``torch.func`` transforms a kept tensor would outlive the level it belongs to."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()
