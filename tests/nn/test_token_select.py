"""Selected tokens: which, with which weight, and back again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cases import normal
from fast_lapsum import reference, soft_topk
from fast_lapsum.nn import TokenSelect


def _inputs(batch: int = 3, length: int = 20, dim: int = 4) -> tuple[Tensor, Tensor]:
    return normal(batch, length, dim), normal(batch, length, seed=1)


@pytest.mark.parametrize(
    ("keep", "count"), [(0.3, 6), (0.31, 7), (5, 5), (1.0, 20), (1, 1), (99, 20)]
)
def test_the_best_tokens_are_selected_in_their_order(keep: float, count: int) -> None:
    tokens, scores = _inputs()
    selected = TokenSelect(keep, 0.5)(tokens, scores)
    best = scores.topk(count, dim=-1).indices.sort(-1).values
    assert torch.equal(selected.indices, best)
    for row in range(3):
        assert torch.equal(selected.tokens[row], tokens[row, best[row]])
        wanted = reference.soft_topk(scores[row], count, 0.5)[best[row]]
        torch.testing.assert_close(selected.weights[row], wanted)
        assert selected.is_selected[row].nonzero().flatten().tolist() == best[row].tolist()


@pytest.mark.parametrize("masked", [False, True])
def test_what_is_scattered_back_has_the_gradient_of_the_definition(masked: bool) -> None:
    """x + p h f(x), dense: h the hard mask and p the soft one."""
    tokens, scores = _inputs()
    tokens, scores = tokens.requires_grad_(), scores.requires_grad_()
    lengths = torch.tensor([20, 11, 4])
    mask = torch.arange(20) < lengths[:, None] if masked else None
    counts = torch.tensor([6.0, 4.0, 2.0]) if masked else torch.full((3,), 6.0)
    selected = TokenSelect(0.3, 0.5)(tokens, scores, mask)
    assert torch.equal((selected.indices >= 0).sum(-1), counts.long())
    found = selected.scatter(selected.tokens.square(), onto=tokens)
    soft = soft_topk(scores, counts, 0.5, mask=mask)
    hard = soft_topk(scores, counts, 0.5, mask=mask, hard=True).detach()
    wanted = tokens + (soft * hard)[..., None] * tokens.square()
    torch.testing.assert_close(found, wanted)
    upstream = normal(3, 20, 4, seed=2)
    for one, other in zip(
        torch.autograd.grad(found, (tokens, scores), upstream),
        torch.autograd.grad(wanted, (tokens, scores), upstream),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_lengths_are_masks() -> None:
    tokens, scores = _inputs()
    lengths = torch.tensor([20, 7, 0])
    by_mask = TokenSelect(0.5)(tokens, scores, torch.arange(20) < lengths[:, None])
    by_length = TokenSelect(0.5)(tokens, scores, lengths=lengths)
    for one, other in zip(by_mask, by_length, strict=True):
        assert torch.equal(one, other)
    assert (by_length.indices[2] == -1).all()
    assert (by_length.tokens[2] == 0).all()
    longer = TokenSelect(0.5)(tokens, scores, lengths=torch.tensor([65, 7, 0]))
    for one, other in zip(by_length, longer, strict=True):
        assert torch.equal(one, other)
    counted = TokenSelect(9)(tokens, scores, lengths=lengths)
    assert (counted.indices >= 0).sum(-1).tolist() == [9, 7, 0]


def test_evaluation_keeps_the_share_token_by_token() -> None:
    """A token is treated alike alone and in its sequence, and the share is kept to 1%."""
    torch.manual_seed(0)
    select = TokenSelect(0.125, 0.2, momentum=None)
    for _ in range(100):
        trained = select(torch.zeros(32, 256, 1), torch.randn(32, 256))
    select.eval()
    scores = torch.randn(512, 1024)
    tokens = scores.unsqueeze(-1)
    whole = select(tokens, scores)
    assert whole.is_selected.double().mean().item() == pytest.approx(0.125, rel=0.01)
    assert whole.weights[whole.indices >= 0].mean() == pytest.approx(
        trained.weights.mean().item(), rel=0.02
    )
    dense = whole.scatter(torch.ones_like(tokens), onto=torch.zeros_like(tokens))
    for place in (0, 5, 77):
        one = select(tokens[:, place : place + 1], scores[:, place : place + 1])
        alone = one.scatter(torch.ones(512, 1, 1), onto=torch.zeros(512, 1, 1))
        torch.testing.assert_close(alone, dense[:, place : place + 1])
    lengths = torch.randint(0, 1024, (512,))
    padded = select(tokens, scores, lengths=lengths)
    assert not padded.is_selected[torch.arange(1024) >= lengths[:, None]].any()


def test_evaluation_by_budget_is_as_in_training() -> None:
    tokens, scores = _inputs()
    select = TokenSelect(0.3, inference="budget")
    assert set(select.state_dict()) == {"given_temperature"}
    for one, other in zip(select(tokens, scores), select.eval()(tokens, scores), strict=True):
        assert torch.equal(one, other)


def test_the_rest_is_one_token() -> None:
    tokens, scores = _inputs()
    attention = scores.softmax(-1)
    selected = TokenSelect(0.3)(tokens, attention)
    fused = selected.fused_rest(tokens, attention)
    for row in range(3):
        rest = ~selected.is_selected[row]
        share = attention[row, rest] / attention[row, rest].sum()
        torch.testing.assert_close(fused[row, 0], (share[:, None] * tokens[row, rest]).sum(0))
    everything = TokenSelect(1.0)(tokens, attention)
    assert (everything.fused_rest(tokens, attention) == 0).all()


def test_rows_without_enough_valid_scores() -> None:
    tokens, scores = _inputs(batch=2)
    scores[0, 1:] = -torch.inf
    selected = TokenSelect(4, inference="budget")(tokens, scores)
    assert selected.indices[0].tolist() == [0, -1, -1, -1]
    assert selected.is_selected.sum(-1).tolist() == [1, 4]


@pytest.mark.parametrize("keep", [0, 0.0, -1, 1.5, float("nan")])
def test_bad_shares_are_named(keep: float) -> None:
    with pytest.raises(ValueError, match=f"keep must .*got keep={keep}"):
        TokenSelect(keep)


def test_bad_shapes_are_named() -> None:
    tokens, scores = _inputs()
    with pytest.raises(ValueError, match=r"scores must have the shape .*\(3, 20\), got \(3, 19\)"):
        TokenSelect(0.5)(tokens, scores[:, :19])
    with pytest.raises(ValueError, match=r"lengths must have one value per sequence.*got .*\(2,\)"):
        TokenSelect(0.5)(tokens, scores, lengths=torch.tensor([3, 4]))
    selected = TokenSelect(5)(tokens, scores)
    computed = selected.tokens
    for wrong in (computed[:, :4], computed[:2], computed[..., 0, :], computed.sum()):
        with pytest.raises(ValueError, match=r"^computed must have the shape \(3, 5"):
            selected.scatter(wrong, tokens)
    for wrong in (tokens[:, :3], tokens[:2], tokens[..., :3]):
        with pytest.raises(ValueError, match=r"^onto must have the shape \(3, 20, 4\) .* got \("):
            selected.scatter(computed, wrong)
    with pytest.raises(ValueError, match=r"^weights must have the shape \(3, 20\) .* got \(3, 3\)"):
        selected.fused_rest(tokens, scores[:, :3])
    with pytest.raises(
        ValueError, match=r"^tokens must have the shape \(3, 20, 4\) .*\(3, 19, 4\)"
    ):
        selected.fused_rest(tokens[:, :19], scores)
