"""The sparse attack, its hard support, the paper's recipe and the dense control."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attack_models import confident_pictures, trained_classifier
from fast_lapsum import soft_topk
from fast_lapsum.apps.attack import dense, ours, paper
from fast_lapsum.apps.attack.hard_support import hard_support, hard_support_of
from fast_lapsum.apps.attack.measures import (
    budget,
    changed_pixels,
    measure,
    round_to_8_bits,
    through_png,
)
from fast_lapsum.apps.attack.methods import method
from fast_lapsum.apps.attack.profile import has_operator
from fast_lapsum.apps.attack.protocol import Limits, Progress, Result
from fast_lapsum.apps.attack.proximal import no_change, proximal_step

CALLS = 60


@pytest.fixture(scope="module")
def sure() -> tuple[Tensor, list[int]]:
    images, labels = confident_pictures(3)
    return images, labels.tolist()


@pytest.fixture(scope="module")
def results(sure: tuple[Tensor, list[int]]) -> list[Result]:
    images, labels = sure
    return ours.attack_batch(trained_classifier(), images, labels, limits=Limits(calls=CALLS))


def test_fools_every_picture_after_saving(
    sure: tuple[Tensor, list[int]], results: list[Result]
) -> None:
    for image, label, result in zip(*sure, results, strict=True):
        assert result.success
        assert result.calls <= CALLS
        found = measure(trained_classifier(), result.adversarial, image, label)
        assert found.success
        assert found.predicted != label
        assert found.budget == pytest.approx(budget(result.adversarial, image))
        assert 0 < found.changed_pixels < 0.5 * image[0].numel()


def test_batch_equals_single_pictures_and_seeds_change_nothing(
    sure: tuple[Tensor, list[int]], results: list[Result]
) -> None:
    images, labels = sure
    for seed, (image, label, together) in enumerate(zip(images, labels, results, strict=True)):
        alone = ours.run(trained_classifier(), image, label, None, Limits(calls=CALLS), seed)
        assert budget(alone.adversarial, image) == pytest.approx(
            budget(together.adversarial, image), rel=0.05
        )


def test_lower_budget_than_the_recipe_and_a_third_of_the_dense_control(
    sure: tuple[Tensor, list[int]],
) -> None:
    images, labels = sure
    limits = Limits(calls=100)  # the recipe needs 70 of them to fool at all
    shares = []
    for image, label in zip(images, labels, strict=True):
        mine, recipe, control = (
            run(trained_classifier(), image, label, None, limits)
            for run in (ours.run, paper.run, dense.run)
        )
        assert mine.success
        assert recipe.success
        assert control.success
        spent = budget(mine.adversarial, image)
        assert spent < budget(recipe.adversarial, image)
        shares.append(spent / budget(control.adversarial, image))
    assert sorted(shares)[1] < 1 / 3


@pytest.mark.parametrize("run", [paper.run, dense.run], ids=["recipe", "control"])
def test_recipe_and_control_fool_every_picture_and_spend_less_from_there(
    run: Callable[..., Result],
) -> None:
    """What k costs neither keeps a picture from being fooled nor leaves k where it was then."""
    images, labels = confident_pictures(12)
    kept = []
    for image, label in zip(images, labels.tolist(), strict=True):
        said: list[Progress] = []
        result = run(trained_classifier(), image, label, None, Limits(calls=150), 0, said.append)
        assert result.success
        first = next(one.budget for one in said if one.success)
        kept.append(budget(result.adversarial, image) / first)
    assert sorted(kept)[6] < 0.95


def test_without_the_operator(
    sure: tuple[Tensor, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ablation decodes without it, and the attack itself does not."""

    def never(*_: object, **__: object) -> Tensor:
        raise AssertionError("the operator was called")

    monkeypatch.setattr(ours, "soft_topk", never)
    images, labels = sure
    run = method("no-operator").run
    limits = Limits(calls=CALLS)
    result = run(trained_classifier(), images[0], labels[0], None, limits, 0, None, None)
    assert result.success
    assert not has_operator(result)  # so that none is timed
    with pytest.raises(AssertionError, match="was called"):
        ours.run(trained_classifier(), images[0], labels[0], limits=limits)


def test_target_is_reached(sure: tuple[Tensor, list[int]]) -> None:
    images, labels = sure
    target = (labels[0] + 1) % 4
    result = ours.run(trained_classifier(), images[0], labels[0], target, Limits(calls=100))
    assert result.success
    assert int(trained_classifier().predict(result.adversarial[None]).argmax()) == target


def test_only_the_region_changes(sure: tuple[Tensor, list[int]]) -> None:
    images, labels = sure
    mask = torch.zeros(images.shape[-2:], dtype=torch.bool)
    mask[:, 8:24] = True
    for run in (ours.run, paper.run, dense.run):
        limits = Limits(calls=30)
        result = run(trained_classifier(), images[0], labels[0], None, limits, 0, None, mask)
        changed = (result.adversarial != images[0]).any(0)
        assert not (changed & ~mask).any()
        assert changed.any()


def test_limits_hold_and_progress_tells_every_step(sure: tuple[Tensor, list[int]]) -> None:
    images, labels = sure
    said: list[Progress] = []
    classifier = trained_classifier()
    result = ours.run(classifier, images[0], labels[0], None, Limits(steps=7), 0, said.append)
    assert [one.step for one in said] == list(range(1, 8))
    assert result.calls == classifier.calls == classifier.gradients == 7
    assert said[0].predicted == labels[0]
    assert said[0].budget == 0  # x' is the picture itself at step zero
    none = ours.run(trained_classifier(), images[0], labels[0], None, Limits(seconds=0.0))
    assert (none.calls, none.success) == (0, False)


def test_patience_stops_early(sure: tuple[Tensor, list[int]]) -> None:
    images, labels = sure
    settings = ours.DEFAULT._replace(patience=3)
    limits = Limits(calls=400)
    result = ours.run(trained_classifier(), images[0], labels[0], None, limits, settings=settings)
    assert result.success
    assert result.calls < 400


def test_picture_that_is_wrong_already_costs_nothing(sure: tuple[Tensor, list[int]]) -> None:
    images, labels = sure
    result = ours.run(trained_classifier(), images[0], (labels[0] + 1) % 4)
    assert result.success
    assert result.calls == 1
    assert budget(result.adversarial, images[0]) == 0


def test_proximal_step_meets_its_budget_inside_the_colour_cube() -> None:
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(3, 40, 50, generator=generator)
    gradient = torch.randn(3, 40, 50, generator=generator)
    start = no_change(image)
    for goal in (5.0, 200.0):
        step = proximal_step(image, start, gradient, 0.3, goal, None)
        assert float(step.values.abs().sum()) / 3 == pytest.approx(goal, rel=1e-2)
        here = image.flatten(1)[:, step.places]
        moved = -0.3 * gradient.flatten(1)[:, step.places]
        changed = step.values != 0
        free = changed & (here + step.values > 0) & (here + step.values < 1)
        # Soft thresholding: every free colour stops short by the threshold.
        short = (moved - step.values).abs()
        assert (short[free] - step.threshold).abs().max() < 1e-5
        assert (moved[~changed].abs() <= step.threshold + 1e-5).all()
        start = step._replace(values=torch.zeros_like(step.values))


def test_proximal_step_without_enough_room_takes_all() -> None:
    image = torch.full((3, 4, 4), 0.5)
    gradient = torch.ones(3, 4, 4)
    step = proximal_step(image, no_change(image), gradient, 10.0, 100.0, None)
    assert step.threshold < 1e-3
    assert torch.equal(step.values, torch.full((3, 16), -0.5))


def _assert_decoded(image: Tensor, result: Result) -> None:
    """The picture is x' = (1 - p) I + p sigma(z) with the p of the scores, k and t handed back."""
    extra = result.extra
    scores, colours = extra["scores"], extra["colours"]
    k, t = extra["k"], extra["t"]
    assert isinstance(scores, Tensor)
    assert isinstance(colours, Tensor)
    assert isinstance(k, float)
    assert isinstance(t, float)
    p = soft_topk(scores.flatten(), k, t).view_as(scores)
    decoded = round_to_8_bits(torch.lerp(image, colours, p))
    off = (decoded - result.adversarial).abs()  # a level where rounding is a tie
    assert off.max() <= 1.01 / 255
    assert (off > 0).sum() <= 2
    assert float(p.sum()) == pytest.approx(k, rel=1e-5)
    assert changed_pixels(result.adversarial, image) <= 2 * k + 5


def test_result_is_decoded_by_the_operator(
    sure: tuple[Tensor, list[int]], results: list[Result]
) -> None:
    for image, result in zip(sure[0], results, strict=True):
        _assert_decoded(image, result)


def test_a_batch_whose_pictures_race_for_classes_has_a_target_or_are_wrong(
    sure: tuple[Tensor, list[int]],
) -> None:
    images, labels = sure
    target = (labels[1] + 1) % 4
    given = [labels[0], labels[1], (labels[2] + 1) % 4]
    classifier = trained_classifier()
    before = classifier.calls
    limits = Limits(calls=250)
    race, aimed, wrong = ours.attack_batch(
        classifier, images, given, [None, target, None], limits=limits
    )
    assert (race.calls, aimed.calls, wrong.calls) == (250, 250, 1)
    assert classifier.calls - before == 501
    assert all(result.success for result in (race, aimed, wrong))
    assert race.extra["aim"] in {0, 1, 2, 3} - {labels[0]}
    assert aimed.extra["aim"] == target
    assert budget(wrong.adversarial, images[2]) == 0
    _assert_decoded(images[0], race)
    no_race = method("no-race").run
    away = no_race(classifier, images[0], labels[0], None, limits, 0, None, None)
    assert away.extra["aim"] is None
    spent = budget(race.adversarial, images[0])
    assert spent <= 1.2 * budget(away.adversarial, images[0])


@pytest.mark.parametrize(
    ("steps", "classes", "expected"),
    [
        (100, 12, []),
        (200, 12, [(5, 16)]),
        (239, 12, [(5, 16)]),
        (240, 12, [(5, 16), (3, 24)]),
        (250, 12, [(6, 16), (3, 25)]),
        (300, 12, [(7, 16), (3, 30)]),
        (1000, 12, [(13, 16), (3, 100)]),
        (1000, 3, []),
    ],
)
def test_heats_leave_steps_to_finish(
    steps: int, classes: int, expected: list[tuple[int, int]]
) -> None:
    heats = ours._heats(steps, classes)
    assert list(heats) == expected
    assert sum(heat.aims * heat.steps for heat in heats) <= 0.7 * steps


def test_hard_support_is_the_smallest_that_fools(
    sure: tuple[Tensor, list[int]], results: list[Result]
) -> None:
    image, label = sure[0][0], sure[1][0]
    found = hard_support_of(trained_classifier(), image, results[0], label)
    assert found.pixels is not None
    assert found.adversarial is not None
    assert changed_pixels(found.adversarial, image) <= found.pixels
    assert int(trained_classifier().predict(found.adversarial[None]).argmax()) != label
    nothing = hard_support(trained_classifier(), image, torch.zeros(32, 32), image, label)
    assert nothing.pixels is None
    with pytest.raises(ValueError, match=r"result\.extra must hold"):
        hard_support_of(trained_classifier(), image, results[0]._replace(extra={}), label)


def test_hard_support_takes_the_most_changed_of_tied_pixels_first(
    sure: tuple[Tensor, list[int]], results: list[Result]
) -> None:
    image, label, colours = sure[0][0], sure[1][0], results[0].extra["colours"]
    assert isinstance(colours, Tensor)
    tied = hard_support(trained_classifier(), image, torch.ones(32, 32), colours, label)
    changes = (round_to_8_bits(colours) - image).abs().mean(0)
    by_change = hard_support(trained_classifier(), image, changes, colours, label)
    assert tied.pixels is not None
    assert tied.pixels == by_change.pixels
    assert tied.budget == by_change.budget


def test_saved_and_reloaded_picture_is_the_rounded_one() -> None:
    image = torch.rand(3, 5, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(through_png(image), round_to_8_bits(image))
    assert changed_pixels(round_to_8_bits(image), round_to_8_bits(image)) == 0


def test_paper_recipe_starts_at_the_picture_and_is_reproducible(
    sure: tuple[Tensor, list[int]],
) -> None:
    images, labels = sure
    said: list[Progress] = []
    limits = Limits(calls=20)
    one = paper.run(trained_classifier(), images[0], labels[0], None, limits, 3, said.append)
    two = paper.run(trained_classifier(), images[0], labels[0], None, limits, 3)
    assert said[0].budget == 0
    assert torch.equal(one.adversarial, two.adversarial)


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match=r"images must be \[N, 3, H, W\]"):
        ours.attack_batch(trained_classifier(), torch.zeros(3, 8, 8), [0])
    with pytest.raises(ValueError, match=r"images must be in \[0, 1\], got 0 to 255"):
        ours.run(trained_classifier(), torch.tensor([0.0, 1.0, 255.0]).expand(3, 8, 3), 0)
    with pytest.raises(ValueError, match=r"image must be \[3, H, W\], got shape \(1, 3, 8, 8\)"):
        ours.run(trained_classifier(), torch.rand(1, 3, 8, 8), 0)
    with pytest.raises(ValueError, match="labels must have one entry"):
        ours.attack_batch(trained_classifier(), torch.zeros(2, 3, 8, 8), [0])
    with pytest.raises(ValueError, match="masks must be boolean"):
        ours.attack_batch(
            trained_classifier(), torch.zeros(2, 3, 8, 8), [0, 0], masks=torch.ones(8, 8)
        )
    with pytest.raises(ValueError, match="label must be a class from 0 to 3, got label=9"):
        ours.attack_batch(trained_classifier(), torch.zeros(2, 3, 32, 32), [0, 9])
    nothing = torch.zeros(8, 8, dtype=torch.bool)
    with pytest.raises(ValueError, match="masks must leave some pixel"):
        ours.attack_batch(trained_classifier(), torch.zeros(2, 3, 8, 8), [0, 0], masks=nothing)
