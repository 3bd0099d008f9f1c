"""Latents that have not fired for long, and their selection for an auxiliary loss."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._arguments import check_scores
from ..functional import soft_topk
from .budgeted import checked_count
from .running_threshold import is_computed_again


class AuxiliaryLatents(NamedTuple):
    """The chosen dead latents, and how much of a loss made of them is due."""

    activations: Tensor
    share: Tensor


class DeadLatents(torch.nn.Module):
    """Count for how many rows each latent has been silent, and choose among the dead ones.

    The auxiliary loss of a sparse autoencoder has dead latents reconstruct what the live ones left
    over. How many are dead is only known on the device, and nothing here waits for it: with fewer
    than k dead latents all of them are chosen, and with none the selection is zero.

    Under ``DistributedDataParallel`` rows are counted in the first process, whose buffers are sent
    to all with each forward pass: every process has the same dead latents, if they are asked for
    before the batch is counted.

    Args:
        num_latents: the width of the autoencoder.
        patience: after so many rows without a sign a latent is dead.

    Example:
        >>> dead = DeadLatents(num_latents=4, patience=2)
        >>> dead.update(torch.tensor([[1.0, 0.0, 0.0, 2.0], [0.5, 0.0, 0.0, 0.0]]))
        >>> dead.is_dead
        tensor([False,  True,  True, False])
        >>> chosen = dead(torch.tensor([[3.0, 0.2, 0.7, 1.0]]), k=1)
        >>> chosen.activations
        tensor([[0.0000, 0.0000, 0.7000, 0.0000]])
        >>> chosen.share
        tensor(1.)
    """

    rows_since_fired: Tensor

    def __init__(self, num_latents: int, patience: int = 10_000_000) -> None:
        super().__init__()
        self.num_latents = checked_count("num_latents", num_latents)
        self.patience = checked_count("patience", patience)
        self.register_buffer("rows_since_fired", torch.zeros(self.num_latents, dtype=torch.int64))

    @property
    def is_dead(self) -> Tensor:
        """Which latents are dead, ``(num_latents,)``."""
        return self.rows_since_fired >= self.patience

    @torch.no_grad()
    def update(self, activations: Tensor) -> None:
        """Take the activations of a batch into account, ``(..., num_latents)``; zero is silent.

        What checkpointing computes anew, during a backward pass, is not counted again.
        """
        self._check(activations)
        if is_computed_again():
            return
        has_fired = (activations != 0).reshape(-1, self.num_latents).any(0)
        rows = activations.shape[:-1].numel()
        self.rows_since_fired.add_(rows).masked_fill_(has_fired, 0)

    def forward(
        self, latents: Tensor, k: int, temperature: float | Tensor = 0.0
    ) -> AuxiliaryLatents:
        """The k largest dead latents of each row, and the share of k that there are at most.

        Args:
            latents: pre-activations, or activations before the selection, ``(..., num_latents)``.
            k: how many dead latents are to reconstruct a row; half the width of the model is usual.
            temperature: of the selection's gradient; at 0 chosen latents alone have one.

        Returns:
            The latents that were chosen, in the shape of ``latents`` with zeros elsewhere, and
            ``min(number of dead latents / k, 1)``, which scales a loss of few of them down; 0 where
            none is dead.
        """
        self._check(latents)
        gate = soft_topk(latents, k, temperature, mask=self.is_dead, clamp=True, hard=True)
        share = (torch.count_nonzero(self.is_dead).float() / k).nan_to_num(0.0).clamp(max=1)
        # What is not chosen is 0, also where it is infinite.
        finite = latents.where((gate.detach() != 0) | latents.isfinite(), 0)
        return AuxiliaryLatents(finite * gate.to(latents.dtype), share)

    def _check(self, latents: Tensor) -> None:
        check_scores(latents, -1)
        if latents.shape[-1] != self.num_latents:
            raise ValueError(
                f"latents must have num_latents={self.num_latents} entries in the last dimension, "
                f"got shape {tuple(latents.shape)}"
            )

    def extra_repr(self) -> str:
        """What ``print`` shows of the counter."""
        return f"num_latents={self.num_latents}, patience={self.patience}"
