"""The threshold that stands in for a budget where scores come one by one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .._arguments import check_number
from ..backends.common import row_dtype
from ..functional import threshold as solve_threshold
from .budgeted import check_tensor, whole_budget
from .kept import Keeping, is_traced
from .rank_sums import sums

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

#: Where the setting of a threshold changes by a share x from batch to batch, this many divided by x
#: count: what they lag behind is then a hundredth of the budget.
_BATCHES_PER_CHANGE = 0.01
#: More batches than there will be.
_MANY = 2.0**31


class _Setting(NamedTuple):
    """The number in the buffer of the setting, known without asking its device."""

    value: float | Tensor
    buffer: Tensor
    version: int

    @staticmethod
    def of(value: float | Tensor, buffer: Tensor) -> _Setting:
        return _Setting(value, buffer, buffer._version)

    def holds(self, value: float | Tensor, buffer: Tensor) -> bool:
        """Whether the buffer is as it was, and has this number."""
        if isinstance(value, Tensor) or buffer is not self.buffer or buffer.is_inference():
            return False
        return value == self.value and buffer._version == self.version


class RunningThreshold(Keeping):
    """A threshold b over which lie, on average, as many scores as budgets have asked for.

    A batch has its own threshold, and the mean of those is not b: counts fall steeply with the
    threshold, so batches with large scores are over-represented in the count at the mean. Counts
    are averaged here instead. Each batch moves b by its miss, the number of scores over b less the
    budget, in the measure of how far b has to move for such a miss. So b stands still only where
    the misses of batches cancel out, which is where the budget is kept. Misses of one sign show
    that scores drift, and let the newest batch count more.

    Values are float32 whatever the dtype of the scores, and float64 after ``double()``: scores that
    differ by less than float32 can tell need that. Before the first batch the threshold is NaN.

    Args:
        shape: one threshold, or several of this shape.
        momentum: the weight of the newest batch, as in :class:`torch.nn.BatchNorm1d`; the first
            batches are averaged. None averages over all.

    Example:
        >>> running = RunningThreshold()
        >>> running.update(torch.tensor([[4.0, 1.0, 0.0], [3.0, 2.0, 5.0]]), budget=3)
        >>> running.threshold
        tensor(2.)
    """

    threshold: Tensor
    mean_miss: Tensor
    mean_size: Tensor
    mean_distance: Tensor
    num_batches: Tensor
    setting: Tensor
    _last_setting: _Setting | None = None

    def __init__(self, shape: tuple[int, ...] = (), momentum: float | None = 0.01) -> None:
        super().__init__()
        self.momentum = checked_momentum(momentum)
        self.register_buffer("threshold", torch.full(shape, math.nan, dtype=torch.float32))
        for name in ("mean_miss", "mean_size", "mean_distance"):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float32))
        self.register_buffer("num_batches", torch.zeros(shape, dtype=torch.int64))
        self.register_buffer("setting", torch.tensor(math.nan, dtype=torch.float32))

    def reset(self) -> None:
        """Forget all batches."""
        self.threshold.fill_(math.nan)
        self.setting.fill_(math.nan)
        for kept in (self.mean_miss, self.mean_size, self.mean_distance, self.num_batches):
            kept.zero_()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_last_setting": None}

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *rest: Any
    ) -> None:
        found = state_dict.get(prefix + "threshold")
        if found is not None and found.dtype == torch.float64:
            self.double()  # rounded, it would let other scores through
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)

    def exceeded(self, scores: Tensor) -> Tensor:
        """Whether scores lie over the threshold; several thresholds are those of the last dim."""
        check_tensor("scores", scores)
        # One dimension at least, or the threshold would be rounded to the dtype of the scores.
        return scores > (self.threshold if self.threshold.dim() else self.threshold.reshape(1))

    def mask(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Ones over the threshold and zeros elsewhere; NaN for a NaN, or if there is no threshold.

        In the dtype of the scores, and in float32 under autocast.
        """
        over = self.exceeded(scores)
        over = over if mask is None else over & mask
        dtype = scores.dtype
        if dtype.itemsize == 2 and torch.is_autocast_enabled(scores.device.type):
            dtype = torch.float32
        unknown = scores.isnan() | self.threshold.isnan()
        unknown = unknown if mask is None else unknown & mask
        return over.to(dtype).masked_fill(unknown, math.nan)

    def soft_mask(self, scores: Tensor, temperature: float | Tensor) -> Tensor:
        """The soft mask at the threshold, each score by itself; float32 or more."""
        check_tensor("scores", scores)
        dtype = torch.promote_types(scores.dtype, torch.float32)
        return laplace_cdf(scores.to(dtype) - self.threshold, temperature)

    def log_soft_mask(self, scores: Tensor, temperature: float | Tensor) -> Tensor:
        """The logarithm of the soft mask, also where that underflows."""
        check_tensor("scores", scores)
        dtype = torch.promote_types(scores.dtype, torch.float32)
        return log_laplace_cdf(scores.to(dtype) - self.threshold, temperature)

    @torch.no_grad()
    def update(
        self,
        scores: Tensor,
        budget: float | Tensor,
        temperature: float | Tensor = 0.0,
        *,
        dim: int | None = None,
        mask: Tensor | None = None,
        setting: float | Tensor | None = None,
        group: ProcessGroup | None = None,
        best_left_out: Tensor | None = None,
        mass: Tensor | None = None,
    ) -> None:
        """Take a batch into account, of which ``budget`` scores along ``dim`` are wanted.

        At temperature 0 scores over the threshold are counted, else the soft mask's mass. A batch
        that has no threshold is passed over: with a NaN, or with nothing to choose. ``setting`` is
        what else the threshold depends on, a budget per row or a temperature: the more it changes,
        as it is annealed or learned, the fewer of the batches before still count. With a ``group``
        the batch is that of all its ranks, and so is the budget: all of them call, and have the
        same threshold afterwards if they had so before. ``best_left_out`` is the first score after
        the budget, and ``mass`` that over the threshold, where they are known. A call during a
        backward pass is passed over: checkpointing computes a batch anew there, which counts once.
        """
        if is_computed_again():
            return
        check_tensor("scores", scores)
        scores = scores.detach()
        count = _valid_count(scores, dim, mask)
        is_hard = not isinstance(temperature, Tensor) and temperature == 0
        if mass is None:
            mass = self._mass(scores, temperature, dim, mask, is_hard)
        if group is not None:
            count, mass = sums((count, mass), scores, group)
        of_batch = _batch_threshold(
            scores, budget, temperature, dim, mask, count, is_hard, group, best_left_out
        )
        if setting is not None:
            self.forget(setting)
        dtype = self.threshold.dtype
        rounded = of_batch.to(dtype)
        if dtype != of_batch.dtype:  # up, so that the best score that is left out stays out
            above = rounded.nextafter(torch.full_like(rounded, math.inf))
            rounded = torch.where(rounded < of_batch, above, rounded)
        self._move((mass / budget - 1).to(dtype), rounded)

    def _mass(
        self,
        scores: Tensor,
        temperature: float | Tensor,
        dim: int | None,
        mask: Tensor | None,
        is_hard: bool,
    ) -> Tensor:
        """What of a batch lies over the threshold."""
        if is_hard:
            over = self.exceeded(scores)
            return torch.count_nonzero(over if mask is None else over & mask, dim)
        soft = self.soft_mask(scores, temperature)
        soft = soft if mask is None else soft.masked_fill(~mask, 0)
        return soft.sum(dim)

    @torch.no_grad()
    def forget(self, setting: float | Tensor) -> None:
        """Let fewer batches count, in the measure of how much the setting has changed."""
        # A graph that read what is noted would be made anew when that changes.
        last = None if is_traced() else self._last_setting
        if last is not None and last.holds(setting, self.setting):
            return
        new = torch.ones_like(self.setting) * setting
        change = (new / self.setting).log().abs()
        count = (_BATCHES_PER_CHANGE / change).nan_to_num(_MANY).clamp(max=_MANY)
        self.num_batches.clamp_(max=count.to(torch.int64))
        self.setting.copy_(new)
        is_noted = not (isinstance(setting, Tensor) or is_traced() or self.setting.is_inference())
        # What is captured runs later. What is traced must not ask: torch 2.11 does not compile it.
        if is_noted and self.setting.is_cuda and torch.cuda.is_current_stream_capturing():
            is_noted = False
        self._last_setting = _Setting.of(setting, self.setting) if is_noted else None

    def _move(self, miss: Tensor, of_batch: Tensor) -> None:
        """One step, from the relative miss of a batch and its own threshold.

        Numbers on a device are launches: those of a GPU take as long for one number as for many.
        """
        before, seen = self.threshold, self.num_batches
        is_known = of_batch.abs() < math.inf  # which a NaN is not
        has_start = (before.abs() < math.inf) & (seen > 0)
        distance, is_next = (of_batch - before).abs(), is_known & has_start
        batches = seen.to(before.dtype)
        weight = self._weight(batches.clamp(min=1))
        for mean, new in (
            (self.mean_miss, miss),
            (self.mean_size, miss.abs()),
            (self.mean_distance, distance),
        ):
            mean.lerp_(torch.where(is_next, new, mean), weight)
        # Misses of one sign show a lag, and the newest batch counts more until they cancel out.
        # Their share that is due to chance is about the weight itself, and rarely four times that.
        weight = self._weight(batches + 1)
        lag = (self.mean_miss / self.mean_size).square().sub(weight, alpha=4)
        weight = lag.fmax(weight)  # without misses the lag is NaN, and passed over
        step = miss * (self.mean_distance / self.mean_size) * weight
        # Not past the batch's own threshold, beyond which there may be nothing to count, as below
        # the zeros of a ReLU. A mean size of 0 is a miss of 0.
        step = step.clamp(-distance, distance).nan_to_num(0.0)
        moved = torch.where(has_start, before + step, of_batch)
        # Where all or nothing is chosen the threshold is infinite: a start, but nothing to average.
        kept = torch.where(before.isnan(), of_batch, before)
        self.threshold.copy_(torch.where(is_known, moved, kept))
        self.num_batches.add_(is_known)

    def _weight(self, batches: Tensor) -> Tensor:
        weight = 1 / batches
        return weight if self.momentum is None else weight.clamp(min=self.momentum)

    def extra_repr(self) -> str:
        """What ``print`` shows of the estimate."""
        shape = tuple(self.threshold.shape)
        return f"momentum={self.momentum}" + (f", shape={shape}" if shape else "")


def is_computed_again() -> bool:
    """Whether a backward pass is under way in this thread, which has what it needs computed anew.

    ``torch.utils.checkpoint`` tells by the same number. In a graph a compiler repeats what has no
    side effects.
    """
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def laplace_cdf(distance: Tensor, temperature: float | Tensor) -> Tensor:
    """The soft mask's value at a distance from the threshold; 0 or 1 at temperature 0."""
    u = _in_units(distance, temperature)
    half = torch.exp(-u.abs()) / 2
    return torch.where(u > 0, 1 - half, half)


def log_laplace_cdf(distance: Tensor, temperature: float | Tensor) -> Tensor:
    """The logarithm of :func:`laplace_cdf`."""
    u = _in_units(distance, temperature)
    return torch.where(u > 0, torch.log1p(torch.exp(-u.abs()) / -2), u - math.log(2))


def _in_units(distance: Tensor, temperature: float | Tensor) -> Tensor:
    """Distances in units of the temperature."""
    smallest = torch.finfo(distance.dtype).tiny
    if isinstance(temperature, Tensor):
        temperature = temperature.to(distance.dtype).clamp(min=smallest)
    else:
        temperature = max(temperature, smallest)
    return distance / temperature


def checked_momentum(momentum: float | None) -> float | None:
    """A weight, or None."""
    if momentum is None:
        return None
    if not 0 < check_number("momentum", momentum) <= 1:
        raise ValueError(f"momentum must lie in (0, 1] or be None, got momentum={momentum}")
    return float(momentum)


def _valid_count(scores: Tensor, dim: int | None, mask: Tensor | None) -> int | Tensor:
    if mask is not None:
        return torch.count_nonzero(mask.expand(scores.shape), dim)
    if dim is None:
        return scores.numel()
    return scores.shape[dim]


def _batch_threshold(
    scores: Tensor,
    budget: float | Tensor,
    temperature: float | Tensor,
    dim: int | None,
    mask: Tensor | None,
    count: int | Tensor,
    is_hard: bool,
    group: ProcessGroup | None,
    best_left_out: Tensor | None,
) -> Tensor:
    """Of one batch: over it lies the budget. Infinite where all or nothing is to be chosen.

    Of a hard mask it is the best score that is left out, which is the first one after the budget.
    NaN where there is nothing to choose from.
    """
    if not isinstance(budget, Tensor) and not isinstance(count, Tensor):
        budget = min(max(budget, 0), count)
        rank = min(whole_budget(budget, 1) + 1, count) if is_hard else budget
        found = best_left_out
        if found is None:
            found = solve_threshold(scores, rank, temperature, dim=dim, mask=mask)
        if 0 < budget < count:
            return found
        if not count:
            return torch.full_like(found, math.nan)
        return torch.full_like(found, math.inf if budget <= 0 else -math.inf)
    one = torch.ones((), dtype=row_dtype(scores), device=scores.device)
    wanted, limit = one * budget, one * count
    found = best_left_out
    if found is None:
        first_out = one * whole_budget(budget, 1) + 1
        rank_wanted = torch.minimum(first_out, limit) if is_hard else wanted
        found = solve_threshold(scores, rank_wanted, temperature, dim=dim, mask=mask, group=group)
    found = torch.where(wanted >= limit, -math.inf, found)
    found = torch.where(wanted <= 0, math.inf, found)
    return torch.where(limit > 0, found, math.nan)
