"""The baselines: their formulas by hand, their limits, and that they fool a small network."""

from __future__ import annotations

import statistics
import sys
import time
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attack_models import confident_pictures, trained_classifier, trained_net
from fast_lapsum.apps.attack import methods
from fast_lapsum.apps.attack.baselines import (
    adapters,
    pgd_l0,
    search,
    sigma_zero,
    sparse_fool,
    sparse_pgd,
)
from fast_lapsum.apps.attack.measures import budget, changed_pixels, round_to_8_bits
from fast_lapsum.apps.attack.protocol import LEAD, Classifier, Limits, Progress, Result

BASELINES = ("sigma-zero", "sparse-pgd", "pgd-l0", "sparse-fool")
NO_LIMIT = Limits()
SOME_CALLS = Limits(calls=60)


def attacked(
    name: str,
    image: Tensor,
    label: int,
    limits: Limits = SOME_CALLS,
    *,
    target: int | None = None,
    seed: int = 0,
    mask: Tensor | None = None,
    hook: Any = None,
) -> Result:
    classifier = trained_classifier()
    return methods.method(name).run(classifier, image, label, target, limits, seed, hook, mask)


@pytest.mark.parametrize("name", BASELINES)
def test_fools_most_pictures_in_whole_255ths(name: str) -> None:
    images, labels = confident_pictures(5)
    results = [attacked(name, *pair) for pair in zip(images, labels.tolist(), strict=True)]
    assert sum(result.success for result in results) >= 4
    classifier = trained_classifier()
    for image, label, result in zip(images, labels.tolist(), results, strict=True):
        torch.testing.assert_close(
            result.adversarial, round_to_8_bits(result.adversarial), rtol=0, atol=0
        )
        predicted = int(classifier.predict(result.adversarial[None])[0].argmax())
        assert (predicted != label) == result.success
        if result.success:
            assert 0 < changed_pixels(result.adversarial, image) < image[0].numel() / 2


@pytest.mark.parametrize("name", BASELINES)
def test_counts_every_call_and_stops_at_the_limit(name: str) -> None:
    images, labels = confident_pictures(1)
    classifier = trained_classifier()
    result = methods.method(name).run(
        classifier, images[0], int(labels[0]), None, Limits(calls=7), 0, None, None
    )
    assert result.calls == classifier.calls <= 7
    assert classifier.gradients > 0
    if name in ("sigma-zero", "sparse-pgd", "pgd-l0"):
        assert result.calls == 7
        assert classifier.gradients == 7


@pytest.mark.parametrize("name", BASELINES)
def test_the_same_seed_gives_the_same_picture(name: str) -> None:
    images, labels = confident_pictures(1)
    first, second = (attacked(name, images[0], int(labels[0]), seed=3) for _ in range(2))
    assert torch.equal(first.adversarial, second.adversarial)
    if name == "sparse-pgd":
        other = attacked(name, images[0], int(labels[0]), seed=4)
        assert not torch.equal(first.adversarial, other.adversarial)


@pytest.mark.parametrize("name", BASELINES)
def test_only_the_region_changes(name: str) -> None:
    images, labels = confident_pictures(1)
    mask = torch.zeros(32, 32, dtype=torch.bool)
    mask[4:28, 4:20] = True
    result = attacked(name, images[0], int(labels[0]), mask=mask)
    assert torch.equal(result.adversarial[:, ~mask], images[0][:, ~mask])
    assert not torch.equal(result.adversarial[:, mask], images[0][:, mask])


@pytest.mark.parametrize("name", BASELINES)
def test_reaches_a_target_on_some_picture(name: str) -> None:
    images, labels = confident_pictures(3)
    found = []
    for image, label in zip(images, labels.tolist(), strict=True):
        target = (label + 1) % 4
        result = attacked(name, image, label, Limits(calls=100), target=target)
        found.append(result.success)
        if result.success:
            predicted = trained_classifier().predict(result.adversarial[None])[0].argmax()
            assert int(predicted) == target
    assert any(found)


@pytest.mark.parametrize("name", BASELINES)
def test_seconds_and_steps_end_a_run(name: str) -> None:
    images, labels = confident_pictures(1)
    started = time.perf_counter()
    assert attacked(name, images[0], int(labels[0]), Limits(seconds=0.05)).steps > 0
    assert time.perf_counter() - started < 5
    assert attacked(name, images[0], int(labels[0]), Limits(steps=3)).steps <= 3


@pytest.mark.parametrize("name", BASELINES)
def test_starts_from_the_picture_in_whole_255ths(name: str) -> None:
    images, labels = confident_pictures(1)
    noise = torch.rand(images[0].shape, generator=torch.Generator().manual_seed(0)) - 0.5
    between = (images[0] + 0.9 / 255 * noise).clamp(0, 1)
    assert not torch.equal(between, images[0])
    told: list[Progress] = []
    found = attacked(name, between, int(labels[0]), hook=told.append)
    assert torch.equal(found.adversarial, attacked(name, images[0], int(labels[0])).adversarial)
    assert told[-1].best_budget == budget(found.adversarial, images[0])


@pytest.mark.parametrize("name", methods.DEFAULT)
@pytest.mark.parametrize(
    ("label", "target", "message"),
    [(4, None, "label=4"), (-1, None, "label=-1"), (0, 4, "target=4"), (0, -1, "target=-1")],
)
def test_classes_that_the_model_does_not_have_are_named(
    name: str, label: int, target: int | None, message: str
) -> None:
    images, _ = confident_pictures(1)
    with pytest.raises(ValueError, match=f"must be a class from 0 to 3, got {message}"):
        attacked(name, images[0], label, target=target)


@pytest.mark.parametrize("name", ["sparse-pgd", "pgd-l0"])
def test_more_calls_are_no_worse_on_the_median(name: str) -> None:
    images, labels = confident_pictures(7)
    medians = []
    for calls in (60, 100, 300):
        spent = []
        for image, label in zip(images, labels.tolist(), strict=True):
            result = attacked(name, image, label, Limits(calls=calls))
            spent.append(budget(result.adversarial, image) if result.success else float("inf"))
        medians.append(statistics.median(spent))
    assert medians == sorted(medians, reverse=True)


def test_cross_entropy_keeps_the_other_classes_of_a_sure_picture() -> None:
    logits = torch.tensor([60.0, 1.0, 2.0], requires_grad=True)
    for target in (None, 0):
        (gradient,) = torch.autograd.grad(search.cross_entropy(logits, 0, target), logits)
        # The true class goes down by as much as the others together go up.
        assert float(gradient[0]) == pytest.approx(-float(gradient[1:].sum()), rel=1e-5)
        assert gradient[0] != 0


@pytest.mark.parametrize("name", ["sparse-pgd", "pgd-l0"])
@pytest.mark.parametrize("sharpness", [1, 2])
def test_fools_very_sure_pictures(name: str, sharpness: int) -> None:
    images, labels = confident_pictures(12)
    net = trained_net()
    with torch.no_grad():
        sure = torch.softmax(net(images), -1).amax(-1) == 1
    assert sure.any()
    model = nn.Sequential(net, _Times(sharpness))
    for image, label in zip(images[sure], labels[sure].tolist(), strict=True):
        run = methods.method(name).run
        assert run(Classifier(model), image, label, None, SOME_CALLS, 0, None, None).success


class _Times(nn.Module):
    """Logits times a number: as sure as one likes."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, logits: Tensor) -> Tensor:
        return logits * self.factor


def test_progress_tells_the_best_so_far() -> None:
    images, labels = confident_pictures(1)
    told: list[Progress] = []
    result = attacked("sigma-zero", images[0], int(labels[0]), hook=told.append)
    assert [one.step for one in told] == list(range(1, 61))
    assert told[0].budget == 0
    assert not told[0].success
    assert told[-1].best_budget == budget(result.adversarial, images[0])
    bests = [one.best_budget for one in told if one.best_budget is not None]
    assert bests == sorted(bests, reverse=True)


def test_without_any_limit_a_run_ends_by_itself() -> None:
    images, labels = confident_pictures(1)
    result = attacked("sparse-pgd", images[0], int(labels[0]), NO_LIMIT)
    assert result.calls == 300


# σ-zero


def test_sigma_zero_counts_smoothly() -> None:
    change = torch.tensor([0.5, -0.1, 0.0], dtype=torch.float64, requires_grad=True)
    smooth = (change**2 / (change**2 + 1e-3)).sum() / 3
    (expected,) = torch.autograd.grad(smooth, change)
    found = sigma_zero.smooth_count_gradient(change.detach(), 1e-3)
    torch.testing.assert_close(found, expected)
    by_hand = 2 * 1e-3 * -0.1 / (0.01 + 1e-3) ** 2 / 3
    assert float(found[1]) == pytest.approx(by_hand)


def test_sigma_zero_moves_its_threshold_both_ways() -> None:
    assert sigma_zero.adapted_threshold(0.3, True, 0.01) == pytest.approx(0.31)
    assert sigma_zero.adapted_threshold(0.3, False, 0.01) == pytest.approx(0.29)
    assert sigma_zero.adapted_threshold(0.005, False, 0.01) == 0
    assert sigma_zero.adapted_threshold(1.0, True, 0.01) == 1


def test_sigma_zero_steps_fall_to_a_tenth() -> None:
    assert sigma_zero.cosine_step(1.0, 0, 100) == 1
    assert sigma_zero.cosine_step(1.0, 50, 100) == pytest.approx(0.55)
    assert sigma_zero.cosine_step(1.0, 100, 100) == pytest.approx(0.1)


def test_sigma_zero_adam_is_torchs() -> None:
    change = nn.Parameter(torch.zeros(5))
    optimiser = torch.optim.Adam([change], lr=0.3)
    ours, first, second = (torch.zeros(5) for _ in range(3))
    generator = torch.Generator().manual_seed(0)
    for count in range(1, 6):
        gradient = torch.randn(5, generator=generator)
        change.grad = gradient.clone()
        optimiser.step()
        sigma_zero._adam(ours, gradient, first, second, 0.3, count)
    torch.testing.assert_close(ours, change.detach())


# Sparse-PGD


def test_sparse_pgd_mask_gradient_is_the_chain_rule() -> None:
    generator = torch.Generator().manual_seed(0)
    gradient, colours = torch.randn(2, 3, 4, 4, generator=generator, dtype=torch.float64)
    scores = torch.randn(4, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(((colours * torch.sigmoid(scores)) * gradient).sum(), scores)
    found = sparse_pgd.mask_gradient(gradient, colours, scores.detach())
    torch.testing.assert_close(found, expected)


def test_sparse_pgd_masks_the_k_largest() -> None:
    scores = torch.tensor([[0.1, 3.0], [2.0, -1.0]])
    assert sparse_pgd.hard_mask(scores, 2).tolist() == [[0, 1], [1, 0]]


# PGD-L0


def test_pgd_l0_projects_to_the_nearest() -> None:
    image = torch.tensor([0.95, 0.5, 0.5]).expand(3, 1, 3).clone()
    # The first pixel's change is the largest, but hardly any of it is a valid colour.
    change = torch.tensor([1.0, 0.4, -0.2]).expand(3, 1, 3).clone()
    found = pgd_l0.project(change, image, 1)
    torch.testing.assert_close(found[0], torch.tensor([[0.0, 0.4, 0.0]]))
    # All choices of one pixel, by hand: the projection is the nearest of them.
    clipped = (image + change).clamp(0, 1) - image
    distances = []
    for pixel in range(3):
        kept = torch.zeros_like(change)
        kept[..., pixel] = clipped[..., pixel]
        distances.append(float((change - kept).square().sum()))
    assert distances.index(min(distances)) == 1


@pytest.mark.parametrize("shrink", [0.5, 0.8])
def test_sparsity_search_finds_the_smallest_that_fools(shrink: float) -> None:
    for smallest in (1, 7, 40, 900, 1024):
        found = search.SparsitySearch(most=1024, first=20, shrink=shrink)
        tried = 0
        while not found.done:
            if found.k >= smallest:
                best = found.k
                found.fooled(found.k)
            else:
                found.failed()
            tried += 1
        assert smallest <= best <= max(smallest + 1, 1.03 * smallest)
        assert tried <= (15 if shrink == 0.5 else 25)


# SparseFool


class _Plane(nn.Module):
    """Two classes with a linear boundary: class 1 where w · x > c."""

    def __init__(self, weights: Tensor, offset: float) -> None:
        super().__init__()
        self.weights = nn.Parameter(weights)
        self.offset = offset

    def forward(self, images: Tensor) -> Tensor:
        value = (images * self.weights).flatten(1).sum(1) - self.offset
        return torch.stack([-value / 2, value / 2], 1)


def test_sparse_fool_moves_the_coordinates_that_matter_most() -> None:
    normal = torch.tensor([0.8, -0.6, 0.0]).view(3, 1, 1)
    plane = sparse_fool.Plane(normal, torch.tensor([0.5, 0.25, 0.5]).view(3, 1, 1))
    flat = torch.tensor([0.0, 0.5, 0.5])
    unused = normal.flatten().abs()
    # w · (x - x_B) = -0.4 - 0.15 = -0.55; the first coordinate alone can make up for it.
    assert sparse_fool.cross_one(flat, plane, unused) >= 0
    torch.testing.assert_close(flat, torch.tensor([(0.55 + 0.001) / 0.8, 0.5, 0.5]))
    assert unused.tolist() == pytest.approx([0, 0.6, 0])


def test_sparse_fool_in_one_pass_is_the_same() -> None:
    generator = torch.Generator().manual_seed(2)
    for _ in range(5):
        picture = torch.rand(3, 6, 6, generator=generator, dtype=torch.float64)
        normal = torch.randn(3, 6, 6, generator=generator, dtype=torch.float64)
        normal /= normal.norm()
        plane = sparse_fool.Plane(normal, picture + 1.5 * normal)
        flat, unused = picture.flatten().clone(), normal.flatten().abs()
        while sparse_fool.cross_one(flat, plane, unused) < 0:
            pass
        found = sparse_fool.cross_sorted(picture, plane)
        torch.testing.assert_close(found.flatten(), flat, rtol=0, atol=1e-4)
        assert (found != picture).sum() == (flat != picture.flatten()).sum()


def test_deepfool_finds_a_plane_exactly() -> None:
    weights = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0))
    image = torch.full((3, 4, 4), 128 / 255)
    classifier = Classifier(_Plane(weights, float((weights * image).sum()) + 0.3))
    run = search.Search(classifier, image, 0, None, NO_LIMIT, None, None, 50)
    settings = sparse_fool.Settings(lambda_=1.0)
    plane = sparse_fool.deepfool(run, image, settings)
    assert plane is not None
    torch.testing.assert_close(plane.normal, weights / weights.norm())
    # The nearest point that wins by LEAD lies (0.3 + LEAD) / |w| along w.
    far = (0.3 + LEAD) * weights / weights.norm() ** 2
    torch.testing.assert_close(plane.point, run.image + far, rtol=0, atol=2e-6)


@pytest.mark.parametrize("settings", ["", ":lambda_=1", ":sorted=true", ":sorted=true:lambda_=1"])
def test_sparse_fool_does_not_stop_short_of_a_win(settings: str) -> None:
    images, labels = confident_pictures(12)
    for image, label in zip(images, labels.tolist(), strict=True):
        assert attacked("sparse-fool" + settings, image, label, Limits(calls=100)).success


def test_sparse_fool_ends_honestly_when_time_is_up() -> None:
    # A boundary that only nearly all of 196,608 coordinates together can cross.
    weights = torch.full((3, 256, 256), 1e-3)
    image = round_to_8_bits(torch.full((3, 256, 256), 0.5))
    offset = float((weights * image).sum()) + 0.45e-3 * image.numel()
    classifier = Classifier(_Plane(weights, offset))
    run = methods.method("sparse-fool").run
    started = time.perf_counter()
    result = run(classifier, image, 0, None, Limits(seconds=0.5), 0, None, None)
    assert time.perf_counter() - started < 10
    assert not result.success
    assert result.seconds >= 0.5
    assert result.extra["coordinates"] < 190_000


# Adapters


def test_adapters_count_round_and_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    package: Any = ModuleType("adv_lib.attacks")

    def greedy(
        model: nn.Module, inputs: Tensor, labels: Tensor, num_steps: int, targeted: bool
    ) -> Tensor:
        assert num_steps == 12
        change = torch.zeros_like(inputs)
        while True:  # never ends by itself: the limit has to
            tried = (inputs + change).clamp(0, 1).requires_grad_()
            loss = search.margin(model(tried)[0], int(labels[0]), None)
            (gradient,) = torch.autograd.grad(loss, tried)
            change = change - 0.05 * gradient.sign()

    package.sigma_zero = greedy
    monkeypatch.setitem(sys.modules, "adv_lib", ModuleType("adv_lib"))
    monkeypatch.setitem(sys.modules, "adv_lib.attacks", package)
    images, labels = confident_pictures(1)
    classifier = trained_classifier()
    run = adapters.attack(adapters.ADAPTERS[0]).run
    told: list[Progress] = []
    between = images[0] + 0.3 / 255  # rounded to the picture itself before it starts
    result = run(classifier, between, int(labels[0]), None, Limits(calls=12), 0, told.append, None)
    assert told[0].budget == 0
    assert told[-1].best_budget == budget(result.adversarial, images[0])
    assert result.calls == classifier.calls == 12
    assert result.success
    assert torch.equal(result.adversarial, round_to_8_bits(result.adversarial))
    mask = torch.ones(32, 32, dtype=torch.bool)
    with pytest.raises(ValueError, match="mask must be None"):
        run(classifier, images[0], 0, None, NO_LIMIT, 0, None, mask)


@pytest.mark.parametrize("adapter", adapters.ADAPTERS, ids=lambda adapter: adapter.distribution)
def test_installed_packages_fool_too(adapter: adapters.Adapter) -> None:
    pytest.importorskip(adapter.module)
    images, labels = confident_pictures(1)
    run = adapters.attack(adapter).run
    result = run(
        trained_classifier(), images[0], int(labels[0]), None, Limits(calls=200), 0, None, None
    )
    assert result.success


# Names


def test_settings_come_after_the_name() -> None:
    images, labels = confident_pictures(1)
    result = attacked("sigma-zero:step=0.5:threshold=0.1", images[0], int(labels[0]))
    settings: Any = result.extra["settings"]
    assert (settings["step"], settings["threshold"], settings["sigma"]) == (0.5, 0.1, 1e-3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sigma", "'sigma' is no method; expected"),
        ("sigma-zero:steps=3", "sigma-zero has no setting 'steps'; expected step"),
        ("sigma-zero:step=much", "step is 'much', expected a float"),
        ("sparse-pgd:unprojected=1", "unprojected is '1', expected a bool"),
    ],
)
def test_unknown_methods_and_settings_are_named(text: str, message: str) -> None:
    with pytest.raises(methods.MethodError, match=message):
        methods.method(text)
