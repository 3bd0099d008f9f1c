"""Routing: exact budgets, capacity, padding, and gradients to all experts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cases import normal
from fast_lapsum import reference, soft_topk
from fast_lapsum.nn import Routing, TopKRouter
from layer_cases import DIM, EXPERTS, TOKENS, small_router


def test_a_token_has_its_experts_and_the_soft_masks_weights() -> None:
    router, tokens = small_router(), normal(4, 12, DIM)
    routing = router(tokens)
    logits = tokens @ router.weight.T
    for token, soft, weights, chosen in zip(
        logits.flatten(0, 1),
        routing.scores.flatten(0, 1),
        routing.probabilities.flatten(0, 1),
        routing.routing_map.flatten(0, 1),
        strict=True,
    ):
        wanted = reference.soft_topk(token.detach(), 2, 0.5)
        torch.testing.assert_close(soft, wanted)
        best = token.topk(2).indices
        assert set(best.tolist()) == set(chosen.nonzero().flatten().tolist())
        torch.testing.assert_close(weights[best], wanted[best])
        assert (weights != 0).sum() == 2


def test_the_gradient_of_a_weight_reaches_every_expert() -> None:
    router, tokens = small_router(), normal(TOKENS, DIM).requires_grad_()
    routing = router(tokens)
    upstream = normal(TOKENS, EXPERTS, seed=1)
    (found,) = torch.autograd.grad((routing.probabilities * upstream).sum(), router.weight)
    soft = soft_topk(tokens @ router.weight.T, 2, 0.5)
    wanted = (soft * upstream * routing.routing_map).sum()
    torch.testing.assert_close(found, torch.autograd.grad(wanted, router.weight)[0])


@pytest.mark.parametrize("budget", ["batch", "expert"])
def test_budgets_over_a_batch_are_exact(budget: str) -> None:
    router, tokens = small_router(budget=budget), normal(TOKENS, DIM)
    routing = router(tokens)
    logits = tokens @ router.weight.T
    if budget == "batch":
        wanted = soft_topk(logits, 2 * TOKENS, 0.5, dim=None)
        assert routing.routing_map.sum() == 2 * TOKENS
        assert routing.scores.sum().item() == pytest.approx(2 * TOKENS)
    else:
        wanted = soft_topk(logits, 2 * TOKENS / EXPERTS, 0.5, dim=0)
        assert (routing.tokens_per_expert() == 2 * TOKENS // EXPERTS).all()
    torch.testing.assert_close(routing.scores, wanted)


@pytest.mark.parametrize("budget", ["batch", "expert"])
def test_evaluation_routes_tokens_one_by_one_within_the_budget(budget: str) -> None:
    router = small_router(budget=budget, momentum=None).float()
    with torch.no_grad():
        for _ in range(30):
            router(torch.randn(256, DIM))
        trained = router(torch.randn(4096, DIM))
        router.eval()
        held_out = torch.randn(8192, DIM)
        routing = router(held_out)
        alone = router(held_out[:1])
    per_token = routing.routing_map.sum(-1).double().mean().item()
    assert per_token == pytest.approx(2, rel=0.02)
    if budget == "expert":
        loads = routing.tokens_per_expert() / (2 * 8192 / EXPERTS)
        torch.testing.assert_close(loads, torch.ones(EXPERTS), rtol=0.08, atol=0)
    torch.testing.assert_close(alone.probabilities, routing.probabilities[:1])
    # Weights are those that training had: the same share of the soft mask's mass.
    shares = [one.probabilities.sum(-1).mean() / 2 for one in (trained, routing)]
    torch.testing.assert_close(shares[0], shares[1], rtol=0.03, atol=0)


def test_a_selection_bias_moves_the_choice_and_not_the_weights() -> None:
    router, plain = small_router(use_selection_bias=True), small_router()
    tokens = normal(TOKENS, DIM)
    assert router.state.selection_bias is not None
    assert torch.equal(router(tokens).routing_map, plain(tokens).routing_map)
    router.state.selection_bias[3] = 100.0
    routing = router(tokens)
    assert routing.routing_map[:, 3].all()
    assert (routing.routing_map.sum(-1) == 2).all()
    torch.testing.assert_close(routing.scores, plain(tokens).scores)
    weights = routing.scores * routing.routing_map
    torch.testing.assert_close(routing.probabilities, weights)


def test_a_selection_bias_balances_loads() -> None:
    router = small_router(use_selection_bias=True)
    with torch.no_grad():
        router.weight[0] += 0.5
        tokens = normal(2000, DIM) + 1
        before = router(tokens).tokens_per_expert().double().std()
        for _ in range(300):
            router.update_selection_bias(router(tokens).tokens_per_expert(), rate=0.02)
        assert router(tokens).tokens_per_expert().double().std() < before / 10
    with pytest.raises(ValueError, match="use_selection_bias=True, got False"):
        small_router().update_selection_bias(torch.ones(EXPERTS))


def test_capacity_keeps_the_highest_weights_of_an_expert() -> None:
    router, free = small_router(capacity_factor=0.75), small_router()
    tokens = normal(TOKENS, DIM)
    limited, routing = router(tokens), free(tokens)
    most = math.ceil(0.75 * 2 * TOKENS / EXPERTS)
    loads = routing.tokens_per_expert()
    assert torch.equal(limited.tokens_per_expert(), loads.clamp(max=most))
    for expert in range(EXPERTS):
        kept = routing.probabilities[:, expert].topk(min(most, int(loads[expert]))).indices
        assert limited.routing_map[kept, expert].all()
    assert torch.equal(router.eval()(tokens).routing_map, routing.routing_map)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("top_k", [1, 2, EXPERTS])
def test_capacity_ranks_weights_that_are_all_one(top_k: int, normalize: bool) -> None:
    """At a low temperature the best tokens stay, not the earliest."""
    torch.manual_seed(0)
    settings: Any = {"capacity_factor": 0.5, "normalize": normalize}
    router = TopKRouter(DIM, EXPERTS, top_k, 1e-4, **settings).double()
    tokens = normal(TOKENS, DIM)
    routing = router(tokens)
    most = math.ceil(0.5 * top_k * TOKENS / EXPERTS)
    # At a temperature of 0+ a threshold lies halfway between the scores next to it.
    heights = routing.logits.detach().clone()
    if top_k < EXPERTS:
        best = heights.topk(top_k + 1, -1).values
        heights -= best[:, -2:].mean(-1, keepdim=True)
    is_wanted = heights > 0 if top_k < EXPERTS else torch.ones_like(heights, dtype=torch.bool)
    for expert in range(EXPERTS):
        of_expert = heights[:, expert].masked_fill(~is_wanted[:, expert], -math.inf)
        kept = of_expert.topk(min(most, int(is_wanted[:, expert].sum()))).indices
        found = routing.routing_map[:, expert].nonzero().flatten()
        assert set(found.tolist()) == set(kept.tolist())


@pytest.mark.parametrize("budget", ["token", "batch"])
def test_padding_takes_no_capacity(budget: str) -> None:
    router = small_router(budget=budget, capacity_factor=0.6)
    tokens, is_token = normal(40, DIM), torch.arange(40) % 4 == 1
    padded, alone = router(tokens, is_token), router(tokens[is_token])
    assert torch.equal(padded.routing_map[is_token], alone.routing_map)
    assert padded.tokens_per_expert().max() == math.ceil(0.6 * 2 * 10 / EXPERTS)
    assert not router(tokens, torch.zeros_like(is_token)).routing_map.any()


@pytest.mark.parametrize("budget", ["token", "batch", "expert"])
def test_padding_is_not_routed(budget: str) -> None:
    router = small_router(budget=budget)
    tokens, is_token = normal(2, 24, DIM), torch.arange(24) < torch.tensor([[24], [12]])
    tokens[~is_token] = 1e3
    for training in (True, False):
        routing = router.train(training)(tokens, is_token)
        assert not routing.routing_map[~is_token].any()
        assert (routing.probabilities[~is_token] == 0).all()
    alone = router.train()(tokens[is_token])
    padded = router(tokens, is_token)
    torch.testing.assert_close(padded.scores[is_token], alone.scores)
    assert torch.equal(padded.routing_map[is_token], alone.routing_map)
    for loss in ("load_balance_loss", "z_loss"):
        torch.testing.assert_close(getattr(padded, loss)(), getattr(alone, loss)())


def test_the_losses_are_their_definitions() -> None:
    routing = small_router()(normal(TOKENS, DIM))
    load = routing.routing_map.double().mean(0) / 2
    share = routing.scores.mean(0) / 2
    torch.testing.assert_close(routing.load_balance_loss(), EXPERTS * (load * share).sum())
    z = torch.log(routing.logits.exp().sum(-1)) ** 2
    torch.testing.assert_close(routing.z_loss(), z.mean())
    even = Routing(*(torch.ones(6, 3),) * 3, torch.ones(6, 3, dtype=torch.bool), None)
    assert even.load_balance_loss() == 1
    torch.set_default_dtype(torch.bfloat16)
    try:
        in_bfloat16 = routing.load_balance_loss()
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(in_bfloat16, routing.load_balance_loss())
    assert routing.load_balance_loss().requires_grad


@pytest.mark.parametrize("budget", ["token", "batch", "expert"])
@pytest.mark.parametrize("count", [0, 5])
def test_the_losses_of_no_tokens_are_zero(budget: Any, count: int) -> None:
    """Of an empty batch, and of one that is padding."""
    router = small_router(budget=budget)
    routing = router(normal(count, DIM), torch.zeros(count, dtype=torch.bool) if count else None)
    loss = routing.load_balance_loss() + routing.z_loss()
    loss.backward()
    assert loss == 0
    assert (router.weight.grad == 0).all()


def test_normalized_weights_add_up_to_one() -> None:
    routing = small_router(normalize=True)(normal(TOKENS, DIM))
    torch.testing.assert_close(routing.probabilities.sum(-1), torch.ones(TOKENS).double())


@pytest.mark.parametrize("budget", ["token", "batch"])
@pytest.mark.parametrize("temperature", [0.0, 1e-3, 0.5])
def test_experts_that_a_bias_chose_have_weights_that_add_up_to_one(
    budget: Any, temperature: float
) -> None:
    torch.manual_seed(0)
    settings: Any = {"budget": budget, "use_selection_bias": True, "normalize": True}
    router = TopKRouter(DIM, 4, 1, temperature, **settings)
    bias: Any = router.state.selection_bias
    bias[0] = 100
    tokens = normal(TOKENS, DIM).float().requires_grad_()
    is_token = torch.arange(TOKENS) % 3 > 0
    for training in (True, False):
        for mask in (None, is_token):
            routing = router.train(training)(tokens, mask)
            has_expert = routing.routing_map.any(-1)
            torch.testing.assert_close(routing.probabilities.sum(-1), has_expert.float())
            assert has_expert.sum() >= (30 if mask is not None else 45)
            assert (routing.probabilities[~routing.routing_map] == 0).all()
            weighted = (routing.probabilities * torch.arange(4)).sum() + routing.scores[:, 1].sum()
            gradients = torch.autograd.grad(weighted, (tokens, router.weight))
            assert all(gradient.isfinite().all() for gradient in gradients)


def test_normalized_weights_are_a_quotient_with_its_gradient() -> None:
    tokens, upstream = normal(TOKENS, DIM).requires_grad_(), normal(TOKENS, EXPERTS, seed=1)
    weights, router = small_router(normalize=True)(tokens).probabilities, small_router()
    plain = router(tokens).probabilities
    wanted = plain / plain.sum(-1, keepdim=True)
    torch.testing.assert_close(weights, wanted)
    torch.testing.assert_close(
        *(torch.autograd.grad(one, tokens, upstream)[0] for one in (weights, wanted))
    )


def test_a_router_computed_again_routes_the_same() -> None:
    """Ties everywhere, and the forward pass is repeated for the backward pass."""
    router = small_router(budget="batch")
    tokens = normal(8, DIM).repeat(6, 1).requires_grad_()

    def layer(tokens: Tensor) -> Tensor:
        return router(tokens).probabilities.square()

    checkpoint(layer, tokens, use_reentrant=False).sum().backward()  # type: ignore[no-untyped-call]
    found = tokens.grad
    tokens.grad = None
    layer(tokens).sum().backward()
    assert found is not None
    torch.testing.assert_close(tokens.grad, found, rtol=0, atol=0)


def test_logits_are_float32_in_a_model_of_two_bytes() -> None:
    router = small_router().bfloat16()
    tokens = normal(TOKENS, DIM, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        routing = router(tokens)
    assert routing.logits.dtype == routing.probabilities.dtype == torch.float32
    torch.testing.assert_close(routing.logits, tokens.float() @ router.weight.float().T)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"top_k": 7}, r"top_k must lie in \[1, num_experts=6\], got top_k=7"),
        ({"num_experts": 0}, "num_experts must be a whole number over 0"),
        ({"budget": "row"}, "budget must be one of 'token', 'batch', 'expert'"),
        ({"capacity_factor": 0.0}, "capacity_factor must be over 0, got 0.0"),
        ({"budget": "expert", "use_selection_bias": True}, "equal loads by itself"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TopKRouter(**{"dim": DIM, "num_experts": EXPERTS, "top_k": 2, **arguments})


def test_bad_tokens_are_named() -> None:
    with pytest.raises(ValueError, match=r"tokens must have dim=8 .* \(4, 7\)"):
        small_router()(normal(4, 7))
    with pytest.raises(TypeError, match="mask must be bool"):
        small_router()(normal(4, 8), torch.ones(4))
    says = r"mask must broadcast to the shape of tokens without the last dimension, \(4,\)"
    with pytest.raises(ValueError, match=says + r", on cpu, got shape \(5,\) on cpu"):
        small_router()(normal(4, 8), torch.ones(5, dtype=torch.bool))
    with pytest.raises(ValueError, match=says + r", on cpu, got shape \(4,\) on meta"):
        small_router()(normal(4, 8), torch.ones(4, dtype=torch.bool, device="meta"))


def test_a_router_shows_what_was_set_and_not_its_state() -> None:
    plain = "TopKRouter(dim=8, num_experts=6, top_k=2, temperature=0.5, budget='token'"
    assert repr(small_router()) == plain + ")"
    settings: dict[str, Any] = {"normalize": True, "capacity_factor": 1.25}
    shown = repr(small_router(**settings, use_selection_bias=True))
    assert shown == plain + ", normalize=True, capacity_factor=1.25, use_selection_bias=True)"
    by_batch = small_router(budget="batch", momentum=0.1)
    assert repr(by_batch).endswith("budget='batch', momentum=0.1)")
    by_batch.extra = torch.nn.Linear(2, 3)
    assert "(extra): Linear(" in repr(by_batch)


@pytest.mark.parametrize("is_padded", [False, True])
def test_a_capacity_that_is_whole_but_for_rounding_is_whole(is_padded: bool) -> None:
    """1.1 times 10 is 11.000000000000002, which is no reason to take a twelfth token."""
    torch.manual_seed(0)
    router = TopKRouter(DIM, 2, 1, 0.5, capacity_factor=1.1)
    with torch.no_grad():
        router.weight[0], router.weight[1] = 1.0, -1.0  # all tokens want the first expert
    tokens = torch.ones(20, DIM)
    mask = torch.ones(20, dtype=torch.bool) if is_padded else None
    assert router(tokens, mask).tokens_per_expert().tolist() == [11, 0]


@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {"budget": "token", "capacity_factor": 1.1},
        {"budget": "batch", "use_selection_bias": True},
        {"budget": "expert", "normalize": True},
    ],
    ids=lambda settings: settings["budget"],
)
def test_shapes_are_known_on_the_meta_device(settings: Any, is_padded: bool) -> None:
    with torch.device("meta"):
        router, tokens = TopKRouter(DIM, EXPERTS, 2, 0.5, **settings), torch.empty(3, 5, DIM)
        mask = torch.empty(3, 5, dtype=torch.bool) if is_padded else None
    for _ in range(2):
        routing = router(tokens, mask)
        assert routing.probabilities.is_meta
        assert routing.probabilities.shape == routing.routing_map.shape == (3, 5, EXPERTS)
        assert routing.top(2)[1].shape == (3, 5, 2)
        router.eval()


@pytest.mark.parametrize("normalize", [False, True])
def test_logits_of_something_else_are_routed_alike(normalize: bool) -> None:
    router, tokens = small_router(normalize=normalize), normal(4, 12, DIM)
    mask = normal(4, 12, seed=1) > -1
    wanted, found = router(tokens, mask), router.route(tokens @ router.weight.T, mask)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)
    assert router.route(normal(3, EXPERTS).bfloat16()).scores.dtype == torch.float32
    with pytest.raises(ValueError, match=r"num_experts=6 entries.*got shape \(3, 5\)"):
        router.route(normal(3, 5))


def test_shares_of_a_token_with_a_nan_are_nan_and_others_are_not() -> None:
    router, logits = small_router(normalize=True), normal(5, EXPERTS)
    logits[2, 1] = math.nan
    leaf = logits.requires_grad_()
    weights = router.route(leaf).probabilities
    assert torch.equal(weights.isnan().any(-1), torch.arange(5) == 2)
    (gradient,) = torch.autograd.grad(weights, leaf, normal(5, EXPERTS, seed=1))
    assert torch.equal(gradient.isnan().any(-1), torch.arange(5) == 2)


def test_loads_and_logits_are_checked() -> None:
    router = TopKRouter(16, 8, 2, use_selection_bias=True)
    for loads in (torch.ones(7), torch.ones(1), torch.tensor(3)):
        with pytest.raises(ValueError, match="one number for each of 8 experts, got shape"):
            router.update_selection_bias(loads)
    with pytest.raises(TypeError, match="logits must be a tensor of a floating-point dtype, got t"):
        router.route(torch.ones(4, 8, dtype=torch.int64))
    with pytest.raises(TypeError, match="got list"):
        router.route([1.0] * 8)  # type: ignore[arg-type]


@pytest.mark.parametrize("normalize", [False, True])
def test_tokens_in_one_dimension_have_no_views(normalize: bool) -> None:
    """A graph has the mask and what weights are made of it: every view costs a caller's time."""
    router = TopKRouter(4, 6, 2, 0.5, normalize=normalize)
    logits = normal(5, 6).float().requires_grad_()
    routing = router.route(logits)
    assert routing.logits is logits
    weights, chosen = routing.for_megatron()
    assert weights is routing.probabilities
    assert chosen is routing.routing_map
    nodes, found = [weights.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is not None:
            found.add(type(node).__name__)
            nodes += [one for one, _ in node.next_functions]
    assert not [name for name in found if "View" in name or "Alias" in name], found
    several = router.route(logits.reshape(5, 1, 6))
    for one, other in zip(routing[:4], several[:4], strict=True):
        assert torch.equal(one, other[:, 0])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_shares_of_logits_that_are_no_numbers(bad: float) -> None:
    """A NaN makes its token's weights NaN, also with a mask; infinities are chosen or not."""
    router = TopKRouter(4, 6, 2, 0.5, normalize=True)
    logits = normal(3, 6).float()
    logits[1, 2] = bad
    alone = router.route(logits)
    beside = router.route(logits, torch.ones(3, dtype=torch.bool))
    for one, other in zip(alone[1:4], beside[1:4], strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)
    assert alone.probabilities[1].isnan().all() == math.isnan(bad)
    sums = alone.probabilities[[0, 2]].sum(-1)
    torch.testing.assert_close(sums, torch.ones(2))


@pytest.mark.parametrize("budget", ["expert", "batch"])
def test_a_mask_of_all_tokens_is_none_under_any_default_dtype(budget: Any) -> None:
    capacity = 1.0 if budget == "batch" else None
    router = TopKRouter(DIM, EXPERTS, 2, budget=budget, capacity_factor=capacity)
    tokens = normal(4099, DIM, seed=3, dtype=torch.float32)
    torch.set_default_dtype(torch.bfloat16)  # which has no 4099
    try:
        whole, masked = router(tokens), router(tokens, torch.ones(4099, dtype=torch.bool))
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(whole.routing_map, masked.routing_map)
    assert torch.equal(whole.scores, masked.scores)
