"""Losses of the first k against their definitions in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import normal
from fast_lapsum import losses, reference, soft_topk
from fast_lapsum.losses import TopKCrossEntropyLoss, recall_at_k, soft_ndcg, spearman_loss

P_K = [0.2, 0.0, 0.3, 0.0, 0.5]


def _distribution(scores: Tensor, p_k: list[float], t: float, top1: str) -> Tensor:
    """The probability of being among the first K, by the float64 reference."""
    total = torch.zeros_like(scores)
    for k, share in enumerate(p_k, start=1):
        if k == 1 and top1 == "softmax":
            total += share * scores.exp() / scores.exp().sum(-1, keepdim=True)
        else:
            total += share * torch.stack([reference.soft_topk(row, k, t) for row in scores])
    return total


@pytest.mark.parametrize("top1", ["softmax", "soft_topk"])
@pytest.mark.parametrize("t", [0.05, 1.0])
@pytest.mark.parametrize("p_k", [P_K, [0.0, 0.0, 1.0], [1.0]], ids=str)
def test_the_loss_is_its_definition(p_k: list[float], t: float, top1: str) -> None:
    scores, labels = normal(6, 9), torch.tensor([0, 3, 8, 2, 2, 5])
    loss = TopKCrossEntropyLoss(p_k, t, top1=top1, reduction="none")  # type: ignore[arg-type]
    wanted = -_distribution(scores, p_k, t, top1).log().gather(1, labels[:, None]).squeeze(1)
    torch.testing.assert_close(loss(scores, labels), wanted)
    mean = TopKCrossEntropyLoss(p_k, t, top1=top1)(scores, labels)  # type: ignore[arg-type]
    torch.testing.assert_close(mean, wanted.mean())


def test_with_one_k_it_is_the_published_formula() -> None:
    """Negative log of the clipped distribution, of which all but the clipping is the same."""
    scores, labels = normal(50, 20).requires_grad_(), torch.arange(50) % 20
    membership = soft_topk(scores, 5, 1.0)
    published = torch.nn.functional.nll_loss(torch.log(membership * (1 - 2e-7) + 1e-7), labels)
    loss = TopKCrossEntropyLoss([0, 0, 0, 0, 1], 1.0)(scores, labels)
    torch.testing.assert_close(loss, published, rtol=1e-4, atol=0)
    (one,), (other,) = (torch.autograd.grad(x, scores) for x in (loss, published))
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-7)


def test_with_k_of_1_by_softmax_it_is_the_cross_entropy() -> None:
    scores, labels = normal(6, 9), torch.tensor([0, 3, -100, 2, 2, 5])
    found = TopKCrossEntropyLoss([1.0])(scores, labels)
    torch.testing.assert_close(found, torch.nn.functional.cross_entropy(scores, labels))


def test_gradients_are_those_of_the_definition() -> None:
    loss = TopKCrossEntropyLoss(P_K, 0.7)
    labels = torch.tensor([0, 3, 5])
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), (normal(3, 7).requires_grad_(),))
    several = normal(3, 7, seed=1) > 0
    assert torch.autograd.gradcheck(lambda x: loss(x, several), (normal(3, 7).requires_grad_(),))


def test_a_label_far_behind_still_learns() -> None:
    """Where the clipped logarithm is constant, and p underflows."""
    scores = torch.tensor([[0.0, -1.0, -300.0]], requires_grad=True)
    loss = TopKCrossEntropyLoss([0, 1.0], 1.0)(scores, torch.tensor([2]))
    assert loss.item() == pytest.approx(150, rel=0.01)
    loss.backward()
    assert scores.grad is not None
    assert scores.grad[0, 2] == pytest.approx(-0.5, abs=0.01)


def test_several_labels_have_the_mean_of_their_losses() -> None:
    scores = normal(3, 9)
    several = torch.zeros(3, 9, dtype=torch.bool)
    several[0, [1, 4]] = several[1, 7] = True
    loss = TopKCrossEntropyLoss(P_K, 0.5, reduction="none")
    found = loss(scores, several)
    single = [loss(scores[:1], torch.tensor([label])) for label in (1, 4)]
    torch.testing.assert_close(found[0], torch.cat(single).mean())
    torch.testing.assert_close(found[1:2], loss(scores[1:2], torch.tensor([7])))
    assert found[2] == 0
    mean = TopKCrossEntropyLoss(P_K, 0.5)
    torch.testing.assert_close(mean(scores, several), found[:2].mean())
    torch.testing.assert_close(mean(scores, 3 * several.double()), found[:2].mean())
    weighted = torch.zeros(3, 9).double()
    weighted[:, 1], weighted[:, 4] = 3, 1
    both = loss(scores, weighted)
    wanted = (3 * loss(scores, torch.tensor([1] * 3)) + loss(scores, torch.tensor([4] * 3))) / 4
    torch.testing.assert_close(both, wanted)


def test_left_out_classes_are_no_labels() -> None:
    scores = normal(2, 9)
    scores[:, 3] = -math.inf
    several = torch.zeros(2, 9, dtype=torch.bool)
    several[:, 5] = True
    scores.requires_grad_()
    TopKCrossEntropyLoss(P_K)(scores, several).backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("p_k", [[0.0, 0.5, 0.5], [0.5, 0.5], [0.0, 1.0]], ids=str)
def test_a_label_that_is_left_out_spoils_no_gradient(p_k: list[float]) -> None:
    scores, target = normal(3, 6), torch.tensor([2, 4, 1])
    scores[0, 2] = -math.inf
    loss, leaf = TopKCrossEntropyLoss(p_k, 0.5, reduction="none"), scores.requires_grad_()
    found = loss(leaf, target)
    assert found[0] == math.inf
    (grad,) = torch.autograd.grad(found.sum(), leaf)
    assert not grad.isnan().any()
    (others,) = torch.autograd.grad(loss(leaf[1:], target[1:]).sum(), leaf)
    torch.testing.assert_close(grad[1:], others[1:])


def test_many_classes_in_a_graph_under_autocast(fresh_compiler: None) -> None:
    loss = TopKCrossEntropyLoss(P_K, 0.5)
    scores, labels = normal(4, 1000, dtype=torch.bfloat16), torch.arange(4)
    with torch.autocast("cpu", torch.bfloat16):
        compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
        found = compiled(scores, labels)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, loss(scores.float(), labels))
    assert loss.state_dict() == {}


@pytest.mark.parametrize("weighted", [False, True])
def test_recall_is_its_definition(weighted: bool) -> None:
    scores = normal(5, 12)
    relevant = normal(5, 12, seed=1).abs() if weighted else normal(5, 12, seed=1) > 0.5
    relevant[4] = 0
    found = recall_at_k(scores, relevant, 4, 0.3, reduction="none")
    for row in range(4):
        p = reference.soft_topk(scores[row], 4, 0.3)
        y = relevant[row].double()
        torch.testing.assert_close(found[row], (p * y).sum() / y.sum())
    assert found[4] == 0
    torch.testing.assert_close(recall_at_k(scores, relevant, 4, 0.3), found[:4].mean())
    torch.testing.assert_close(recall_at_k(scores, relevant, 4, 0.3, reduction="sum"), found.sum())
    transposed = recall_at_k(scores.T, relevant.T, 4, 0.3, dim=0)
    torch.testing.assert_close(transposed, found[:4].mean())


def test_recall_at_temperature_0_counts() -> None:
    scores, relevant = normal(5, 12), normal(5, 12, seed=1) > 0
    chosen = scores.topk(4).indices
    wanted = relevant.gather(1, chosen).sum(1) / relevant.sum(1)
    torch.testing.assert_close(
        recall_at_k(scores, relevant, 4, 0.0, reduction="none"), wanted.double()
    )


def test_recall_of_padded_rows() -> None:
    scores, relevant = normal(2, 12), torch.ones(2, 12, dtype=torch.bool)
    mask = torch.arange(12) < torch.tensor([[12], [3]])
    found = recall_at_k(scores, relevant, 4, 0.3, mask=mask, reduction="none")
    torch.testing.assert_close(found, torch.tensor([4 / 12, 1.0]).double())


def test_recall_can_be_learned() -> None:
    torch.manual_seed(0)
    scores = torch.randn(4, 50, requires_grad=True)
    relevant = torch.rand(4, 50) < 0.1
    optimiser = torch.optim.Adam([scores], lr=0.1)
    for _ in range(60):
        optimiser.zero_grad()
        (-recall_at_k(scores, relevant, 10, 1.0)).backward()
        optimiser.step()
    assert recall_at_k(scores, relevant, 10, 0.0) == 1


def _soft_ranks(row: Tensor, t: float) -> Tensor:
    """1 / 2 and, for every score, how far it is over this one: 1 for the largest."""
    u = (row[None, :] - row[:, None]) / t
    half = torch.exp(-u.abs()) / 2
    return 0.5 + torch.where(u > 0, 1 - half, half).sum(1)


@pytest.mark.parametrize("k", [None, 3])
@pytest.mark.parametrize("t", [0.05, 1.0])
def test_ndcg_is_its_definition(t: float, k: int | None) -> None:
    scores, gains = normal(5, 9).requires_grad_(), 2 ** (normal(5, 9, seed=1).abs().floor()) - 1
    gains[4] = 0
    found = soft_ndcg(scores, gains, t, k=k, reduction="none")
    wanted = []
    for row, gain in zip(scores[:4], gains[:4], strict=True):
        counted = gain if k is None else gain * soft_topk(row, k, t)
        ideal = gain.sort(descending=True).values[:k]
        discounts = torch.tensor([math.log2(1 + j) for j in range(1, len(ideal) + 1)])
        reached = (counted / torch.log2(1 + _soft_ranks(row, t))).sum()
        wanted.append(reached / (ideal / discounts).sum())
    torch.testing.assert_close(found[:4], torch.stack(wanted))
    assert found[4] == 0
    mean = soft_ndcg(scores, gains, t, k=k)
    torch.testing.assert_close(mean, torch.stack(wanted).mean())
    (one,) = torch.autograd.grad(mean, scores)
    (other,) = torch.autograd.grad(torch.stack(wanted).mean(), scores)
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(soft_ndcg(scores.T, gains.T, t, k=k, dim=0), mean)


def test_ndcg_of_the_best_order_is_one_and_padding_counts_for_nothing() -> None:
    gains = torch.tensor([[3.0, 2.0, 1.0, 9.0], [3.0, 2.0, 1.0, 0.0]])
    scores = torch.tensor([[5.0, 4.0, 3.0, 9.0], [5.0, 4.0, 3.0, 1.0]], requires_grad=True)
    mask = torch.arange(4) < torch.tensor([[3], [4]])
    for k in (None, 2):
        found = soft_ndcg(scores, gains, 0.0, k=k, mask=mask, reduction="none")
        torch.testing.assert_close(found, torch.ones(2))
    soft_ndcg(scores, gains, 0.5, mask=mask).backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert scores.grad[0, 3] == 0


def test_the_spearman_loss_is_its_definition() -> None:
    prediction, target = normal(4, 9).requires_grad_(), normal(4, 9, seed=1)
    loss = spearman_loss(prediction, target, 0.3, reduction="none")
    wanted = []
    for row, other in zip(prediction, target, strict=True):
        ranks = torch.stack((_soft_ranks(row, 0.3), other.argsort(descending=True).argsort() + 1.0))
        wanted.append(1 - torch.corrcoef(ranks)[0, 1])
    torch.testing.assert_close(loss, torch.stack(wanted))
    (one,) = torch.autograd.grad(loss.sum(), prediction)
    torch.testing.assert_close(one, torch.autograd.grad(torch.stack(wanted).sum(), prediction)[0])
    by_column = spearman_loss(prediction.T, target.T, 0.3, dim=0)
    torch.testing.assert_close(by_column, loss.mean())


def test_rows_without_an_order_are_passed_over() -> None:
    prediction, target = normal(3, 6), normal(3, 6, seed=1)
    prediction[0], target[1] = 2.0, 2.0
    prediction.requires_grad_()
    loss = spearman_loss(prediction, target, 0.3)
    torch.testing.assert_close(loss, spearman_loss(prediction[2:], target[2:], 0.3))
    loss.backward()
    assert prediction.grad is not None
    assert prediction.grad.isfinite().all()
    assert (prediction.grad[:2] == 0).all()


@pytest.mark.parametrize(
    "t", [1.0, torch.tensor(1.0, requires_grad=True)], ids=["number", "learned"]
)
def test_rows_whose_ranks_differ_by_rounding_alone_are_passed_over(t: Any) -> None:
    prediction = torch.tensor([[1e-17, 2e-17, 3e-17], [1.0, 2.0, 3.0]], requires_grad=True)
    target = torch.tensor([[1.0, 2.0, 3.0], [1.0, 3.0, 2.0]])
    loss = spearman_loss(prediction, target, t)
    torch.testing.assert_close(loss, spearman_loss(prediction[1:], target[1:], t))
    (grad,) = torch.autograd.grad(loss, prediction)
    assert (grad[0] == 0).all()
    assert grad[1].isfinite().all()


@pytest.mark.parametrize("shape", [(3, 0), (3, 1), (0, 4)])
def test_rows_too_short_for_an_order_are_passed_over(shape: tuple[int, ...]) -> None:
    scores = torch.ones(shape, requires_grad=True)
    assert spearman_loss(scores, scores.detach()).isnan()
    each = spearman_loss(scores, scores.detach(), reduction="none")
    assert torch.equal(each, torch.zeros(shape[0]))
    each.sum().backward()


def test_a_nan_among_predictions_is_seen() -> None:
    prediction = torch.tensor([[1.0, math.nan, 2.0]])
    assert spearman_loss(prediction, torch.arange(3.0)[None]).isnan()


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_grades_are_targets_of_the_spearman_loss(dtype: torch.dtype) -> None:
    prediction, grades = normal(3, 300), normal(3, 300, seed=1).mul(2).long().abs().to(dtype)
    grades[0] = 1
    torch.testing.assert_close(
        spearman_loss(prediction, grades, 0.5, reduction="none"),
        spearman_loss(prediction, grades.double(), 0.5, reduction="none"),
    )


@pytest.mark.parametrize("loss", [soft_ndcg, spearman_loss])
def test_orders_can_be_learned(loss: Any) -> None:
    torch.manual_seed(0)
    scores, target = torch.randn(3, 12, requires_grad=True), torch.rand(3, 12)
    sign = 1 if loss is spearman_loss else -1
    optimiser = torch.optim.Adam([scores], lr=0.1)
    before = sign * loss(scores.detach(), target, 0.0).item()
    for _ in range(120):
        optimiser.zero_grad()
        (sign * loss(scores, target, 0.5)).backward()
        optimiser.step()
    after = sign * loss(scores.detach(), target, 0.0).item()
    best = 0.0 if loss is spearman_loss else -1.0
    assert after - best < 0.4 * (before - best)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"p_k": [0.5, 0.4]}, r"p_k must be probabilities that add up to 1.*\[0\.5, 0\.4\]"),
        ({"p_k": []}, "p_k must be probabilities"),
        ({"p_k": [1.5, -0.5]}, "p_k must be probabilities"),
        ({"p_k": [1.0], "top1": "sm"}, "top1 must be 'softmax' or 'soft_topk', got top1='sm'"),
        ({"p_k": [1.0], "reduction": "max"}, "reduction must be .*reduction='max'"),
        ({"p_k": [1.0], "temperature": -1}, "temperature must be finite .* got temperature=-1"),
        ({"p_k": [1.0], "temperature": math.nan}, "temperature must be finite .*temperature=nan"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TopKCrossEntropyLoss(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"p_k": 5}, "p_k must be a sequence of the probabilities .* got p_k=5"),
        ({"p_k": torch.tensor(5)}, "p_k must be a sequence .* got p_k=tensor\\(5\\)"),
        ({"p_k": torch.tensor([[0.5, 0.5]])}, "p_k must be a sequence .* got p_k=tensor"),
        ({"p_k": "ab"}, "p_k must be a sequence of the probabilities .* got p_k='ab'"),
        ({"p_k": [1.0, "a"]}, r"p_k\[1\] must be a number .* got str"),
        ({"p_k": [1.0], "temperature": "1"}, "temperature must be a number or a tensor, got str"),
    ],
)
def test_bad_types_are_named(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        TopKCrossEntropyLoss(**arguments)  # type: ignore[arg-type]


def test_p_k_may_be_anything_to_go_through() -> None:
    for p_k in (torch.tensor([0.5, 0.5]), (0.5 for _ in range(2))):
        assert TopKCrossEntropyLoss(p_k).p_k == [0.5, 0.5]  # type: ignore[arg-type]


def test_what_is_no_tensor_is_named() -> None:
    scores: Any = normal(4, 5)
    with pytest.raises(TypeError, match=r"target must be a torch\.Tensor, got list"):
        TopKCrossEntropyLoss([1.0])(scores, [1, 2, 3, 4])
    with pytest.raises(TypeError, match=r"relevant must be a torch\.Tensor, got list"):
        recall_at_k(scores, [1] * 4, 2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"gains must be a torch\.Tensor, got list"):
        soft_ndcg(scores, [1] * 4)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"target must be a torch\.Tensor, got list"):
        spearman_loss(scores, [1] * 4)  # type: ignore[arg-type]


def test_a_k_of_the_ndcg_is_whole() -> None:
    scores, gains = normal(4, 5), normal(4, 5, seed=1).abs()
    with pytest.raises(ValueError, match=r"k must be a whole number .* got k=2\.5"):
        soft_ndcg(scores, gains, k=2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"k must lie in \[0, 5\]"):
        soft_ndcg(scores, gains, k=6)
    assert soft_ndcg(scores, gains, k=2.0) == soft_ndcg(scores, gains, k=2)  # type: ignore[arg-type]


def test_weights_below_0_are_named() -> None:
    scores, weights = normal(4, 5), torch.ones(4, 5)
    weights[1, 2] = -0.5
    with pytest.raises(ValueError, match=r"relevant must be at least 0, got -0\.5"):
        recall_at_k(scores, weights, 2)
    with pytest.raises(ValueError, match=r"gains must be at least 0, got -0\.5"):
        soft_ndcg(scores, weights)
    # Nor are they looked at where they are left out, or where that would be a wait.
    mask = weights > 0
    for loss in (lambda *of, mask: recall_at_k(*of, 2, mask=mask), soft_ndcg):
        assert loss(scores, weights, mask=mask).isfinite()
        assert loss(*(x.to("meta") for x in (scores, weights)), mask=None).is_meta
    assert soft_ndcg(scores, torch.zeros(4, 5)).isnan()  # no row has a gain
    loss = losses.TopKCrossEntropyLoss([0.5, 0.5])
    with pytest.raises(ValueError, match=r"target must be at least 0, got -1"):
        loss(torch.zeros(1, 3), torch.tensor([[-1.0, 2.0, -0.5]]))


def test_bad_targets_are_named() -> None:
    loss = TopKCrossEntropyLoss([0, 0, 1.0])
    with pytest.raises(ValueError, match=r"target must have the shape \(4,\) for labels"):
        loss(normal(4, 5), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"target must have the shape \(4, 5\) for several labels"):
        loss(normal(4, 5), torch.zeros(4, dtype=torch.bool))
    says = r"dtype of whole numbers .* or the shape \(4, 5\) .* got float32 and shape \(4,\)"
    with pytest.raises(TypeError, match=says):
        loss(normal(4, 5), torch.zeros(4))
    with pytest.raises(ValueError, match=r"p_k must have at most one probability per class.*2.*3"):
        loss(normal(4, 2), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"relevant must have the shape of scores, \(4, 5\)"):
        recall_at_k(normal(4, 5), torch.ones(4), 2)
    with pytest.raises(ValueError, match=r"gains must have the shape of scores, \(4, 5\)"):
        soft_ndcg(normal(4, 5), torch.ones(4))
    with pytest.raises(ValueError, match=r"target must have the shape of prediction, \(4, 5\)"):
        spearman_loss(normal(4, 5), torch.ones(4))


def test_the_names_of_losses_are_those_of_its_own() -> None:
    own = {
        name
        for name, value in vars(losses).items()
        if getattr(value, "__module__", None) == losses.__name__ and not name.startswith("_")
    }
    assert set(losses.__all__) == own


@pytest.mark.parametrize("label", [5, -1, -100])
def test_labels_that_are_no_class_are_named(label: int) -> None:
    loss, labels = TopKCrossEntropyLoss([0, 0, 1.0], ignore_index=-7), torch.tensor([0, -7, label])
    says = rf"labels in \[0, 4\] for 5 classes, or ignore_index=-7, got {label} in row \(2,\)"
    with pytest.raises(ValueError, match=says):
        loss(normal(3, 5), labels)
    with pytest.raises(ValueError, match=rf"target must have labels .* got {label}$"):
        loss(normal(5), torch.tensor(label))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_labels_may_have_any_dtype_of_whole_numbers(dtype: torch.dtype) -> None:
    scores = normal(3, 200)
    labels = torch.tensor([1, 100, 0])
    for loss in (TopKCrossEntropyLoss([0, 1.0]), TopKCrossEntropyLoss([0, 1.0], ignore_index=100)):
        assert torch.equal(loss(scores, labels.to(dtype)), loss(scores, labels))
    # 156 is -100 in eight bits, and a label like any other.
    high = torch.tensor([156, 1, 2], dtype=torch.uint8)
    assert TopKCrossEntropyLoss([0, 1.0], reduction="none")(scores, high).all()


def test_a_nan_among_targets_is_seen() -> None:
    scores = normal(2, 5).float()
    weights = torch.tensor([[1.0, 0.0, 1.0, 0.0, 0.0], [0.0, math.nan, 1.0, 0.0, 0.0]])
    for found in (
        TopKCrossEntropyLoss((0.5, 0.5), reduction="none")(scores, weights),
        recall_at_k(scores, weights, k=2, reduction="none"),
        soft_ndcg(scores, weights, reduction="none"),
    ):
        assert found.isnan().tolist() == [False, True]
