"""Layers whose batch is spread over processes, beside one process with the whole batch."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Linear, Module, Parameter
from torch.nn.parallel import DistributedDataParallel

from cases import normal
from fast_lapsum import _collectives, soft_topk
from fast_lapsum.nn import BatchTopK, BudgetGate, SoftTopK

#: How many rows each rank has of every batch, in turn.
ROWS = ((2, 5, 0), (3, 3, 3), (0, 0, 0), (1, 0, 6), (4, 2, 2))
Make = Callable[[Any], BudgetGate]
LAYERS: dict[str, Make] = {
    "batch": lambda group: BudgetGate(2.3, 0.3, budget="batch", process_group=group),
    "batch, hard": lambda group: BudgetGate(
        2.3, 0.3, budget="batch", hard=True, process_group=group
    ),
    "row": lambda group: BudgetGate(2.5, 0.3, process_group=group),
    "BatchTopK": lambda group: BatchTopK(2.5, process_group=group),
}


def _parts(batch: int, whole: Tensor, rank: int) -> Tensor:
    counts = ROWS[batch]
    first = sum(counts[:rank])
    return whole[first : first + counts[rank]]


def trained(name: str, rank: int, masked: bool) -> dict[str, Any]:
    """The largest differences of gates, gradients and thresholds over some batches."""
    alone, shared = LAYERS[name](None), LAYERS[name](dist.group.WORLD)
    worst = {"gate": 0.0, "gradient": 0.0, "threshold": 0.0}
    for batch, counts in enumerate(ROWS):
        whole = normal(sum(counts), 12, seed=batch, dtype=torch.float64)
        mask = normal(sum(counts), 12, seed=batch + 50) > -0.5 if masked else None
        weights = normal(sum(counts), 12, seed=batch + 90, dtype=torch.float64)
        theirs = whole.clone().requires_grad_()
        ours = _parts(batch, whole, rank).clone().requires_grad_()
        wanted = alone(theirs, mask)
        found = shared(ours, None if mask is None else _parts(batch, mask, rank))
        (wanted * weights).sum().backward()
        (found * _parts(batch, weights, rank)).sum().backward()
        for what, a, b in (
            ("gate", found, _parts(batch, wanted, rank)),
            ("gradient", ours.grad, _parts(batch, theirs.grad, rank)),
            ("threshold", shared.threshold, alone.threshold),
        ):
            if b.numel():
                worst[what] = max(worst[what], float((a - b).detach().abs().max()))
    state = {key: value.clone() for key, value in shared.state_dict().items()}
    data = normal(9, 12, seed=77)
    alone.calibrate(data)
    shared.calibrate(data[3 * rank : 3 * rank + 3])
    worst["calibrated"] = float((alone.threshold - shared.threshold).abs())
    return {"worst": worst, "state": state}


class Autoencoder(Module):
    """The smallest: pre-activations, the activation, and what it makes of them."""

    def __init__(self, activation: Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.activation, self.decoder = Linear(6, 12), activation, Linear(12, 6)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.activation(self.encoder(x)))


def under_ddp(rank: int, ranks: int) -> dict[str, float]:
    """Gradients under DDP beside those of the mean of the ranks' losses in one process."""
    whole = normal(4 * ranks, 6, seed=1, dtype=torch.float64)
    alone = Autoencoder(BatchTopK(2, 0.5, hard=False))
    losses = (alone(whole) - whole).square().reshape(ranks, -1).mean(-1)
    losses.mean().backward()
    model = Autoencoder(BatchTopK(2, 0.5, hard=False, process_group=dist.group.WORLD))
    spread = DistributedDataParallel(model)
    mine = whole[4 * rank : 4 * rank + 4]
    (spread(mine) - mine).square().mean().backward()
    wanted = dict(alone.named_parameters())
    found = {
        name: float((one.grad - wanted[name].grad).abs().max())
        for name, one in model.named_parameters()
    }
    found["seen"] = float(wanted["encoder.weight"].grad.abs().max())
    return found


class Learned(Module):
    """A learned budget and temperature, and scores with a parameter before them."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group = group
        self.scale, self.k, self.temperature = (
            Parameter(torch.tensor(value, dtype=torch.float64)) for value in (1.5, 5.0, 0.7)
        )

    def forward(self, scores: Tensor) -> Tensor:
        return soft_topk(self.scale * scores, self.k, self.temperature, dim=None, group=self.group)


def averaged(rank: int, ranks: int, divided: bool) -> dict[str, float]:
    """What DDP makes of gradients, as multiples of those of the mean of the ranks' losses."""
    scores = normal(ranks, 9, seed=2, dtype=torch.float64)
    weights = normal(ranks, 9, seed=3, dtype=torch.float64)
    alone = Learned(None)
    (alone(scores) * weights).sum(-1).mean().backward()
    model = Learned(dist.group.WORLD)
    if divided:  # as docs/distributed.md does for a layer
        for value in (model.k, model.temperature):
            value.register_hook(lambda gradient: gradient / dist.get_world_size())
    spread = DistributedDataParallel(model)
    (spread(scores[rank]) * weights[rank]).sum().backward()
    wanted = dict(alone.named_parameters())
    return {name: float(one.grad / wanted[name].grad) for name, one in model.named_parameters()}


def collectives(rank: int) -> dict[str, int]:
    """How many a call of a layer makes."""
    counted = 0
    gather = _collectives.gather

    def count(message: Tensor, name: str) -> Tensor:
        nonlocal counted
        counted += 1
        return gather(message, name)

    found = {}
    for name, make in LAYERS.items():
        layer, scores = make(dist.group.WORLD), normal(8, 64, seed=rank)
        layer(scores)
        _collectives.gather = count
        counted = 0
        layer(scores)
        found[name] = counted
        layer.eval()(scores)
        found[f"{name}, evaluated"] = counted - found[name]
        _collectives.gather = gather
    return found


def kept(rank: int) -> dict[str, Any]:
    """Copies have the same group, and wrong ones are named."""
    layer = BatchTopK(2, process_group=dist.group.WORLD)
    copies = copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))
    said: dict[str, Any] = {
        "copied": all(one.process_group is dist.group.WORLD for one in copies),
        "shown": repr(layer),
    }
    try:
        BatchTopK(2, process_group=7)  # type: ignore[arg-type]
    except TypeError as error:
        said["no group"] = str(error)
    try:
        BatchTopK(20, process_group=dist.group.WORLD)(normal(2, 12))
    except ValueError as error:
        said["too many"] = str(error)
    return said


def compiled(rank: int, ranks: int) -> float:
    """The largest difference of a compiled layer from the eager one."""
    eager = BatchTopK(2.5, process_group=dist.group.WORLD)
    layer = copy.deepcopy(eager)
    graph = torch.compile(layer, fullgraph=True, backend="aot_eager")
    worst = 0.0
    for step in range(2):
        ours, theirs = (
            normal(3 + rank, 12, seed=step, dtype=torch.float64).requires_grad_() for _ in range(2)
        )
        found, wanted = graph(ours), eager(theirs)
        found.square().sum().backward()
        wanted.square().sum().backward()
        for a, b in ((found, wanted), (ours.grad, theirs.grad), (layer.threshold, eager.threshold)):
            worst = max(worst, float((a - b).detach().abs().max()))
    return worst


def main(rank: int, ranks: int) -> dict[str, Any]:
    """All of it."""
    found: dict[str, Any] = {
        (name, masked): trained(name, rank, masked) for name in LAYERS for masked in (False, True)
    }
    found["ddp"] = under_ddp(rank, ranks)
    found["averaged"] = averaged(rank, ranks, False), averaged(rank, ranks, True)
    found["collectives"] = collectives(rank)
    found["kept"] = kept(rank)
    return found


def after_its_group(rank: int, ranks: int) -> list[str]:
    """What is shown of layers whose group was destroyed."""
    group = dist.new_group(list(range(ranks)))
    layers: list[Module] = [BatchTopK(2, process_group=group), SoftTopK(2, process_group=group)]
    dist.barrier(group)  # until all have it
    dist.destroy_process_group(group)
    for layer in layers:
        pickle.dumps(layer)
        layer.state_dict()
    return [repr(layer) for layer in layers]
