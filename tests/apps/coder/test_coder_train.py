"""Training: the budget is kept exactly, what is learned beats its start, runs repeat."""

import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from fast_lapsum.apps.coder import Settings, decode_picture, encode, finish, fit
from fast_lapsum.apps.coder import best as best_trainer
from fast_lapsum.apps.coder import plain as plain_trainer
from fast_lapsum.apps.coder.best import BestTrainer
from fast_lapsum.apps.coder.colour import psnr
from fast_lapsum.apps.coder.dictionary import Dictionary
from fast_lapsum.apps.coder.finish import allocate, cell_width, counted_bits, levels_of
from fast_lapsum.apps.coder.fit_best import next_count, refit
from fast_lapsum.apps.coder.plain import PlainTrainer
from fast_lapsum.apps.coder.prices import Prices
from fast_lapsum.apps.coder.study import study, ways
from fast_lapsum.apps.coder.train import train_plain

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


def test_a_refit_that_makes_no_sense_keeps_the_step():
    dictionary = Dictionary("wavelet", "rgb", 16, 16, 1, torch.device("cpu"))
    integers = torch.zeros(dictionary.count)
    integers[-40], integers[-5] = 1, 2  # two atoms far apart
    wanted = torch.zeros(dictionary.count)
    wanted[-40], wanted[-5] = 28, 30  # 1 at 1.4 steps, 2 at 1.5: a step of 2, a shrink of -26
    planes = dictionary.synthesise(wanted[None])
    assert refit(dictionary, planes, integers, 20.0) == (20.0, 0.0)
    step, shrink = refit(dictionary, dictionary.synthesise(18.0 * integers[None]), integers, 20.0)
    assert (step, shrink) == pytest.approx((18.0, 0.0), abs=1e-3)


def test_progress_is_reported_and_the_operator_timed():
    reports = []
    found = fit(drawn(32, 32), replace(PLAIN, steps=25), reports.append)
    assert [report.step for report in reports] == [10, 20, 25]
    assert reports[-1].seconds_left == 0
    assert all(report.psnr > 10 and report.bits > 0 for report in reports)
    assert found.profile.steps == 24
    assert 0 < found.profile.share < 1


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "best"])
def test_the_first_step_is_not_in_the_profile(monkeypatch, plain):
    """It pays for compilation and warm-up, in the operator and around it."""
    trainer, module = (PlainTrainer, plain_trainer) if plain else (BestTrainer, best_trainer)
    step, operator = trainer.step, module.soft_topk
    calls = []

    def slow_step(self, number):
        if number == 0:
            time.sleep(0.5)
        step(self, number)

    def slow_operator(*arguments, **options):
        if not calls:
            time.sleep(0.5)
        calls.append(1)
        return operator(*arguments, **options)

    monkeypatch.setattr(trainer, "step", slow_step)
    monkeypatch.setattr(module, "soft_topk", slow_operator)
    found = fit(drawn(16, 16), replace(PLAIN, plain=plain, steps=4))
    times = found.profile
    assert len(calls) == 4
    assert times.steps == 3
    assert 0 < times.operator_seconds < times.seconds < 0.5
    assert found.seconds > 1
    assert times.step_ms == pytest.approx(1000 * times.seconds / 3)
    assert times.operator_ms == pytest.approx(times.share * times.step_ms)


def test_a_single_step_has_no_profile():
    times = fit(drawn(16, 16), replace(PLAIN, steps=1)).profile
    assert (times.steps, times.seconds, times.operator_seconds) == (0, 0, 0)
    assert (times.share, times.step_ms, times.operator_ms) == (0, 0, 0)


def test_levels_spend_the_budget_where_it_buys_most():
    for start in ([1, 1], [60, 60]):
        levels = allocate([10, 10], [100, 100], [50.0, 50.0], [1000.0, 10.0], 3, 400, start)
        assert levels[0] > levels[1]
        assert counted_bits([10, 10], [100, 100], levels, 3) <= 400


def test_learned_depths_that_spend_the_budget_reach_the_file():
    learned = [9, 3]  # not what allocate finds from [1, 1]
    bits = counted_bits([10, 10], [100, 100], learned, 3) + 0.5
    arguments = ([10, 10], [100, 100], [50.0, 50.0], [1000.0, 10.0], 3, bits)
    assert allocate(*arguments, learned) == learned
    assert allocate(*arguments, [1, 1]) != learned


def test_the_trainer_hands_its_depths_over(monkeypatch):
    seen = []

    def spy(*arguments):
        seen.append(arguments[-1])
        return allocate(*arguments)

    monkeypatch.setattr(finish, "allocate", spy)
    trainer = train_plain(drawn(32, 32), replace(PLAIN, steps=3), None)
    trainer.finish()
    assert seen == [[levels_of(depth) for depth in trainer.depth.tolist()]]


def test_allocate_models_the_quantiser():
    """The width that bits are spent by is the one that values are rounded with."""
    assert cell_width(10.0, 5) == 2.0
    picture = drawn(32, 32)
    trainer = train_plain(picture, replace(PLAIN, steps=3), None)
    code, _ = trainer.finish(polish=False)
    amplitudes = trainer.log_amplitude.detach().exp().tolist()
    for band, amplitude in zip(code.bands, amplitudes, strict=True):
        assert band.step == pytest.approx(4096 * cell_width(amplitude, band.levels), abs=0.51)


def textured(side):
    """Something like a photograph: noise whose spectrum falls off, and edges."""
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[:side, :side] / side
    falls = 1 / (1e-3 + np.hypot(*np.meshgrid(np.fft.fftfreq(side), np.fft.fftfreq(side)))) ** 1.2
    noise = np.fft.ifft2(np.fft.fft2(random.normal(size=(side, side))) * falls).real
    noise *= 30 / noise.std()
    disc = 60 * (np.hypot(rows - 0.4, columns - 0.5) < 0.2)
    planes = [128 + noise + disc, 110 + 0.8 * noise, 100 + 0.6 * noise - disc]
    return np.stack(planes, -1).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "best"])
def test_training_counts_what_the_file_takes(plain):
    settings = Settings(bits=1, plain=plain, steps=40)
    made = encode.encode(textured(512), settings, 1638)
    assert made.fit.file_bits == 8 * len(made.data)
    assert made.fit.counted == pytest.approx(made.fit.file_bits, rel=0.03)
    # Training's own count, not the file's: it is close but never the same.
    assert made.fit.counted != made.fit.file_bits


def test_the_count_is_scaled_by_measurements():
    dictionary = Dictionary("wavelet", "rgb", 32, 32, 1, torch.device("cpu"))
    prices = Prices(dictionary)
    magnitudes = torch.zeros(dictionary.count)
    magnitudes[:50] = 2
    prices.update(magnitudes)
    before, price = float(prices.total), prices.on.clone()
    prices.calibrate(1.3 * before)
    assert float(prices.total) == pytest.approx(1.3 * before)
    prices.update(magnitudes)
    assert float(prices.total) == pytest.approx(1.3 * before)
    assert torch.equal(prices.on, price)
    prices.calibrate(1.1 * before)
    assert float(prices.total) == pytest.approx(1.1 * before)


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
