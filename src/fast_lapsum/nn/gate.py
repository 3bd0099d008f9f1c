"""A gate whose budget spans a row or a batch in training, and is a threshold at inference."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from .._arguments import check_budget_number, check_flag, check_mask, check_scores
from .._collectives import group_of, noted_name
from ..backends.common import row_dtype
from ..functional import soft_topk
from .budgeted import Budgeted, check_spent, checked_choice, shown, total_budget, whole_budget
from .rank_sums import check_process_group, sums
from .running_threshold import RunningThreshold

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Budget = Literal["row", "batch"]


class BudgetGate(Budgeted):
    """Gate of exactly k scores per row in training, and of as many on average at inference.

    In training the gate is :func:`~fast_lapsum.soft_topk` of the scores, with budget k in every
    row, or k times the number of rows over all of them, so that rows compete. At inference a row
    comes alone: in ``eval()`` the gate is ``scores > threshold``, each score by itself. Training
    keeps that threshold (:class:`RunningThreshold`): the one over which lie k scores per row on
    average. It is float32 in a module of any smaller dtype, part of the state dict, and NaN before
    the first batch, which makes the gate NaN. Scores that differ by less than float32 can tell need
    a module of float64.

    k and the temperature can be set, annealed by a schedule, or given as a Parameter to be learned.
    Under :class:`~torch.nn.parallel.DistributedDataParallel` budgets are those of each process, and
    the threshold is that of the first one, as all buffers are. With a ``process_group`` the batch
    is that of all its ranks: ``budget="batch"`` spans their rows, however many each has, and all
    keep one threshold, of all their scores. Every rank has to call, in training and to calibrate.
    Under :func:`torch.utils.checkpoint.checkpoint` a batch counts once, although it is computed
    twice; a compiled layer inside of one that is not compiled counts it twice.

    Args:
        k: how many scores of a row the gate lets through, on average over the batch with
            ``budget="batch"``; whole or fractional.
        temperature: of the soft mask in training, and of the gradient of a hard one.
        budget: ``"row"``, or ``"batch"`` for one budget over all rows.
        hard: ones and zeros in training, too, with the soft mask's gradient. Budgets are rounded
            down to whole numbers.
        momentum: the weight of the newest batch in the threshold; None averages over all.
        process_group: whose ranks have a part of each batch, such as
            ``torch.distributed.group.WORLD``. A copy of the layer has the same group, and a pickle
            names it.

    Shape:
        scores and gate: ``(..., n)``, with any leading dimensions, whose rows are one batch.

    Example:
        >>> gate = BudgetGate(k=1.5, temperature=0.01, budget="batch")
        >>> scores = torch.tensor([[4.0, 1.0, 0.0], [3.0, 2.0, 5.0]])
        >>> gate(scores).round()
        tensor([[1., 0., 0.],
                [1., 0., 1.]])
        >>> gate.eval()(torch.tensor([2.5, 1.0, 9.0]))
        tensor([1., 0., 1.])
    """

    def __init__(
        self,
        k: float | Tensor,
        temperature: float | Tensor = 1.0,
        *,
        budget: Budget = "row",
        hard: bool = False,
        momentum: float | None = 0.01,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(k, temperature)
        if process_group is not None:
            check_process_group(process_group)
        self.process_group = process_group
        self.budget = checked_choice("budget", budget, ("row", "batch"))
        self.hard = check_flag("hard", hard)
        self.running = RunningThreshold(momentum=momentum)

    @property
    def threshold(self) -> Tensor:
        """The inference threshold."""
        return self.running.threshold

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """The gate, in the dtype of the scores (float32 under autocast).

        ``mask`` marks with True the scores that take part. With a mask a row that has fewer than k
        is taken whole, and a row that has none has no budget.
        """
        check_scores(scores, -1)
        mask = None if mask is None else check_mask(mask, scores)
        if not self.training:
            return self.running.mask(scores, mask)
        k, temperature = self._of_call()
        rows = self._rows(scores, mask)
        gate = self._gate(scores, k, temperature, rows, mask)
        if scores.numel() or self.process_group is not None:
            best = self._best_left_out(scores, gate, mask)
            self._update(scores, k, rows, mask, best)
        return gate

    def _update(
        self,
        scores: Tensor,
        k: float | Tensor,
        rows: int | Tensor,
        mask: Tensor | None,
        best_left_out: Tensor | None = None,
        mass: Tensor | None = None,
    ) -> None:
        """Let the threshold take a batch into account."""
        self.running.update(
            scores,
            self._total(scores, k, rows, mask),
            mask=mask,
            setting=_detached(k),
            group=self.process_group,
            best_left_out=best_left_out,
            mass=mass,
        )

    def _best_left_out(self, scores: Tensor, gate: Tensor, mask: Tensor | None) -> Tensor | None:
        """The threshold of a hard mask over the batch, where that is cheaper than to solve for it.

        A compiler reads scores and gate for it while it writes what comes of them.
        """
        has_one = self.hard and self.budget == "batch" and self.process_group is None
        if not (has_one and scores.numel() and torch.compiler.is_compiling()):
            return None
        taken = gate.detach() == 1
        taken = taken if mask is None else taken | ~mask
        dtype = torch.promote_types(scores.dtype, torch.float32)
        return scores.detach().to(dtype).masked_fill(taken, -math.inf).amax()

    def _rows(self, scores: Tensor, mask: Tensor | None) -> int | Tensor:
        """How many rows have a budget: of all ranks, where they share it."""
        if mask is None:
            rows: int | Tensor = scores.shape[:-1].numel()
        else:
            rows = torch.count_nonzero(mask.any(-1)).to(row_dtype(scores))
        if self.process_group is None or self.budget == "row":
            return rows
        return sums((rows,), scores, self.process_group)[0]

    def _total(
        self, scores: Tensor, k: float | Tensor, rows: int | Tensor, mask: Tensor | None
    ) -> float | Tensor:
        """What the budgets of a batch add up to."""
        k = _detached(k)
        if self.budget == "batch":
            return total_budget(k, rows)
        if self.hard:  # as many as each row's mask lets through
            k = whole_budget(k, 1)
        if mask is None:
            total = total_budget(k, rows)
        else:
            counts = torch.count_nonzero(mask, -1)
            most = torch.ones_like(counts, dtype=row_dtype(counts)) * k
            total = torch.minimum(counts, most).sum()
        if self.process_group is None:
            return total
        return sums((total,), scores, self.process_group)[0]

    def _gate(
        self,
        scores: Tensor,
        k: float | Tensor,
        temperature: float | Tensor,
        rows: int | Tensor,
        mask: Tensor | None,
    ) -> Tensor:
        """The gate of a batch."""
        is_row = self.budget == "row"
        return soft_topk(
            scores,
            self._whole(scores, k, rows, mask),
            temperature,
            dim=-1 if is_row else None,
            mask=mask,
            clamp=mask is not None,
            hard=self.hard,
            group=None if is_row else self.process_group,
        )

    def _whole(
        self, scores: Tensor, k: float | Tensor, rows: int | Tensor, mask: Tensor | None
    ) -> float | Tensor:
        """The budget of a row or of the batch; ValueError for a k that has more than there is."""
        length, count, budget = scores.shape[-1], scores.shape[-1], k
        if self.budget == "batch":
            count = scores.numel()
            if self.process_group is not None and mask is None and not isinstance(k, Tensor):
                check_budget_number(k, length, hard=False)
            budget = whole_budget(k, rows) if self.hard else total_budget(k, rows)
        elif self.hard:
            budget = whole_budget(k, 1)
        if mask is None:
            check_spent(k, budget, count, length)
        return budget

    @torch.no_grad()
    def calibrate(
        self,
        batches: Tensor | Iterable[Any],
        scores_of: Callable[[Any], Tensor] | None = None,
        mask: Tensor | None = None,
    ) -> None:
        """Find the threshold anew, from scores or from batches that give scores.

        Scores of float64 make it float64. Without a score it is NaN; without a batch, as from a
        generator that is used up, it stays what it is, and that is an error. The ranks of a process
        group give as many batches each.

        Args:
            batches: a tensor of scores, whose rows have k over the threshold on average, to the
                last one; or an iterable of batches, such as a data loader, of which all are
                averaged in one pass.
            scores_of: the scores of such a batch; None takes the batch itself.
            mask: of a tensor of scores, those that take part.

        Example:
            >>> gate = BudgetGate(k=2)
            >>> gate.calibrate(torch.arange(12.0).reshape(3, 4))
            >>> gate.threshold
            tensor(5.)
        """
        batches = (batches,) if isinstance(batches, Tensor) else at_least_one(batches)
        self.running.reset()
        momentum, self.running.momentum = self.running.momentum, None
        try:
            for batch in batches:
                scores = batch if scores_of is None else scores_of(batch)
                check_scores(scores, -1)
                valid = None if mask is None else check_mask(mask, scores)
                if scores.dtype == torch.float64:
                    self.running.double()
                rows = self._rows(scores, valid)
                total = self._total(scores, self._value("given_k"), rows, valid)
                self.running.update(scores, total, mask=valid, group=self.process_group)
        finally:
            self.running.momentum = momentum

    def __getstate__(self) -> dict[str, Any]:
        name = noted_name(self.process_group)
        return {**super().__getstate__(), "process_group": name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        name = state.get("process_group")
        super().__setstate__({**state, "process_group": None if name is None else group_of(name)})

    def extra_repr(self) -> str:
        """What ``print`` shows of the layer."""
        return (
            f"k={shown(self.k)}, temperature={shown(self.temperature)}, budget={self.budget!r}, "
            f"hard={self.hard}"
            + (f", process_group={noted_name(self.process_group)!r}" if self.process_group else "")
        )


def at_least_one(batches: Iterable[Any]) -> Iterable[Any]:
    """The same batches; ValueError if there are none, before anything is forgotten for them."""
    rest = iter(batches)
    try:
        first = next(rest)
    except StopIteration:
        raise ValueError(
            "batches must have at least one batch, got none, as an iterator has that is used up"
        ) from None
    return chain((first,), rest)


def _detached(k: float | Tensor) -> float | Tensor:
    return k.detach() if isinstance(k, Tensor) else k
