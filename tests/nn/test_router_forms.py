"""Routing in the forms that expert layers take: lists of experts, pairs in groups, maps."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from cases import normal
from fast_lapsum.nn import Routing
from layer_cases import DIM, EXPERTS, TOKENS, small_router


def test_lists_of_experts_with_places_left_over() -> None:
    routing = small_router(budget="batch")(normal(TOKENS, DIM))
    weights, experts = routing.top()
    counts = routing.routing_map.sum(-1)
    assert ((experts < EXPERTS).sum(-1) == counts).all()
    assert (weights[experts == EXPERTS] == 0).all()
    dense = torch.zeros(TOKENS, EXPERTS + 1).double().scatter(-1, experts, weights)
    assert torch.equal(dense[:, :EXPERTS], routing.probabilities)
    assert counts.unique().numel() > 1


@pytest.mark.parametrize("form", ["top", "for_transformers", "for_torchtitan"])
def test_lists_that_are_too_short_are_named(form: str) -> None:
    routing = small_router(budget="batch")(normal(TOKENS, DIM))
    most = int(routing.routing_map.sum(-1).max())
    assert most > 2
    with pytest.raises(ValueError, match=rf"width must be at least .* {most} here.*got width=2"):
        getattr(routing, form)(2)
    getattr(routing, form)(most)
    unseen = Routing(*(one.to("meta") for one in routing[:4]), None)
    assert getattr(unseen, form)(2)[-2].shape == (TOKENS, 2)
    mode = FakeTensorMode()
    fake = Routing(*(mode.from_tensor(one.detach()) for one in routing[:4]), None)
    with mode:
        assert getattr(fake, form)(2)[-2].shape == (TOKENS, 2)


def test_frameworks_find_what_they_expect() -> None:
    routing = small_router()(normal(TOKENS, DIM))
    logits, weights, experts = routing.for_transformers(2)
    assert (logits.shape, weights.shape, experts.shape) == ((48, 6), (48, 2), (48, 2))
    scores, chosen, loads = routing.for_torchtitan(2)
    assert torch.equal(loads, torch.bincount(chosen.flatten(), minlength=EXPERTS))
    assert torch.equal(scores, weights)
    probabilities, routing_map = routing.for_megatron()
    assert routing_map.dtype == torch.bool
    assert torch.equal(probabilities != 0, routing_map)


@pytest.mark.parametrize("form", ["for_megatron", "for_transformers", "for_torchtitan"])
def test_forms_in_a_graph_whose_batch_changes(form: str) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = small_router()

        def forward(self, tokens: Tensor) -> tuple[Tensor, ...]:
            found: tuple[Tensor, ...] = getattr(self.router(tokens), form)()
            return found

    model, batch = Model(), torch.export.Dim("batch")
    program = torch.export.export(model, (normal(4, 7, DIM),), dynamic_shapes=({0: batch},))
    for count in (4, 9):
        tokens = normal(count, 7, DIM, seed=count)
        for found, wanted in zip(program.module()(tokens), model(tokens), strict=True):
            torch.testing.assert_close(found, wanted)


class _Experts:
    """One linear map each, and what a dense sum over all of them gives."""

    def __init__(self) -> None:
        self.weight = normal(EXPERTS, DIM, DIM, seed=5)

    def of_groups(self, tokens: Tensor, sizes: Tensor) -> Tensor:
        """Tokens that are sorted by expert, with the number that each expert has."""
        groups = tokens.split(sizes.tolist())
        return torch.cat([one @ w for one, w in zip(groups, self.weight, strict=True)])

    def dense_sum(self, routing: Routing, tokens: Tensor) -> Tensor:
        computed = torch.einsum("...d,edo->...eo", tokens, self.weight)
        return (routing.probabilities[..., None] * computed).sum(-2)


def test_tokens_are_dispatched_as_by_torchtitan() -> None:
    """Pairs of token and expert are sorted by expert, computed in groups and added up again."""
    experts, tokens = _Experts(), normal(4, 12, DIM).requires_grad_()
    routing = small_router()(tokens)
    weights, chosen, sizes = routing.for_torchtitan(2)
    assert weights.shape == chosen.shape == (48, 2)
    assert sizes.shape == (EXPERTS,)
    order = chosen.reshape(-1).argsort(stable=True)
    of_pair = order // 2
    computed = experts.of_groups(tokens.reshape(-1, DIM)[of_pair], sizes)
    weighted = computed * weights.reshape(-1)[order, None]
    found = torch.zeros(48, DIM).double().index_add(0, of_pair, weighted).view(4, 12, DIM)
    _same_with_gradients(found, experts.dense_sum(routing, tokens), tokens)


@pytest.mark.parametrize("budget", ["token", "batch", "expert"])
def test_tokens_are_dispatched_as_by_megatron(budget: str) -> None:
    """Each expert takes the tokens that the map marks, in their order, with their weights."""
    experts, tokens = _Experts(), normal(12, 4, DIM).requires_grad_()  # sequence first
    routing = small_router(budget=budget)(tokens)
    probabilities, routing_map = routing.for_megatron()
    assert probabilities.shape == routing_map.shape == (48, EXPERTS)
    of_pair = routing_map.T.nonzero()[:, 1]
    sizes = routing_map.sum(0)
    assert torch.equal(sizes, routing.tokens_per_expert())
    computed = experts.of_groups(tokens.reshape(-1, DIM)[of_pair], sizes)
    weighted = computed * probabilities.T[routing_map.T][:, None]
    found = torch.zeros(48, DIM).double().index_add(0, of_pair, weighted).view(12, 4, DIM)
    _same_with_gradients(found, experts.dense_sum(routing, tokens), tokens)


def _same_with_gradients(found: Tensor, wanted: Tensor, tokens: Tensor) -> None:
    torch.testing.assert_close(found, wanted)
    upstream = normal(*wanted.shape, seed=6)
    ours, theirs = (
        torch.autograd.grad(one, tokens, upstream, retain_graph=True)[0] for one in (found, wanted)
    )
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("shape", [(DIM,), (0, DIM), (2, 3, 4, DIM)])
def test_frameworks_get_one_dimension_of_tokens(shape: tuple[int, ...]) -> None:
    count = math.prod(shape[:-1])
    routing = small_router()(normal(*shape))
    logits, weights, experts = routing.for_transformers(2)
    assert [tuple(one.shape) for one in (logits, weights, experts)] == [
        (count, EXPERTS),
        (count, 2),
        (count, 2),
    ]
    assert routing.for_torchtitan(2)[1].shape == (count, 2)
    assert routing.for_megatron()[1].shape == (count, EXPERTS)


def test_the_expert_layer_of_transformers_takes_a_routing() -> None:
    """Its loop over experts gives what all experts computed densely give."""
    pytest.importorskip("transformers")
    from transformers.models.mixtral import modeling_mixtral as mixtral
    from transformers.models.mixtral.configuration_mixtral import MixtralConfig

    if not hasattr(mixtral, "MixtralExperts"):
        pytest.skip("this version of transformers has no expert layer to itself")
    torch.manual_seed(0)
    config = MixtralConfig(hidden_size=DIM, intermediate_size=16, num_local_experts=EXPERTS)
    experts = mixtral.MixtralExperts(config).double()
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter)
    tokens = normal(TOKENS, DIM)
    for budget, width in (("token", 2), ("batch", None), ("expert", None)):
        routing = small_router(budget=budget)(tokens)
        _, weights, chosen = routing.for_transformers(width)
        found = experts(tokens, chosen, weights)
        gate, up = torch.einsum("td,eid->tei", tokens, experts.gate_up_proj).chunk(2, -1)
        computed = torch.einsum("tei,edi->ted", experts.act_fn(gate) * up, experts.down_proj)
        torch.testing.assert_close(found, (routing.probabilities[..., None] * computed).sum(1))
