"""The GPU kernels against reference.py, without a GPU: Triton's interpreter runs them on the CPU.

Triton decides when it is imported whether to interpret, so that this file wants a process of its
own: ``TRITON_INTERPRET=1 pytest tests/test_triton_interpreted.py``, which ``make test`` runs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import (
    DISTRIBUTIONS,
    DTYPES,
    FULL_DTYPES,
    LAYOUTS,
    TEMPERATURES,
    assert_budget,
    assert_near,
    budgets,
    corners,
    expected,
    generator,
    normal,
)

pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("`make test` interprets the kernels in another process", allow_module_level=True)

import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from fast_lapsum.triton import launch
from fast_lapsum.triton.plan import BAND, DONE, GATHERED, LADDER, STATE_FIELDS
from fast_lapsum.triton.primitives import LISTS
from tree_reduction import install
from watching import round_states, settled_states

install()

inf, nan = math.inf, math.nan

# numpy, which the interpreter computes with, warns about what a GPU does in silence: infinities
# minus infinities, logarithms of zero, conversions of both.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

#: Long rows of a few hundred scores: tiles are many, and the last one is not full. A program has
#: one group of tiles only; `ONE_PROGRAM` and a row of some thousand scores give it several.
STREAM = launch.Streaming(
    tile=64,
    mask_tile=128,
    sums_tile=64,
    write_tile=64,
    singles=64,
    sample_chunks=4,
    sample_programs=2,
    capacity=64,
    settle_tile=64,
    rounds=2,
)
ONE_PROGRAM = STREAM._replace(programs_per_core=0, later_programs_per_core=0, capacity=1024)
#: Launch parameters, and how long a row they go with.
TIERS: dict[str, tuple[launch.Streaming | None, int]] = {
    "rows": (None, 37),
    "stream": (STREAM, 130),
}
KERNELS = {
    name: value for name, value in vars(launch).items() if isinstance(value, InterpretedFunction)
}
GUARD = 64


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """New memory is full of NaN, and has more of it on both sides, where nothing may be written."""
    made: list[tuple[Tensor, Tensor]] = []

    def guarded(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def make_guarded(*args: Any, **kwargs: Any) -> Tensor:
            plain = make(*args, **kwargs)
            length = 2 * GUARD + plain.untyped_storage().nbytes() // plain.itemsize
            bad = nan if plain.is_floating_point() else 0x5A5A5A5A
            bad = 0xFF if plain.dtype == torch.uint8 else bad  # NaN, whatever it is seen as
            memory = torch.full((length,), bad, dtype=plain.dtype)
            made.append((memory, memory[:GUARD].clone()))
            return memory.as_strided(plain.shape, plain.stride(), GUARD)

        return make_guarded

    monkeypatch.setattr(torch, "empty", guarded(torch.empty))
    monkeypatch.setattr(torch, "empty_like", guarded(torch.empty_like))
    monkeypatch.setattr(Tensor, "new_empty", guarded(Tensor.new_empty))
    yield
    for memory, guard in made:
        for side in (memory[:GUARD], memory[-GUARD:]):
            assert torch.equal(side.view(torch.uint8), guard.view(torch.uint8)), "written outside"


@pytest.fixture(params=TIERS)
def tier(request: pytest.FixtureRequest) -> tuple[launch.Streaming | None, int]:
    """Rows on chip, and rows that are streamed."""
    return TIERS[request.param]


def _forward(
    scores: Tensor,
    k: Tensor | float,
    t: Tensor | float,
    *,
    mask: Tensor | None = None,
    warm_start: Tensor | None = None,
    largest: bool = True,
    hard: bool = False,
    out_dtype: torch.dtype | None = None,
    settings: launch.Streaming | None = None,
) -> tuple[Tensor, Tensor]:
    outer = scores.shape[:-1]
    return launch.forward(
        scores,
        k.expand(outer) if isinstance(k, Tensor) else None,
        nan if isinstance(k, Tensor) else k,
        t.expand(outer) if isinstance(t, Tensor) else None,
        nan if isinstance(t, Tensor) else t,
        None if mask is None else mask.expand(scores.shape),
        warm_start,
        largest,
        hard,
        out_dtype or scores.dtype,
        settings=settings,
    )


def _backward(
    grad: Tensor,
    scores: Tensor,
    t: Tensor | float,
    threshold: Tensor,
    *,
    mask: Tensor | None = None,
    largest: bool = True,
    per_row: bool = True,
    settings: launch.Streaming | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    return launch.backward(
        grad,
        scores,
        t.expand(scores.shape[:-1]) if isinstance(t, Tensor) else None,
        nan if isinstance(t, Tensor) else t,
        None if mask is None else mask.expand(scores.shape),
        threshold,
        largest,
        per_row,
        settings=settings,
    )


def _check(
    scores: Tensor,
    k: Tensor | float,
    t: Tensor | float,
    *,
    grad: Tensor | None = None,
    mask: Tensor | None = None,
    warm_start: Tensor | None = None,
    largest: bool = True,
    settings: launch.Streaming | None = None,
) -> None:
    """Mask and gradients of rows along the last dimension against the reference."""
    grad = normal(*scores.shape, seed=5, dtype=scores.dtype) if grad is None else grad
    before = scores.clone()
    p, threshold = _forward(
        scores, k, t, mask=mask, warm_start=warm_start, largest=largest, settings=settings
    )
    common: dict[str, Any] = {"mask": mask, "largest": largest, "settings": settings}
    d_scores, d_k, d_t = _backward(grad, scores, t, threshold, **common)
    d_scores_alone, no_k, no_t = _backward(grad, scores, t, threshold, per_row=False, **common)
    assert no_k is no_t is None
    assert torch.equal(before.nan_to_num(nan=7.5), scores.nan_to_num(nan=7.5))
    assert (p.dtype, d_scores.dtype) == (scores.dtype, scores.dtype)
    assert d_k is not None
    assert d_t is not None

    side = 1 if largest else -1
    rows = side * scores
    rows = rows if mask is None else rows.masked_fill(~mask, -inf)
    want = expected(rows, k, t, grad)
    assert_near(p, want.mask, want.mask_tolerance, "mask")
    for name, got in (("d scores", d_scores), ("d scores alone", d_scores_alone)):
        assert_near(side * got, want.d_scores, want.d_scores_tolerance, name)
    assert_near(d_k, want.d_budget, want.d_budget_tolerance, "d k")
    assert_near(d_t, want.d_temperature, want.d_temperature_tolerance, "d temperature")
    if scores.dtype.itemsize > 2:
        answered = ~want.mask.isnan().any(-1)
        ks = torch.as_tensor(k, dtype=torch.float64).expand(scores.shape[:-1])
        assert_budget(p[answered], ks[answered])


def _shares(*shape: int, seed: int = 1) -> Tensor:
    return torch.rand(shape, generator=generator(seed), dtype=torch.float64)


def test_every_kernel_is_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two tiers together launch all there is."""
    launched: set[str] = set()

    class Recorder:
        def __init__(self, name: str) -> None:
            self.name = name
            self.arg_names = KERNELS[name].arg_names

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
            launched.add(self.name)
            return KERNELS[self.name][grid]  # type: ignore[no-any-return]

    for name in KERNELS:
        monkeypatch.setattr(launch, name, Recorder(name))
    for settings, n in TIERS.values():
        _check(normal(1, n, dtype=torch.float32), 4.5, 0.3, settings=settings)
    assert launched == set(KERNELS)


# the table of cases

#: The half types take turns.
TABLE = [
    (dtype, distribution)
    for dtype in DTYPES
    for number, distribution in enumerate(DISTRIBUTIONS)
    if dtype in FULL_DTYPES or DTYPES.index(dtype) % 2 == number % 2
]


def _some_pairs(n: int, first: int, every: int) -> tuple[Tensor, Tensor]:
    """Budgets and temperatures of the table, one in so many: the interpreter is slow."""
    pairs = [(k, t) for t in TEMPERATURES for k in budgets(n)]
    return torch.tensor(pairs[first % every :: every], dtype=torch.float64).unbind(-1)  # type: ignore[return-value]


def _table_row(distribution: str, n: int, dtype: torch.dtype) -> Tensor:
    row = DISTRIBUTIONS[distribution](n, generator(n)).to(dtype)
    return row if row.isfinite().all() else row.clamp(-1e4, 1e4)


@pytest.mark.parametrize(("dtype", "distribution"), TABLE, ids=str)
def test_rows_of_any_distribution(dtype: torch.dtype, distribution: str) -> None:
    which = DTYPES.index(dtype) + list(DISTRIBUTIONS).index(distribution)
    for n, every in ((2, 17), (49, 11 if dtype in FULL_DTYPES else 19)):
        k, t = _some_pairs(n, which, every)
        t = t.clamp(min=0.01) if dtype == torch.float16 else t  # 1 / t must exist
        _check(_table_row(distribution, n, dtype).expand(len(k), n), k, t)


@pytest.mark.parametrize(("dtype", "distribution"), TABLE, ids=str)
def test_streams_of_any_distribution(dtype: torch.dtype, distribution: str) -> None:
    which = DTYPES.index(dtype) + 5 * list(DISTRIBUTIONS).index(distribution)
    n = 193 if dtype == torch.float32 else 150
    k, t = _some_pairs(n, which, {torch.float32: 23, torch.float64: 43}.get(dtype, 53))
    t = t.clamp(min=0.01) if dtype == torch.float16 else t
    _check(_table_row(distribution, n, dtype).expand(len(k), n), k, t, settings=STREAM)


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 31, 33, 64, 129, 300])
def test_rows_around_powers_of_two(n: int) -> None:
    """Blocks are powers of two; rows start anywhere, with NaN next to them."""
    memory = torch.full((2 * n + 7,), nan)
    scores = memory[3 : 3 + 2 * n].view(2, n).copy_(normal(2, n))
    _check(scores, torch.tensor([0.2, 0.7]).double() * n, 0.3)


@pytest.mark.parametrize("n", [1, 64, 65, 128, 321])
def test_streams_around_tiles(n: int) -> None:
    memory = torch.full((n + 7,), nan)
    scores = memory[3 : 3 + n].view(1, n).copy_(normal(1, n))
    _check(scores, 0.3 * n, 0.3, settings=STREAM)


# layouts


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout(tier: tuple[launch.Streaming | None, int], layout: str) -> None:
    """Every stride of scores and gradient, one value of k and t per row."""
    settings, n = tier
    shapes = (((n,), 0), ((2, n), 1), ((n, 2), 0), ((2, n, 2), 1))
    for shape, dim in shapes if settings is None else shapes[1:3]:
        scores = LAYOUTS[layout](normal(*shape, dtype=torch.float32)).movedim(dim, -1)
        grad = LAYOUTS[layout](normal(*shape, seed=1, dtype=torch.float32)).movedim(dim, -1)
        k = n * _shares(*scores.shape[:-1])
        _check(scores, k, 0.1 + _shares(*k.shape, seed=2), grad=grad, settings=settings)


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 2, 0, 3, 1)], ids=str)
def test_many_dimensions_in_any_order(order: tuple[int, ...]) -> None:
    """More dimensions than two strides describe, each of scores, k, t, mask and grad its own."""
    scores = normal(2, 3, 2, 5, 3, dtype=torch.float32).permute(order)
    mask = normal(*scores.shape[::-1], seed=3).permute(4, 3, 2, 1, 0) > -0.7
    k = _shares(*scores.shape[-2::-1]).permute(3, 2, 1, 0) * mask.sum(-1)
    _check(scores, k, 0.3 + _shares(scores.shape[-2], seed=2), mask=mask)


def test_many_dimensions_streamed() -> None:
    scores = normal(2, 130, 2, 2, dtype=torch.float64).permute(3, 0, 2, 1)
    mask = (_shares(130, 2, 2, 2, seed=3) < 0.8).permute(1, 2, 3, 0)
    k = _shares(2, 2, 2).permute(1, 2, 0) * mask.sum(-1)
    _check(scores, k, 0.3 + _shares(2, seed=2), mask=mask, settings=STREAM)


# masks, sides, numbers and tensors


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
def test_masks(
    tier: tuple[launch.Streaming | None, int], dtype: torch.dtype, largest: bool
) -> None:
    """What is masked out may hold anything."""
    settings, n = tier
    mask = (_shares(1, n) < 0.6).expand(2, n)  # one for all rows
    mask = mask if largest else mask.roll(1, -1).clone()
    scores = normal(2, n, dtype=dtype).masked_fill(~mask, nan)
    scores[:, ::7] = torch.where(mask[:, ::7], scores[:, ::7], inf)
    k = torch.tensor([0.2, 0.6]).double() * mask.sum(-1)
    _check(scores, k, 0.4, mask=mask, largest=largest, settings=settings)


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
def test_numbers_are_as_good_as_tensors(
    tier: tuple[launch.Streaming | None, int], dtype: torch.dtype
) -> None:
    settings, n = tier
    for k, t in ((n / 3, 0.1), (0.1, 1 / 3), (n - 1e-3, 1e-5)):
        _check(normal(1, n, dtype=dtype), k, t, settings=settings)


@pytest.mark.parametrize("t", [1e-200, 1e-30, 1e37, 1e200])
def test_numbers_beyond_float32(tier: tuple[launch.Streaming | None, int], t: float) -> None:
    """A kernel is given float32 numbers; those of float64 rows may be any."""
    settings, n = tier
    _check(t * normal(1, n), n / 3, t, settings=settings)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_wider_output(tier: tuple[launch.Streaming | None, int], dtype: torch.dtype) -> None:
    """Half-precision scores under autocast have float32 masks, with their whole budget."""
    settings, n = tier
    scores = normal(1, n, dtype=dtype)
    p, _ = _forward(scores, n / 3, 0.2, out_dtype=torch.float32, settings=settings)
    want = expected(scores, n / 3, 0.2, torch.zeros_like(scores), torch.float32)
    assert_near(p, want.mask, want.mask_tolerance, "mask")
    assert_budget(p, n / 3)


@pytest.mark.parametrize("start", [0.5, 1e30, -1e30, nan, inf])
def test_any_warm_start(start: float) -> None:
    """It changes the way, not where it ends."""
    warm = torch.tensor([start, 0.0], dtype=torch.float64)
    for largest in (True, False):
        scores = normal(2, 37, dtype=torch.float32)
        _check(scores, 11.5, 0.2, warm_start=warm, largest=largest)


# corners


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_corners_of_rows(dtype: torch.dtype) -> None:
    scores, k, t = corners(19, dtype)
    _check(scores, k, t)


@pytest.mark.parametrize(("n", "settings"), [(70, STREAM), (385, ONE_PROGRAM)])
def test_corners_of_streams(n: int, settings: launch.Streaming) -> None:
    """Bands too short for anything, and so long that they hold whole tails."""
    scores, k, t = corners(n, torch.float32)
    _check(scores, k, t, settings=settings)


def test_a_temperature_in_the_denormals_is_zero(tier: tuple[launch.Streaming | None, int]) -> None:
    settings, n = tier
    scores = normal(1, n, dtype=torch.float32)
    results = [
        _forward(scores, n / 3, torch.tensor(t, dtype=torch.float64), settings=settings)
        for t in (0.0, 1e-40)
    ]
    for zero, denormal in zip(*results, strict=True):
        assert torch.equal(zero, denormal)


def test_a_temperature_that_is_too_high(tier: tuple[launch.Streaming | None, int]) -> None:
    """Distances of many temperatures must exist: a row that is hotter has no answer."""
    settings, n = tier
    p, threshold = _forward(
        normal(1, n, dtype=torch.float32),
        n / 3,
        torch.tensor(1e37, dtype=torch.float64),
        settings=settings,
    )
    assert p.isnan().all()
    assert threshold[..., 0].isnan().all()


@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
def test_hard_masks(tier: tuple[launch.Streaming | None, int], largest: bool) -> None:
    """Exactly k ones, the earliest of tied scores first; NaN for budgets that have none."""
    settings, n = tier
    scores = (2 * normal(6, n, dtype=torch.float32)).round()
    scores[1, 3] = -inf
    scores[2, 5] = inf
    scores[4, 6] = nan
    mask = torch.ones(6, n, dtype=torch.bool)
    mask[3, ::3] = False
    k = torch.tensor([5.0, 0.0, n / 2 // 1, 7.0, 4.0, 2.5], dtype=torch.float64)
    t = torch.tensor([0.5, 1.0, 0.1, 0.0, 1.0, 1.0], dtype=torch.float64)
    p, _ = _forward(scores, k, t, mask=mask, largest=largest, hard=True, settings=settings)
    rows = (scores if largest else -scores).masked_fill(~mask, -inf)
    for row in range(4):
        order = rows[row].argsort(descending=True, stable=True)
        wanted = torch.zeros(n).index_fill(0, order[: int(k[row])], 1.0)
        assert torch.equal(p[row], wanted)
    assert p[4:].isnan().all()


def test_what_is_left_out_may_have_any_gradient(
    tier: tuple[launch.Streaming | None, int],
) -> None:
    settings, n = tier
    scores = normal(1, n, dtype=torch.float32)
    scores[0, 3], scores[0, 4] = -inf, inf
    mask = torch.ones(1, n, dtype=torch.bool)
    mask[0, 5] = False
    grad = normal(1, n, seed=1, dtype=torch.float32)
    grad[0, 3:6] = nan
    _check(scores, n / 3, 0.5, grad=grad, mask=mask, settings=settings)


def test_gradients_in_a_wide_gap(tier: tuple[launch.Streaming | None, int]) -> None:
    """Densities of 1e-35 are small, but not nothing: their mean gradient counts."""
    settings, _ = tier
    grad = torch.tensor([[1.0, 3.0]])
    _check(torch.tensor([[0.0, 1.0]]), 1.0, 1 / 160, grad=grad, settings=settings)


def test_gradient_for_the_temperature_beside_scores_near_the_largest_float(
    tier: tuple[launch.Streaming | None, int],
) -> None:
    """Where e^-|u| is nothing, u is no number to add up: a thousand of 1e36 are infinite."""
    settings, _ = tier
    scores = normal(2, 1000, seed=0, dtype=torch.float32)
    scores[0, 5] = 1e30
    scores[1, :700] = -1e31
    k, t = (torch.tensor(pair).double() for pair in ([1.0, 250.0], [1e-6, 1e-6]))
    _check(scores, k, t, settings=settings)


@pytest.mark.parametrize("t", [10.0, 1.0, 1e-2, 1e-3])
def test_several_groups_of_tiles(t: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums go on from group to group, and the rounds settle the row: no last resort."""
    states: list[float] = []
    settle = launch.settle_forward

    class Watched:
        arg_names = settle.arg_names

        def __getitem__(self, grid: Any) -> Any:
            def run(*arguments: Any, **named: Any) -> Any:
                state = arguments[self.arg_names.index("state")]
                states.append(float(state.flatten()[0]))
                return settle[grid](*arguments, **named)

            return run

    monkeypatch.setattr(launch, "settle_forward", Watched())
    scores = normal(1, 2700, seed=2, dtype=torch.float32)
    assert scores.shape[-1] > 2 * 16 * ONE_PROGRAM.tile  # three groups of sixteen tiles
    _check(scores, 2700 / 16, t, settings=ONE_PROGRAM)
    assert set(states) <= {2.0, 3.0}  # DONE or GATHERED
    scores[0, 2600] = nan
    p, _ = _forward(scores, 2700 / 16, t, settings=ONE_PROGRAM)
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
    _check(row, k, t)


@pytest.mark.parametrize(
    "change",
    [{"capacity": 32}, {"rounds": 1}, {"capacity": 32, "rounds": 1}, {"rounds": 3}],
    ids=str,
)
def test_too_small_a_band_and_too_few_rounds(change: dict[str, int]) -> None:
    """What the rounds leave open is solved from the whole row."""
    scores, k, t = _hard_cases(130)
    _check(scores, k, t, settings=STREAM._replace(**change))


def _shifted(samples: Tensor, by: float) -> None:
    trials = samples.view(-1, launch.SAMPLE_FIELDS.value)[:, -3:]
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
    sample_forward = launch.sample_forward

    class Lying:
        arg_names = sample_forward.arg_names

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def run(*args: Any, **kwargs: Any) -> None:
                sample_forward[grid](*args, **kwargs)
                LIES[lie](args[sample_forward.arg_names.index("samples")])

            return run

    monkeypatch.setattr(launch, "sample_forward", Lying())
    scores, k, t = _hard_cases(130)
    _check(scores, k, t, settings=STREAM)


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
    _check(scores, torch.tensor([9.5, 70.0, 300.0]).double(), 0.05, settings=STREAM)


@pytest.mark.parametrize(("k", "t"), [(0.3, 0.02), (2.5, 0.02), (2.5, 1.0), (4095.7, 0.02)])
def test_small_budgets_are_settled_in_the_rounds(
    k: float, t: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All scores of a short tail are one band, and the root may lie beyond the last of them."""
    states = settled_states(monkeypatch)
    settings = STREAM._replace(tile=512, singles=256, sample_chunks=64, capacity=1024)
    _check(normal(1, 4096, seed=3, dtype=torch.float32), k, t, settings=settings)
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
    p, _ = _forward(scores, k, 0.1, settings=settings)
    assert ((p.double().sum(-1) - k).abs() <= 2.5e-7 * k).all()
    assert [float(states[0][row * STATE_FIELDS.value]) for row in (0, 1)] == [DONE.value] * 2


def test_equal_scores_at_a_temperature_that_their_digits_do_not_resolve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Statistics at a root that is rounded by about t would not certify it: the band does."""
    states = settled_states(monkeypatch)
    settings = STREAM._replace(tile=512, singles=256, sample_chunks=64, capacity=1024)
    _check(torch.full((1, 4096), -3e4), 1e-3, 3e-4, settings=settings)
    assert float(states[0][0]) == GATHERED.value


def test_a_nan_that_no_sample_sees() -> None:
    scores = normal(6, 321, dtype=torch.float32)
    scores[torch.arange(6), torch.tensor([0, 61, 130, 201, 280, 320])] = nan
    t = torch.tensor([1e-3, 1e-3, 0.1, 0.1, 3.0, 3.0], dtype=torch.float64)
    p, threshold = _forward(scores, 100.0, t, settings=STREAM)
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
    _check(scores, k, t, settings=settings)


def test_many_scores_of_a_mask_value() -> None:
    """Rows of which a tenth is padding, with the values that people pad with."""
    scores = normal(3, 600, seed=8, dtype=torch.float32)
    for row, value in zip(scores, (-1e9, torch.finfo(torch.float32).min, -1e4), strict=True):
        row[::10] = value
    k = torch.full((3,), 60.5, dtype=torch.float64)
    for t in (1.0, 0.01):
        _check(scores, k, torch.full_like(k, t), settings=STREAM)


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
    _check(scores if largest else -scores, k, 1e-3, largest=largest, settings=settings)
    assert [float(state[0]) for state in states] == [LADDER.value, BAND.value, GATHERED.value]
    assert float(settled[0][0]) == GATHERED.value


def test_two_ladders_into_a_dense_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many scores so close together that the first ladder's rungs have too many between them."""
    states = round_states(monkeypatch)
    settings = STREAM._replace(
        tile=512, singles=64, sample_chunks=16, capacity=512, planned=64, rounds=4
    )
    scores = normal(1, 20_000, seed=4, dtype=torch.float32)
    scores = torch.where(scores > 1.5, 3.0 + 0.01 * scores, 0.1 * scores)
    _check(scores, 700.5, 1e-5, settings=settings)
    found = [float(state[0]) for state in states]
    assert found == [LADDER.value, LADDER.value, BAND.value, GATHERED.value]


def test_the_lists_of_a_band_fill_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all high scores are in the same lane of their tiles, as in the columns of a picture."""
    settled = settled_states(monkeypatch)
    scores = 0.1 * normal(1, 64 * 64, seed=2, dtype=torch.float32)
    scores[0, 5::64] = torch.linspace(3.0, 4.0, 64)
    _check(scores, 32.0, 1e-4, settings=STREAM._replace(capacity=512, planned=512))
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
    pair = torch.full((2,), nan, dtype=scores.dtype)
    launch.settle_forward[(1,)](
        *(None, None, None, None),  # nothing but the band may be read
        *(state, tickets, band, pair),
        *(*launch._pair(k), *launch._pair(t), len(scores), 1, len(tickets)),
        *(0, 0, 1, 0, 0, 1, 0, 0, 0, 0),
        LARGEST=True,
        BLOCK=max(held // 2, 64),
        CAPACITY=capacity,
        HELD=held,
        SPACING=1,
        OVERLAP=False,
        COMPUTE=tl.float64 if scores.dtype == torch.float64 else tl.float32,
    )
    return pair


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
