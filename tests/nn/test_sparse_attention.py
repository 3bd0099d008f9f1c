"""Attention to k keys: the bias, and gradients that reach the indexer, against dense float64."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cases import normal
from fast_lapsum import reference
from fast_lapsum.nn import SparseAttentionBias

BATCH, HEADS, LENGTH, DIM = 2, 3, 12, 4


def _attention_inputs(queries: int = LENGTH) -> tuple[Tensor, Tensor, Tensor]:
    query = normal(BATCH, HEADS, queries, DIM)
    return (
        query,
        normal(BATCH, HEADS, LENGTH, DIM, seed=1),
        normal(BATCH, HEADS, LENGTH, DIM, seed=2),
    )


def _dense(
    query: Tensor, key: Tensor, value: Tensor, scores: Tensor, k: int, t: float, block_size: int
) -> Tensor:
    """Row by row: weights p e^(q k), of the keys that a query sees."""
    rows = []
    for b in range(BATCH):
        for h in range(HEADS):
            for i in range(query.shape[2]):
                seen = LENGTH - query.shape[2] + i + 1
                blocks = math.ceil(seen / block_size)
                of_row = scores[b, 0, i, :blocks]
                p = _with_graph(of_row, min(k, blocks), t)
                wanted = reference.soft_topk(of_row.detach(), min(k, blocks), t)
                torch.testing.assert_close(p.detach(), wanted)
                logits = query[b, h, i] @ key[b, h, :seen].T / math.sqrt(DIM)
                weights = p.repeat_interleave(block_size)[:seen] * logits.exp()
                rows.append((weights / weights.sum()) @ value[b, h, :seen])
    return torch.stack(rows).view(query.shape)


def _with_graph(scores: Tensor, k: int, t: float) -> Tensor:
    """The soft mask by bisection, and its gradient by one step of Newton's method."""
    if k == scores.numel():
        return torch.ones_like(scores)
    low, high = scores.detach().min() - 50 * t, scores.detach().max() + 50 * t

    def mass(b: Tensor) -> Tensor:
        u = (scores - b) / t
        return torch.where(u > 0, 1 - torch.exp(-u.abs()) / 2, torch.exp(-u.abs()) / 2)

    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if mass(middle).sum() > k else (low, middle)
    b = ((low + high) / 2).detach()
    slope = -(torch.exp(-((scores.detach() - b) / t).abs()) / (2 * t)).sum()
    return mass(b - (mass(b).sum() - k) / slope)


@pytest.mark.parametrize("block_size", [1, 4])
@pytest.mark.parametrize("queries", [LENGTH, 5])
def test_the_attentions_gradient_reaches_the_indexer(block_size: int, queries: int) -> None:
    query, key, value = (one.requires_grad_() for one in _attention_inputs(queries))
    scores = normal(BATCH, 1, queries, LENGTH // block_size, seed=3).requires_grad_()
    k, t = (4, 0.5) if block_size == 1 else (2, 0.5)
    bias = SparseAttentionBias(k, t, block_size=block_size)
    found = F.scaled_dot_product_attention(query, key, value, attn_mask=bias(scores))
    wanted = _dense(query, key, value, scores, k, t, block_size)
    torch.testing.assert_close(found, wanted)
    upstream = normal(*found.shape, seed=4)
    inputs = (query, key, value, scores)
    for one, other in zip(
        torch.autograd.grad(found, inputs, upstream),
        torch.autograd.grad(wanted, inputs, upstream),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)
    assert scores.grad is None


@pytest.mark.parametrize("block_size", [1, 4])
def test_flex_attention_gives_the_same(block_size: int) -> None:
    """And passes the gradient on to the indexer; on a CPU it has none for its own inputs."""
    from torch.nn.attention.flex_attention import flex_attention

    query, key, value = _attention_inputs()
    scores = normal(BATCH, 1, LENGTH, LENGTH // block_size, seed=3).requires_grad_()
    bias = SparseAttentionBias(2, 0.5, block_size=block_size)
    wanted = F.scaled_dot_product_attention(query, key, value, attn_mask=bias(scores))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not compiled, it says, and it is right
        found = flex_attention(query, key, value, score_mod=bias.score_mod(scores))
    assert isinstance(found, Tensor)
    torch.testing.assert_close(found, wanted)
    upstream = normal(*found.shape, seed=4)
    (one,) = torch.autograd.grad(found, scores, upstream)
    torch.testing.assert_close(one, torch.autograd.grad(wanted, scores, upstream)[0])
    assert one.abs().sum() > 0


def test_a_row_that_sees_few_keys_takes_them_whole() -> None:
    bias = SparseAttentionBias(4, 0.3)(normal(LENGTH, LENGTH))
    for row in range(LENGTH):
        p = bias[row].exp()
        assert p.sum().item() == pytest.approx(min(4, row + 1))
        assert (bias[row, row + 1 :] == -math.inf).all()
    assert (bias[:4].exp() == torch.tril(torch.ones(LENGTH, LENGTH))[:4]).all()


def test_in_evaluation_k_keys_are_left() -> None:
    scores = normal(2, LENGTH, LENGTH)
    bias = SparseAttentionBias(4.9, 0.3).eval()(scores)
    causal = torch.tril(torch.ones(LENGTH, LENGTH, dtype=torch.bool))
    wanted = scores.masked_fill(~causal, -math.inf)
    for row in range(LENGTH):
        places = wanted[:, row].topk(min(4, row + 1)).indices
        kept = torch.full((2, LENGTH), -math.inf).double().scatter(1, places, 0.0)
        assert torch.equal(bias[:, row], kept)


def test_a_last_block_in_part_and_masked_blocks() -> None:
    scores = normal(3, 10, 3)
    bias = SparseAttentionBias(2, 0.3, block_size=4, is_causal=False)
    found = bias(scores, num_keys=10)
    assert found.shape == (3, 10, 10)
    assert torch.equal(found, bias(scores)[..., :10])
    mask = torch.tensor([True, False, True])
    assert (bias(scores, 10, mask)[..., 4:8] == -math.inf).all()
    causal = SparseAttentionBias(2, 0.3, block_size=4)(scores, num_keys=10)
    seen = torch.tril(torch.ones(10, 10, dtype=torch.bool))
    assert (causal[:, ~seen] == -math.inf).all()
    assert causal[:, seen].isfinite().all()


def test_bad_arguments_are_named() -> None:
    bias = SparseAttentionBias(2, block_size=4)
    with pytest.raises(
        ValueError, match=r"num_keys must fill 3 blocks of block_size=4.*num_keys=8"
    ):
        bias(normal(5, 3), num_keys=8)
    with pytest.raises(ValueError, match=r"scores must have a dimension of queries.*\(5,\)"):
        bias(normal(5))
    with pytest.raises(ValueError, match=r"scores must be \(batch, heads, queries, blocks\)"):
        bias.score_mod(normal(5, 3))
    with pytest.raises(ValueError, match="block_size must be a whole number over 0"):
        SparseAttentionBias(2, block_size=0)
    with pytest.raises(ValueError, match="k must be finite and at least 1, got k=0"):
        SparseAttentionBias(0)
    with pytest.raises(ValueError, match=r"k must be finite and at least 1, got k=0\.5"):
        bias.k = 0.5
    state = {**bias.state_dict(), "given_k": torch.tensor(0.0)}
    with pytest.raises(RuntimeError, match=r"given_k: k must be finite and at least 1, got k=0\.0"):
        bias.load_state_dict(state)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("queries", "num_keys"), [(LENGTH, None), (5, 10)])
def test_a_block_mask_leaves_out_what_is_not_chosen(
    is_causal: bool, queries: int, num_keys: int | None
) -> None:
    """The attention is that of `eval()`, and tiles list the blocks that their queries read."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    keys, block_size, tile = num_keys or LENGTH, 4, 2
    query, key, value = _attention_inputs(queries)
    key, value = key[:, :, :keys], value[:, :, :keys]
    scores = normal(BATCH, 1, queries, 3, seed=3)
    bias = SparseAttentionBias(1, 0.5, block_size=block_size, is_causal=is_causal)
    found_mask = bias.block_mask(scores, num_keys, query_block_size=tile)
    bias.eval()
    wanted = F.scaled_dot_product_attention(query, key, value, attn_mask=bias(scores, num_keys))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not compiled
        found = flex_attention(query, key, value, block_mask=found_mask)
    torch.testing.assert_close(found, wanted)
    dense = create_block_mask(
        found_mask.mask_mod, BATCH, 1, queries, keys, device="cpu", BLOCK_SIZE=(tile, block_size)
    ).to_dense()
    assert torch.equal(found_mask.to_dense(), dense)
    assert found_mask.to_dense().float().mean() < 1


def test_a_block_mask_keeps_a_nan_to_be_seen() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    query, key, value = _attention_inputs()
    scores = normal(BATCH, 1, LENGTH, 3, seed=3)
    scores[0, 0, 7, 1] = math.nan
    bias = SparseAttentionBias(1, 0.5, block_size=4).eval()
    mask, score_mod = bias.block_mask(scores, query_block_size=4), bias.score_mod(scores)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not compiled
        found = flex_attention(query, key, value, score_mod=score_mod, block_mask=mask)
    assert isinstance(found, Tensor)
    is_nan = torch.zeros_like(found, dtype=torch.bool)
    is_nan[0, :, 7] = True
    assert torch.equal(found.isnan(), is_nan)
