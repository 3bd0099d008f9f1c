"""What `bench layers` times: every layer from its scores, and the usual way to the same choice.

A check compares both before anything is timed: they choose the same scores, but for ties, the layer
keeps its budget, and compiled it has the gradient that it has eagerly. The usual way does not sort
what it chooses, which is the fastest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import nn
from .parity import ParityError

#: Largest error that a check lets pass: of a budget, relative, and of scores that count as tied.
TOLERANCE = 1e-5
#: The temperature of routers, tokens and attention; activations have their default.
TEMPERATURE = 0.5
TINY = torch.finfo(torch.float32).tiny
Errors = dict[str, float]


class Timed(NamedTuple):
    """A layer as a function of scores, and the usual way beside it.

    ``tensor`` is what of the layer's result has the gradient that is timed. A usual way that passes
    no gradient on has no backward.
    """

    layer: Callable[[Tensor], Any]
    tensor: Callable[[Any], Tensor]
    usual: Callable[[Tensor], Tensor]
    check: Callable[[Tensor, Any, Tensor], Errors]
    has_usual_backward: bool = True


def _itself(out: Tensor) -> Tensor:
    return out


def _first(out: tuple[Tensor, ...]) -> Tensor:
    return out[0]


def router(
    shape: tuple[int, ...], k: int, device: torch.device, *, normalize: bool = False
) -> Timed:
    """Logits to weights and a map; a softmax, its largest values, and those in their places."""
    made = nn.TopKRouter(1, shape[-1], k, TEMPERATURE, normalize=normalize).to(device)

    def usual(logits: Tensor) -> Tensor:
        p = torch.softmax(logits.float(), -1)
        weights, experts = torch.topk(p, k, sorted=False)
        if normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        return torch.zeros_like(p).scatter(-1, experts, weights)

    def layer(logits: Tensor) -> tuple[Tensor, Tensor]:
        return made.route(logits).for_megatron()

    def check(logits: Tensor, found: tuple[Tensor, Tensor], wanted: Tensor) -> Errors:
        weights, chosen = found
        return {
            **_choice(logits, chosen, wanted != 0, k),
            "budget": _largest(made.route(logits).scores.double().sum(-1) / k - 1),
            "weights of others": float(torch.count_nonzero(weights.where(~chosen, 0))),
            "sum of shares": _largest(weights.double().sum(-1) - 1) if normalize else 0.0,
        }

    return Timed(layer, _first, usual, check)


def batch_topk(
    shape: tuple[int, ...], k: int, device: torch.device, *, temperature: float = 0.1
) -> Timed:
    """Pre-activations to activations: ReLU, the largest of the whole batch, in their places."""
    made = nn.BatchTopK(k, temperature).to(device)
    total = k * math.prod(shape[:-1])

    def usual(scores: Tensor) -> Tensor:
        flat = torch.relu(scores).flatten()
        values, places = torch.topk(flat, total, sorted=False)
        return torch.zeros_like(flat).scatter(-1, places, values).view_as(scores)

    def check(scores: Tensor, found: Tensor, wanted: Tensor) -> Errors:
        flat, ours, other = (x.flatten() for x in (scores, found, wanted))
        return {**_choice(flat, ours != 0, other != 0, total), **_values(flat, ours)}

    return Timed(made, _itself, usual, check)


def activation(shape: tuple[int, ...], k: int, device: torch.device) -> Timed:
    """The same with the largest of each row."""
    made = nn.TopKActivation(k).to(device)

    def usual(scores: Tensor) -> Tensor:
        values, places = torch.topk(torch.relu(scores), k, sorted=False)
        return torch.zeros_like(scores).scatter(-1, places, values)

    def check(scores: Tensor, found: Tensor, wanted: Tensor) -> Errors:
        return {**_choice(scores, found != 0, wanted != 0, k), **_values(scores, found)}

    return Timed(made, _itself, usual, check)


def gate(shape: tuple[int, ...], k: int, device: torch.device) -> Timed:
    """A mask of ones over the batch, whose gradient is a soft one's: here a sigmoid's."""
    made = nn.BudgetGate(k, 0.1, budget="batch", hard=True).to(device)
    total = k * math.prod(shape[:-1])

    def usual(scores: Tensor) -> Tensor:
        flat = scores.flatten()
        soft = torch.sigmoid(flat)
        places = torch.topk(flat.detach(), total, sorted=False).indices
        hard = torch.zeros_like(soft).scatter(-1, places, 1.0)
        return (hard + soft - soft.detach()).view_as(scores)

    def check(scores: Tensor, found: Tensor, wanted: Tensor) -> Errors:
        return _choice(scores.flatten(), found.flatten() != 0, wanted.flatten() > 0.5, total)

    return Timed(made, _itself, usual, check)


def tokens(shape: tuple[int, ...], k: int, device: torch.device, *, width: int) -> Timed:
    """Tokens gathered, weighed and added back, as in a Mixture of Depths that computes nothing."""
    made = nn.TokenSelect(k, TEMPERATURE).to(device)
    drawn = torch.Generator(device).manual_seed(1)
    every = torch.randn(*shape, width, device=device, generator=drawn)

    def layer(scores: Tensor) -> tuple[Tensor, Tensor]:
        selected = made(every, scores)
        return selected.scatter(selected.tokens, every), selected.is_selected

    def usual(scores: Tensor) -> Tensor:
        places = torch.topk(scores.detach(), k, sorted=False).indices.sort(-1).values
        weights = torch.sigmoid(scores.gather(-1, places)).unsqueeze(-1)
        where = places.unsqueeze(-1).expand(*places.shape, width)
        return every.scatter_add(-2, where, every.gather(-2, where) * weights)

    def check(scores: Tensor, found: tuple[Tensor, Tensor], wanted: Tensor) -> Errors:
        moved = (wanted != every).any(-1)
        return _choice(scores, found[1], moved, k)

    return Timed(layer, _first, usual, check)


def attention(shape: tuple[int, ...], k: int, device: torch.device) -> Timed:
    """A causal bias of k keys for each query; the usual one passes no gradient to the indexer."""
    made = nn.SparseAttentionBias(k, TEMPERATURE).to(device)
    seen = torch.ones(shape[-2:], dtype=torch.bool, device=device).tril(shape[-1] - shape[-2])

    def usual(scores: Tensor) -> Tensor:
        places = torch.topk(scores.detach().masked_fill(~seen, -math.inf), k, sorted=False).indices
        bias = torch.full_like(scores, -math.inf).scatter(-1, places, 0.0)
        return bias.masked_fill(~seen, -math.inf)

    def check(scores: Tensor, found: Tensor, wanted: Tensor) -> Errors:
        budgets = seen.sum(-1).clamp(max=k)
        chosen = made.eval()(scores) == 0
        made.train()
        mass = found.exp().double().sum(-1) / budgets - 1
        return {**_choice(scores, chosen, wanted == 0, budgets), "budget": _largest(mass)}

    return Timed(made, _itself, usual, check, has_usual_backward=False)


def checked(timed: Timed, scores: Tensor, layer: Callable[[Tensor], Any]) -> Errors:
    """The errors of ``layer``, which is that of ``timed`` or it compiled; ParityError for one."""
    with torch.no_grad():
        errors = timed.check(scores, layer(scores), timed.usual(scores))
    for name, error in errors.items():
        if not error <= TOLERANCE:
            raise ParityError(
                f"{name}: the error is {error:.3g}, expected at most {TOLERANCE:g}, for scores of "
                f"shape {tuple(scores.shape)}"
            )
    return errors


def checked_gradient(eager: Tensor, compiled: Tensor) -> Errors:
    """How far a compiled layer's gradient is from the eager one's, of its largest entry."""
    error = _largest(compiled.float() - eager.float()) / max(_largest(eager.float()), TINY)
    # A compiler may round to two bytes at other places.
    most = max(TOLERANCE, 4 * torch.finfo(eager.dtype).eps)
    if not error <= most:
        raise ParityError(
            f"gradient: the compiled layer's differs from the eager one's by {error:.3g} of the "
            f"largest entry, expected at most {most:.3g}, for scores of shape {tuple(eager.shape)}"
        )
    return {"gradient": error}


def _choice(scores: Tensor, chosen: Tensor, usual: Tensor, k: int | Tensor) -> Errors:
    """How far the number chosen is from k, and the widest gap of scores chosen by one alone."""
    differs = chosen != usual
    highest = scores.masked_fill(~differs, -math.inf).amax(-1)
    lowest = scores.masked_fill(~differs, math.inf).amin(-1)
    return {
        "number chosen": _largest((chosen.sum(-1) - k).double()),
        "another choice": float((highest - lowest).clamp(min=0).max()),
    }


def _values(scores: Tensor, found: Tensor) -> Errors:
    """Activations are the scores themselves where they are not zero."""
    return {"activations": _largest(found - scores.where(found != 0, 0))}


def _largest(errors: Tensor) -> float:
    return float(errors.abs().max())
