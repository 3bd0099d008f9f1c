"""Trains every layer for models in one of two processes; `test_two_processes.py` starts both.

Arguments: the rank, a file that both meet at, and the file that the results go to.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from fast_lapsum import nn
from fast_lapsum.losses import TopKCrossEntropyLoss
from fast_lapsum.prune import soften
from model_layers import LAYERS, Case


class Scaled(Module):
    """A layer whose inputs depend on a parameter: without one there is nothing to distribute."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(2.0))
        self.layer, self.outputs = case.make(), case.outputs

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return self.outputs(self.layer(*(self.scale * one for one in inputs)))


class WithDeadLatents(Module):
    """An autoencoder whose dead latents rebuild what is left over."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)
        self.activation, self.dead = nn.BatchTopK(2), nn.DeadLatents(32, patience=10)
        self.has_fired: list[Tensor] = []  # in this process, by batch

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        latents = self.encoder(x)
        activations = self.activation(latents)
        chosen = self.dead(latents, k=4)
        if self.training:
            self.dead.update(activations)
            self.has_fired.append((activations != 0).any(0))
        error = x - self.decoder(activations)
        rebuilt = chosen.activations @ self.decoder.weight.T
        return error, chosen.share * (error.detach() - rebuilt), chosen.share


def _train(model: Module, inputs: Any, loss_of: Any, rank: int) -> dict[str, Any]:
    """Steps on data of its own, then the gradient of the last and an evaluation that both share."""
    distributed = DistributedDataParallel(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    torch.manual_seed(10 + rank)
    for _ in range(3):
        optimiser.zero_grad()
        loss_of(distributed(*inputs())).backward()
        optimiser.step()
    gradients = {name: value.grad for name, value in model.named_parameters()}
    torch.manual_seed(99)
    distributed.eval()
    evaluated = distributed(*inputs())
    return {"gradients": gradients, "evaluated": evaluated, "state": model.state_dict()}


def _finite_squares(outputs: tuple[Tensor, ...]) -> Tensor:
    squares = [one.square().nan_to_num(posinf=0).sum() for one in outputs if one.requires_grad]
    return torch.stack(squares).sum()


def main(rank: int, meeting: str, results: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    found = {}
    for name, case in LAYERS.items():
        torch.manual_seed(0)
        found[name] = _train(Scaled(case), case.inputs, _finite_squares, rank)
    torch.manual_seed(0)
    pruned = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 6))
    pruning = soften(pruned, density=0.25, temperature=0.1)
    cross_entropy = TopKCrossEntropyLoss([0.5, 0.5])
    found["pruned"] = _train(
        pruned,
        lambda: (torch.randn(5, 8),),
        lambda out: cross_entropy(out, torch.arange(5)),
        rank,
    )
    found["pruned"]["masks"] = pruning.finalize()
    torch.manual_seed(0)
    autoencoder = WithDeadLatents()
    found["dead-latents"] = _train(autoencoder, lambda: (torch.randn(6, 8),), _finite_squares, rank)
    found["has fired"] = autoencoder.has_fired
    torch.save(found, results)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
