"""Training: the budget is kept exactly, what is learned beats its start, runs repeat."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fast_lapsum.apps.coder import Settings, decode_picture, fit
from fast_lapsum.apps.coder.colour import psnr
from fast_lapsum.apps.coder.finish import allocate, counted_bits
from fast_lapsum.apps.coder.fit_best import next_count
from fast_lapsum.apps.coder.study import study, ways

PLAIN = Settings(bits=1500, plain=True, steps=12)
BEST = Settings(bits=3000, steps=6)


def drawn(height, width, planes=3):
    """Discs on a gradient, the same every time."""
    rows, columns = np.mgrid[:height, :width]
    picture = np.stack([80 + rows, 60 + columns, 120 + 0 * rows], -1).astype(float)
    for centre, radius, shade in ((0.3, 0.2, (90, -40, 30)), (0.65, 0.25, (-60, 70, 10))):
        inside = (rows / height - centre) ** 2 + (columns / width - centre) ** 2 < radius**2
        picture += inside[..., None] * np.array(shade)
    return picture.clip(0, 255).astype(np.uint8)[..., :planes]


def counted(code):
    """The plain code's rate, from the code alone."""
    counts = [int(band.mask.sum()) for band in code.bands]
    places = [band.mask.size for band in code.bands]
    levels = [band.levels for band in code.bands]
    return counted_bits(counts, places, levels, code.bands[0].values.shape[1])


def check(code):
    """What every reader of a code relies on."""
    for band in code.bands:
        assert band.values.shape[0] == band.mask.sum()
        assert np.abs(band.values).max(initial=0) <= band.levels
        assert band.step >= 1


def test_plain_keeps_k_and_the_budget():
    picture = drawn(64, 64)
    found = fit(picture, replace(PLAIN, atoms=70))
    check(found.code)
    assert found.atoms == 70
    assert found.bits == pytest.approx(counted(found.code))
    assert 0.95 * 1500 < found.bits <= 1500
    assert found.psnr == psnr(picture, decode_picture(found.code))


def test_plain_takes_one_atom_per_sixteen_bits():
    assert fit(drawn(64, 64), replace(PLAIN, steps=2)).atoms == round(1500 / 16)


def test_plain_drops_atoms_that_the_budget_cannot_hold():
    found = fit(drawn(64, 64), replace(PLAIN, atoms=1000, steps=2))
    assert found.bits <= 1500
    assert 0 < found.atoms < 1000


def test_training_improves_on_its_start():
    picture = drawn(64, 64)
    start = fit(picture, replace(PLAIN, steps=1))
    assert fit(picture, replace(PLAIN, steps=60)).psnr > start.psnr


def test_best_keeps_the_file_within_its_bits():
    pytest.importorskip("constriction")
    from fast_lapsum.apps.coder.container import to_bytes

    picture = drawn(64, 64)
    found = fit(picture, BEST)
    check(found.code)
    assert all((band.values != 0).all() for band in found.code.bands)
    assert 8 * len(to_bytes(found.code)) <= 3000
    assert found.psnr == psnr(picture, decode_picture(found.code))


def test_best_beats_plain_on_smooth_pictures():
    rows, columns = np.mgrid[:64, :64] / 64
    waves = 128 + 60 * np.sin(5 * rows) * np.cos(7 * columns) + 30 * np.sin(9 * rows * columns)
    picture = np.stack([waves, 255 - waves, 0.5 * waves], -1).astype(np.uint8)
    assert fit(picture, BEST).psnr > fit(picture, replace(PLAIN, bits=3000)).psnr + 3


@pytest.mark.parametrize(("under", "over"), [(None, (900, 2e4)), ((9, 900.0), None)])
def test_the_search_for_k_moves_towards_the_budget(under, over):
    following = next_count(under, over, 1000.0)
    assert following < 900 if under is None else following > 9


def test_the_search_for_k_ends():
    under, over = (0, 10.0), (10_000, 1e5)
    for _ in range(60):
        following = next_count(under, over, 3333.0)
        assert under[0] <= following < over[0]
        if following == under[0]:
            break
        bits = 10.0 + 9.999 * following
        under, over = ((following, bits), over) if bits <= 3333 else (under, (following, bits))
    assert under[1] > 0.98 * 3333


@pytest.mark.parametrize("settings", [PLAIN, BEST], ids=["plain", "best"])
@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 1, 1), (7, 33, 1), (2, 3, 3), (40, 17, 3)])
def test_any_size_and_grey(settings, shape):
    found = fit(drawn(*shape), replace(settings, steps=2))
    check(found.code)
    assert decode_picture(found.code).shape == shape


@pytest.mark.parametrize("settings", [PLAIN, BEST], ids=["plain", "best"])
def test_a_budget_for_nothing_gives_an_empty_code(settings):
    found = fit(drawn(16, 16), replace(settings, bits=1.0, steps=2))
    assert found.atoms <= 1
    assert decode_picture(found.code).shape == (16, 16, 3)


@pytest.mark.parametrize("settings", [PLAIN, BEST], ids=["plain", "best"])
def test_flat_pictures_are_nearly_free_of_error(settings):
    found = fit(np.full((32, 32, 3), 200, np.uint8), replace(settings, steps=20))
    assert found.psnr > 40


@pytest.mark.parametrize("settings", [PLAIN, BEST], ids=["plain", "best"])
def test_runs_repeat(settings):
    picture = drawn(32, 32)
    first, second = (fit(picture, replace(settings, seed=5, steps=5)).code for _ in range(2))
    for one, other in zip(first.bands, second.bands, strict=True):
        assert np.array_equal(one.mask, other.mask)
        assert np.array_equal(one.values, other.values)
        assert one[5:] == other[5:]


def test_progress_is_reported_and_the_operator_timed():
    reports = []
    found = fit(drawn(32, 32), replace(PLAIN, steps=25), reports.append)
    assert [report.step for report in reports] == [10, 20, 25]
    assert reports[-1].seconds_left == 0
    assert all(report.psnr > 10 and report.bits > 0 for report in reports)
    assert found.profile.steps == 25
    assert 0 < found.profile.share < 1


def test_levels_spend_the_budget_where_it_buys_most():
    levels = allocate([10, 10], [100, 100], [50.0, 50.0], [1000.0, 10.0], 3, 400)
    assert levels[0] > levels[1]
    assert counted_bits([10, 10], [100, 100], levels, 3) <= 400


def test_study_compares_the_ways_on_one_picture():
    settings = replace(PLAIN, steps=4)
    outcomes = list(study(drawn(32, 32), settings))
    assert [outcome.name for outcome in outcomes] == list(ways(settings))
    assert all(outcome.polished >= outcome.hardened - 0.05 for outcome in outcomes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"bits": 0}, "bits=0"), ({"atoms": 0}, "atoms=0"), ({"steps": 0}, "steps=0")],
)
def test_settings_name_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        Settings(**{"bits": 100, **arguments})


@pytest.mark.parametrize("picture", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3), np.int32)])
def test_fit_names_a_picture_of_another_kind(picture):
    with pytest.raises(ValueError, match="picture must be uint8"):
        fit(picture, PLAIN)


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [PLAIN, BEST], ids=["plain", "best"])
def test_cuda_trains_as_well(settings):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    picture = drawn(64, 64)
    on_cpu, on_gpu = (fit(picture, replace(settings, device=name)) for name in ("cpu", "cuda"))
    assert on_gpu.psnr == pytest.approx(on_cpu.psnr, abs=1.0)
