"""Activations of sparse autoencoders: the k largest latents of a row, or k per row of a batch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from .._arguments import check_scores
from .._autograd import is_plain
from ..selection import hard_topk_mask
from .activated import Activated, activated, gated, has_kernel, has_operator, update
from .budgeted import check_spent, check_tensor, checked_choice, whole_budget
from .gate import BudgetGate

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class TopKActivation(BudgetGate):
    """ReLU of the k largest latents of each row; the others are zero.

    Forward it is the plain top-k activation. Backward the gate passes the soft mask's gradient on
    as well, so that latents next to being chosen learn, too: the lower the temperature, the fewer.
    At temperature 0 the gradient is that of the plain activation.

    Args:
        k: latents per row, a whole number unless ``hard`` is False. It can be set or annealed; one
            that is fractional on the way is rounded down.
        temperature: of the gate's gradient, in units of the pre-activations.
        hard: exactly k latents in training. False weighs all of them with the soft mask, for a
            temperature that is annealed.
        inference: ``"budget"`` chooses exactly k in ``eval()``, too. ``"threshold"`` chooses by the
            threshold that training keeps, which makes the layer a JumpReLU.
        momentum: of that threshold, see :class:`BudgetGate`.

    Shape:
        pre-activations and activations: ``(..., num_latents)``.

    Example:
        >>> activation = TopKActivation(k=2)
        >>> activation(torch.tensor([[3.0, -1.0, 0.5, 2.0], [-1.0, 4.0, -2.0, -3.0]]))
        tensor([[3., 0., 0., 2.],
                [0., 4., 0., 0.]])
    """

    def __init__(
        self,
        k: float | Tensor,
        temperature: float | Tensor = 0.1,
        *,
        hard: bool = True,
        inference: Literal["budget", "threshold"] = "budget",
        momentum: float | None = 0.01,
    ) -> None:
        super().__init__(k, temperature, budget="row", hard=hard, momentum=momentum)
        if hard and not isinstance(k, Tensor) and not math.isclose(k, round(k), rel_tol=1e-12):
            raise ValueError(
                f"k must be a whole number of latents per row with hard=True, got k={k}; "
                "BatchTopK takes a fractional k, which is one on average"
            )
        self.inference = checked_choice("inference", inference, ("budget", "threshold"))

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """The activations of pre-activations ``scores``; ``mask`` marks those that take part."""
        check_tensor("scores", scores)
        # How many scores there are is asked for only where a threshold is kept: see has_kernel.
        is_some = self.inference == "budget" or scores.numel() > 0
        if self.training and mask is None and is_some and _is_in_one_pass(self, scores):
            check_scores(scores, -1)
            k, temperature = self._of_call()
            rows = 1 if self.inference == "budget" else self._rows(scores, None)
            found = _in_one_pass(self, scores, k, temperature, rows)
            if self.inference == "threshold":
                self._update(scores, k, rows, None, mass=found.counts.sum())
            return found.activations
        if self.inference == "threshold":
            gate = super().forward(scores, mask)
        elif self.training:
            check_scores(scores, -1)
            gate = self._gate(scores, *self._of_call(), 1, mask)
        else:
            check_scores(scores, -1)
            k, length = self._value("given_k"), scores.shape[-1]
            budget = whole_budget(k, 1)
            if mask is None:
                check_spent(k, budget, length, length)
            gate = hard_topk_mask(scores, budget, mask=mask, clamp=mask is not None)
        return _activations(self, scores, gate)

    def jumprelu_threshold(self, num_latents: int) -> Tensor:
        """The inference threshold as that of a JumpReLU, one for each latent, at least 0.

        RuntimeError if there is none yet. A GPU is waited for.
        """
        return _jumprelu_threshold(self, num_latents)


class BatchTopK(BudgetGate):
    """ReLU of the k latents per row, on average over the batch, that are largest in the batch.

    Rows compete: one may have more than k active latents, another less. In ``eval()`` a row comes
    alone, and latents over the threshold that training keeps are active: a JumpReLU, whose
    threshold :meth:`jumprelu_threshold` exports. It is the one over which lie k latents per row.
    Before the first batch there is none, and activations of ``eval()`` are NaN.

    Args:
        k: latents per row, on average over the batch; whole or fractional. It can be annealed.
        temperature: of the gate's gradient, in units of the pre-activations, see
            :class:`TopKActivation`.
        hard: exactly k latents per row in training, rounded down over the batch. False weighs all
            of them with the soft mask, for a temperature that is annealed.
        momentum: of the threshold, see :class:`BudgetGate`.
        process_group: whose ranks have a part of the batch each, see :class:`BudgetGate`.

    Shape:
        pre-activations and activations: ``(..., num_latents)``; the rows of all leading dimensions
        are one batch.

    Example:
        >>> activation = BatchTopK(k=1)
        >>> activation(torch.tensor([[3.0, -1.0, 0.5, 2.0], [-1.0, 0.1, -2.0, -3.0]]))
        tensor([[3., 0., 0., 2.],
                [0., 0., 0., 0.]])
        >>> activation.jumprelu_threshold(4)
        tensor([0.5000, 0.5000, 0.5000, 0.5000])
        >>> activation.eval()(torch.tensor([1.0, 0.2, -1.0, 0.4]))
        tensor([1., 0., 0., 0.])
    """

    def __init__(
        self,
        k: float | Tensor,
        temperature: float | Tensor = 0.1,
        *,
        hard: bool = True,
        momentum: float | None = 0.01,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            k,
            temperature,
            budget="batch",
            hard=hard,
            momentum=momentum,
            process_group=process_group,
        )

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """The activations of pre-activations ``scores``; ``mask`` marks those that take part."""
        check_tensor("scores", scores)
        is_whole = self.training and mask is None and self.process_group is None
        if is_whole and scores.numel() > 0 and _is_in_one_pass(self, scores):
            return self._with_kernels(scores)
        return _activations(self, scores, super().forward(scores, mask))

    def _with_kernels(self, scores: Tensor) -> Tensor:
        """The same by kernels that read scores and gate once for activations and threshold."""
        check_scores(scores, -1)
        k, temperature = self._of_call()
        rows = self._rows(scores, None)
        found = _in_one_pass(self, scores, k, temperature, rows)
        total = self._total(scores, k, rows, None)
        is_exact = self.hard and self.budget == "batch"
        if not is_exact:
            self._update(scores, k, rows, None, mass=found.counts.sum())
        elif isinstance(k, Tensor) or isinstance(total, Tensor) or not 0 < total < scores.numel():
            best, mass = found.best_left_out.amax(), found.counts.sum()
            self._update(scores, k, rows, None, best, mass)
        else:
            update(self.running, found, total, k)
        return found.activations

    def jumprelu_threshold(self, num_latents: int) -> Tensor:
        """The inference threshold as that of a JumpReLU, one for each latent, at least 0.

        RuntimeError if there is none yet. A GPU is waited for.
        """
        return _jumprelu_threshold(self, num_latents)


def _activations(layer: BudgetGate, scores: Tensor, gate: Tensor) -> Tensor:
    """ReLU of the scores that the gate lets through."""
    gate = _learning(layer, gate)
    if has_kernel(scores, layer.threshold):
        return activated(scores, gate, layer.threshold).activations
    return torch.relu(scores) * gate.to(scores.dtype)


def _is_in_one_pass(layer: BudgetGate, scores: Tensor) -> bool:
    """Whether kernels take these scores, by a call or in a graph."""
    if not torch.compiler.is_compiling():
        return has_kernel(scores, layer.threshold)
    return has_operator(scores, layer.threshold, *layer._of_call())


def _in_one_pass(
    layer: BudgetGate,
    scores: Tensor,
    k: float | Tensor,
    temperature: float | Tensor,
    rows: int | Tensor,
) -> Activated:
    """Activations by a kernel, and what else it finds, with a gradient of one pass if it can be."""
    is_graph = torch.compiler.is_compiling()
    if is_graph or not (isinstance(k, Tensor) or isinstance(temperature, Tensor)):
        dim = -1 if layer.budget == "row" else None
        budget = layer._whole(scores, k, rows, None)
        return gated(scores, budget, temperature, dim, layer.hard, layer.threshold)
    return activated(scores, layer._gate(scores, k, temperature, rows, None), layer.threshold)


def _learning(layer: BudgetGate, gate: Tensor) -> Tensor:
    """The gate, without a gradient where that is known to be zero: it would cost the most."""
    k, temperature = layer._of_call()
    if layer.hard and not isinstance(k, Tensor) and not isinstance(temperature, Tensor):
        return gate if temperature else gate.detach()
    return gate


def _jumprelu_threshold(gate: BudgetGate, num_latents: int) -> Tensor:
    """ReLU is zero below 0, so a lower threshold is the same function."""
    if is_plain(gate.threshold) and bool(gate.threshold.isnan()):
        name, how = type(gate).__name__, "train it, or calibrate it"
        if isinstance(gate, TopKActivation) and gate.inference == "budget":
            how = 'make it with inference="threshold" and train it, or calibrate it'
        raise RuntimeError(f"{name} has no threshold to export yet: {how} with scores, first")
    return gate.threshold.clamp(min=0).expand(num_latents).clone()
