"""Long rows, interpreted: the sample, the rounds, and what they do where a plan fails.

Like test_triton_interpreted.py these want a process of their own, with ``TRITON_INTERPRET=1``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import (
    DISTRIBUTIONS,
    FULL_DTYPES,
    generator,
    normal,
)

pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("`make test` interprets the kernels in another process", allow_module_level=True)

import triton
import triton.language as tl

from fast_lapsum.triton import launch, long_rows
from fast_lapsum.triton.arguments import pair
from fast_lapsum.triton.decide import after_ladder
from fast_lapsum.triton.primitives import LISTS
from fast_lapsum.triton.state import BAND, DONE, GATHERED, LADDER, STATE_FIELDS, STATISTICS
from interpreting import (
    ONE_PROGRAM,
    STREAM,
    check,
    forward,
    poison,
    tier,
)
from watching import round_states, settled_states

__all__ = ["poison", "tier"]  # fixtures
inf, nan = math.inf, math.nan

# numpy, which the interpreter computes with, warns about what a GPU does in silence: infinities
# minus infinities, logarithms of zero, conversions of both.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize("t", [10.0, 1.0, 1e-2, 1e-3])
def test_several_groups_of_tiles(t: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums go on from group to group, and the rounds settle the row: no last resort."""
    states: list[float] = []
    settle = long_rows.settle_forward

    class Watched:
        arg_names = settle.arg_names

        def __getitem__(self, grid: Any) -> Any:
            def run(*arguments: Any, **named: Any) -> Any:
                state = arguments[self.arg_names.index("state")]
                states.append(float(state.flatten()[0]))
                return settle[grid](*arguments, **named)

            return run

    monkeypatch.setattr(long_rows, "settle_forward", Watched())
    scores = normal(1, 2700, seed=2, dtype=torch.float32)
    assert scores.shape[-1] > 2 * 16 * ONE_PROGRAM.tile  # three groups of sixteen tiles
    check(scores, 2700 / 16, t, settings=ONE_PROGRAM)
    assert set(states) <= {2.0, 3.0}  # DONE or GATHERED
    scores[0, 2600] = nan
    p, _ = forward(scores, 2700 / 16, t, settings=ONE_PROGRAM)
    assert p.isnan().all()


# streams whose plans fail


def _hard_cases(n: int) -> tuple[Tensor, Tensor, Tensor]:
    names = ("cauchy", "three_clusters", "sixteen_levels", "one_outlier")
    scores = torch.stack([DISTRIBUTIONS[name](n, generator(3)) for name in names]).float()
    k = torch.tensor([n / 3, n / 2, 17.5, n - 1.0], dtype=torch.float64)
    t = torch.tensor([0.3, 0.02, 1e-3, 1e-3], dtype=torch.float64)
    return scores, k, t


def test_a_budget_just_below_the_whole_row() -> None:
    """n - k is small against the rounding of N> - k: scores equal to a trial are counted first."""
    row = DISTRIBUTIONS["normal"](1000, generator(1000)).float()[None]
    k, t = torch.tensor([1000 - 1e-6]).double(), torch.tensor([1e-3]).double()
    check(row, k, t)


@pytest.mark.parametrize(
    "change",
    [{"capacity": 32}, {"rounds": 1}, {"capacity": 32, "rounds": 1}, {"rounds": 3}],
    ids=str,
)
def test_too_small_a_band_and_too_few_rounds(change: dict[str, int]) -> None:
    """What the rounds leave open is solved from the whole row."""
    scores, k, t = _hard_cases(130)
    check(scores, k, t, settings=STREAM._replace(**change))


def _shifted(samples: Tensor, by: float) -> None:
    trials = samples.view(-1, long_rows.SAMPLE_FIELDS.value)[:, -3:]
    trials += by


#: What may have become of a sample.
LIES: dict[str, Callable[[Tensor], Any]] = {
    "nothing": lambda samples: samples.zero_(),
    "nan": lambda samples: samples.fill_(nan),
    "infinite": lambda samples: samples.fill_(inf),
    "noise": lambda samples: samples.copy_(normal(len(samples), seed=8)),
    "too_high": lambda samples: _shifted(samples, 0.5),
    "much_too_low": lambda samples: _shifted(samples, -1e4),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_sample_that_misleads(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample says where to look; nothing it says may change the answer."""
    sample_forward = long_rows.sample_forward

    class Lying:
        arg_names = sample_forward.arg_names

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def run(*args: Any, **kwargs: Any) -> None:
                sample_forward[grid](*args, **kwargs)
                LIES[lie](args[sample_forward.arg_names.index("samples")])

            return run

    monkeypatch.setattr(long_rows, "sample_forward", Lying())
    scores, k, t = _hard_cases(130)
    check(scores, k, t, settings=STREAM)


def test_data_that_misleads_a_sample() -> None:
    """All that a sample with any fixed stride sees is unlike the rest."""
    n = 320
    at = torch.arange(n)
    scores = torch.stack(
        [
            torch.where(at % stride == 0, 50.0, 0.0) + 0.1 * normal(n, seed=4)
            for stride in (2, 8, 64)
        ]
    ).float()
    check(scores, torch.tensor([9.5, 70.0, 300.0]).double(), 0.05, settings=STREAM)


@pytest.mark.parametrize(("k", "t"), [(0.3, 0.02), (2.5, 0.02), (2.5, 1.0), (4095.7, 0.02)])
def test_small_budgets_are_settled_in_the_rounds(
    k: float, t: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All scores of a short tail are one band, and the root may lie beyond the last of them."""
    states = settled_states(monkeypatch)
    settings = STREAM._replace(tile=512, singles=256, sample_chunks=64, capacity=1024)
    check(normal(1, 4096, seed=3, dtype=torch.float32), k, t, settings=settings)
    assert float(states[0][0]) in (DONE.value, GATHERED.value)


@pytest.mark.parametrize("value", [0.0, 1.0, -3e4])
def test_equal_scores_far_from_the_root_round_alike(
    value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen temperatures away, each distance may be off by 1e-6 of t: that must not add up."""
    states = settled_states(monkeypatch)
    settings = STREAM._replace(tile=512, singles=256, sample_chunks=64, capacity=1024)
    scores, k = torch.full((2, 4096), value), torch.tensor([4e-4, 1e-3], dtype=torch.float64)
    scores[1, 7] = value - 100.0
    p, _ = forward(scores, k, 0.1, settings=settings)
    assert ((p.double().sum(-1) - k).abs() <= 2.5e-7 * k).all()
    assert [float(states[0][row * STATE_FIELDS.value]) for row in (0, 1)] == [DONE.value] * 2


def test_equal_scores_at_a_temperature_that_their_digits_do_not_resolve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Statistics at a root that is rounded by about t would not certify it: the band does."""
    states = settled_states(monkeypatch)
    settings = STREAM._replace(tile=512, singles=256, sample_chunks=64, capacity=1024)
    check(torch.full((1, 4096), -3e4), 1e-3, 3e-4, settings=settings)
    assert float(states[0][0]) == GATHERED.value


def test_a_nan_that_no_sample_sees() -> None:
    scores = normal(6, 321, dtype=torch.float32)
    scores[torch.arange(6), torch.tensor([0, 61, 130, 201, 280, 320])] = nan
    t = torch.tensor([1e-3, 1e-3, 0.1, 0.1, 3.0, 3.0], dtype=torch.float64)
    p, threshold = forward(scores, 100.0, t, settings=STREAM)
    assert p.isnan().all()
    assert threshold[..., 0].isnan().all()


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("value", [-1e9, 1e30, -3.4e38])
@pytest.mark.parametrize("dtype", FULL_DTYPES)
def test_one_score_far_from_the_others(
    tier: tuple[launch.Streaming | None, int], dtype: torch.dtype, value: float, place: int
) -> None:
    """A padding of -1e9 in front must not cost the other scores their digits."""
    settings, n = tier
    scores = normal(1, n, seed=7, dtype=dtype)
    scores[..., place] = value
    scores = scores.expand(4, n).contiguous()
    k = torch.tensor([1.0, n / 3, n - 2.0, 1.5], dtype=torch.float64)
    t = torch.tensor([0.01, 1.0, 0.1, 1e-4], dtype=torch.float64)
    check(scores, k, t, settings=settings)


def test_many_scores_of_a_mask_value() -> None:
    """Rows of which a tenth is padding, with the values that people pad with."""
    scores = normal(3, 600, seed=8, dtype=torch.float32)
    for row, value in zip(scores, (-1e9, torch.finfo(torch.float32).min, -1e4), strict=True):
        row[::10] = value
    k = torch.full((3,), 60.5, dtype=torch.float64)
    for t in (1.0, 0.01):
        check(scores, k, torch.full_like(k, t), settings=STREAM)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [20.5, 50.0])
def test_a_ladder_where_mass_comes_in_steps(
    k: float, largest: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores clipped at the top, hardly any for a while, and all others close together."""
    states, settled = round_states(monkeypatch), settled_states(monkeypatch)
    settings = STREAM._replace(
        tile=512, singles=64, sample_chunks=16, capacity=256, planned=64, rounds=3
    )
    scores = 0.1 * normal(1, 6000, seed=1, dtype=torch.float32) - 0.9
    scores[0, ::150] = 3.0
    scores[0, 3::75] = torch.linspace(-0.3, 2.9, 80)
    check(scores if largest else -scores, k, 1e-3, largest=largest, settings=settings)
    assert [float(state[0]) for state in states] == [LADDER.value, BAND.value, GATHERED.value]
    assert float(settled[0][0]) == GATHERED.value


@triton.jit
def _decide(numbers, out, capacity, may_climb):
    wanted, b, half_window, lo, hi = after_ladder(
        tl.load(numbers),
        tl.load(numbers + 1),
        tl.load(numbers + 2).to(tl.float32),
        tl.load(numbers + 3).to(tl.float32),
        tl.load(numbers + 4).to(tl.float32),
        tl.load(numbers + 5).to(tl.float32),
        tl.load(numbers + 6).to(tl.float32),
        tl.load(numbers + 7).to(tl.float32),
        tl.load(numbers + 8),
        tl.load(numbers + 9),
        tl.load(numbers + 10),
        tl.load(numbers + 11),
        tl.load(numbers + 12),
        tl.load(numbers + 13),
        capacity,
        may_climb,
        tl.float32,
    )
    tl.store(out, wanted)
    tl.store(out + 1, b)
    tl.store(out + 2, half_window)
    tl.store(out + 3, lo)
    tl.store(out + 4, hi)


def _after_ladder(
    k: float, foot: tuple[float, float], step: float, masses: list[float], may_climb: bool
) -> list[float]:
    """What a row wants after a ladder up from ``foot`` (b and the mass there), and where."""
    out = torch.full((5,), nan, dtype=torch.float64)
    b, mass = foot
    numbers = [k, 1e-4, b, step, mass, 4.0, b, inf, *masses]
    _decide[(1,)](torch.tensor(numbers, dtype=torch.float64), out, 65536, int(may_climb))
    return out.tolist()


@pytest.mark.parametrize("may_climb", [True, False])
def test_a_ladder_in_a_gap(may_climb: bool) -> None:
    """All masses are k, as far as they tell: statistics, where a rung has mass k."""
    wanted, b, half, _, _ = _after_ladder(999.7, (0.5, 1000.0), 1e-3, 6 * [1000.0], may_climb)
    assert (wanted, b) == (STATISTICS.value, 0.5)
    assert half > 1
    masses = [1020.0, *(5 * [1000.0])]
    wanted, b, half, _, _ = _after_ladder(999.7, (0.5, 1050.0), 1e-3, masses, may_climb)
    assert (wanted, b) == (STATISTICS.value, pytest.approx(0.505))
    assert half > 1


def test_a_ladder_that_is_too_short() -> None:
    """The root is beyond the last rung: a longer one from there, or a look there."""
    masses = 6 * [1000.0]
    wanted, b, step, foot, widening = _after_ladder(700.0, (0.5, 1000.0), 1e-3, masses, True)
    assert (wanted, foot, widening) == (LADDER.value, 1000.0, 4.0)
    assert (b, step) == (pytest.approx(1.865), pytest.approx(8e-3))
    wanted, b, half, _, _ = _after_ladder(700.0, (0.5, 1000.0), 1e-3, masses, False)
    assert wanted == STATISTICS.value
    assert 1.865 < b < 20
    assert half > 1


def test_the_last_band_of_a_ladder_has_its_ends_in_order() -> None:
    """Even where the aim rounds to the foot of the ladder."""
    masses = 6 * [4e5]
    wanted, _, _, lo, hi = _after_ladder(1e6, (1000.0, 1e6 + 3), 1e-2, masses, False)
    assert wanted == BAND.value
    assert 1000.0 <= lo < hi <= 1000.02


def test_two_ladders_into_a_dense_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many scores so close together that the first ladder's rungs have too many between them."""
    states = round_states(monkeypatch)
    settings = STREAM._replace(
        tile=512, singles=64, sample_chunks=16, capacity=512, planned=64, rounds=4
    )
    scores = normal(1, 20_000, seed=4, dtype=torch.float32)
    scores = torch.where(scores > 1.5, 3.0 + 0.01 * scores, 0.1 * scores)
    check(scores, 700.5, 1e-5, settings=settings)
    found = [float(state[0]) for state in states]
    assert found == [LADDER.value, LADDER.value, BAND.value, GATHERED.value]


def test_the_lists_of_a_band_fill_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all high scores are in the same lane of their tiles, as in the columns of a picture."""
    settled = settled_states(monkeypatch)
    scores = 0.1 * normal(1, 64 * 64, seed=2, dtype=torch.float32)
    scores[0, 5::64] = torch.linspace(3.0, 4.0, 64)
    check(scores, 32.0, 1e-4, settings=STREAM._replace(capacity=512, planned=512))
    assert float(settled[0][0]) == GATHERED.value


def _settle(
    scores: Tensor, k: float, t: float, lo: float, hi: float, capacity: int, held: int
) -> Tensor:
    """The pair of a row [n] from the band between lo and hi, gathered as the rounds do."""
    high = scores.double()
    inside = (scores > lo) & (scores < hi)
    below, above = high[high <= lo], high[high >= hi]
    state = torch.zeros(STATE_FIELDS.value, dtype=torch.float64)
    sums = [math.fsum(((below - lo) / t).exp()), math.fsum(((hi - above) / t).exp())]
    known = [GATHERED.value, lo, hi, len(above), *sums]
    state[[0, 3, 4, 7, 8, 9]] = torch.tensor(known, dtype=torch.float64)
    tickets = torch.zeros(1 + LISTS.value, dtype=torch.int32)
    band = torch.full((LISTS.value, capacity // LISTS.value), nan, dtype=scores.dtype)
    for number, part in enumerate(scores[inside].tensor_split(LISTS.value)):
        band[number, : len(part)] = part
        tickets[1 + number] = len(part)
    found = torch.full((2,), nan, dtype=scores.dtype)
    long_rows.settle_forward[(1,)](
        *(None, None, None, None),  # nothing but the band may be read
        *(state, tickets, band, found),
        *(*pair(k), *pair(t), len(scores), 1, len(tickets)),
        *(0, 0, 1, 0, 0, 1, 0, 0, 0, 0),
        LARGEST=True,
        BLOCK=max(held // 2, 64),
        CAPACITY=capacity,
        HELD=held,
        SPACING=1,
        OVERLAP=False,
        COMPUTE=tl.float64 if scores.dtype == torch.float64 else tl.float32,
    )
    return found


@pytest.mark.parametrize("held", [2048, 256], ids=["band", "lists"])
@pytest.mark.parametrize("length", [400, 900])
@pytest.mark.parametrize("dtype", FULL_DTYPES)
@pytest.mark.parametrize("t", [0.3, 0.02, 1e-4])
def test_bands_of_any_length(t: float, dtype: torch.dtype, length: int, held: int) -> None:
    """In registers, and too long for registers: read from its lists."""
    scores = normal(length + 500, seed=3, dtype=dtype)
    ordered = scores.sort().values
    lo, hi = float(ordered[299]), float(ordered[-200])
    for k in (200 + length / 3, 200.5 + length / 2):
        pair = _settle(scores, k, t, lo, hi, 2048, held)
        u = (scores.double() - pair[0].double() - pair[1].double()) / t
        p = torch.where(u > 0, 1 - (-u.abs()).exp() / 2, (-u.abs()).exp() / 2)
        assert float(p.sum()) == pytest.approx(k, rel=1e-6 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("length", [4000, 60_000], ids=["band", "lists"])
@pytest.mark.parametrize("k", [0.7, 1.3, 2.9])
def test_what_integers_round_of_equal_scores_does_not_add_up(k: float, length: int) -> None:
    """Float64 has more digits than the integers that its exponentials are added as."""
    scores = torch.zeros(length, dtype=torch.float64)
    scores[:4] = torch.tensor([12.5, 12.0, 11.0, 10.0])
    b = _settle(scores, k, 1.0, -5.0, torch.finfo(scores.dtype).max, 1 << 16, 4096).sum()
    u = scores - b
    p = torch.where(u > 0, 1 - (-u.abs()).exp() / 2, (-u.abs()).exp() / 2)
    assert math.fsum(p.tolist()) == pytest.approx(k, rel=1e-13)


def test_a_band_of_equal_scores_does_not_overflow_its_sums() -> None:
    """Exponentials are added as integers: of 2^-49 in registers, of 2^-46 from longer lists."""
    table = [launch.streaming(1 << bits) for bits in range(14, 34)]
    held = max(settings.held for settings in table)
    capacity = max(settings.capacity for settings in table)
    for length in (held, capacity):
        scores = torch.full((length,), 1.0)
        ends = (-torch.finfo(scores.dtype).max, torch.finfo(scores.dtype).max)
        for k in (length / 2 + 0.5, length - 1.0):
            b = float(_settle(scores, k, 0.5, *ends, capacity, held).double().sum())
            u = (1.0 - b) / 0.5
            p = 1 - math.exp(-u) / 2 if u > 0 else math.exp(u) / 2
            assert length * p == pytest.approx(k, rel=2e-7)
