"""The one table of cases: distributions, temperatures, budgets, shapes, and how close is close.

Tolerances come from the data. Every backend may differ from the float64 reference by the rounding
of its output dtype, and by what a few units in the last place of u mean for p and its gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from fast_lapsum import reference

BACKENDS = ("auto", "two_exponential")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FULL_DTYPES = (torch.float32, torch.float64)
TEMPERATURES = (1e-6, 1e-3, 0.05, 1.0, 30.0, 1e3)

#: How many units in the last place of u a backend may be off.
U_ROUNDING = 8.0


@contextmanager
def num_threads(count: int) -> Iterator[None]:
    """Run with so many threads.

    On a busy machine the barriers of many small parallel regions cost a hundred times the work.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def generator(seed: int) -> Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64).to(dtype)


def _uniform(n: int, g: Generator) -> Tensor:
    return torch.rand(n, generator=g, dtype=torch.float64)


def _normal(n: int, g: Generator) -> Tensor:
    return torch.randn(n, generator=g, dtype=torch.float64)


def _student_t2(n: int, g: Generator) -> Tensor:
    return _normal(n, g) / torch.sqrt(-torch.log1p(-_uniform(n, g))).clamp(min=1e-9)


def _cauchy(n: int, g: Generator) -> Tensor:
    return torch.tan(math.pi * (_uniform(n, g) - 0.5))


def _one_outlier(n: int, g: Generator) -> Tensor:
    scores = _normal(n, g)
    scores[n // 2] = 1e30
    return scores


def _periodic(n: int, g: Generator) -> Tensor:
    """Values that a sample with a fixed stride of a power of two would see only one of."""
    return torch.sin(2 * math.pi * torch.arange(n, dtype=torch.float64) / 64) + 1e-3 * _normal(n, g)


#: One row of n scores in float64.
DISTRIBUTIONS: dict[str, Callable[[int, Generator], Tensor]] = {
    "normal": _normal,
    "student_t2": _student_t2,
    "log_normal": lambda n, g: torch.exp(_normal(n, g)),
    "cauchy": _cauchy,
    "three_clusters": lambda n, g: 10 * (3 * _uniform(n, g)).floor() + 0.1 * _normal(n, g),
    "sixteen_levels": lambda n, g: (16 * _uniform(n, g)).floor() / 10,
    "constant": lambda n, g: torch.full((n,), 0.1, dtype=torch.float64),
    "one_outlier": _one_outlier,
    "far_bimodal": lambda n, g: 1e6 * torch.sign(_uniform(n, g) - 0.5) + _normal(n, g),
    "huge_offset": lambda n, g: 1e8 + 100 * _normal(n, g),
    "sorted": lambda n, g: _normal(n, g).sort().values,
    "periodic": _periodic,
}

#: Shape of scores and the dimension to select along.
SHAPES = (
    ((7,), -1),
    ((1,), 0),
    ((5, 33), 1),
    ((33, 5), 0),
    ((2, 3, 65), -1),
    ((2, 17, 3), 1),
    ((3, 1030), -1),
)

#: The same values under other strides.
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.contiguous(),
    "transposed": lambda x: x.mT.contiguous().mT if x.dim() > 1 else x.contiguous(),
    "expanded": lambda x: x[:1].expand(x.shape) if x.dim() > 1 else x.contiguous(),
    "stepped": lambda x: x.repeat_interleave(3, -1)[..., 1::3],
    "offset": lambda x: torch.cat((x[..., :1], x, x[..., :1]), -1)[..., 1:-1],
}


def budgets(n: int) -> list[float]:
    """Whole, fractional and extreme budgets of a row of n scores, the corners left out."""
    candidates = (1e-6, 0.3, 1.0, n / 16, float(n // 2), n / 3, n - 1.0, n - 0.3, n - 1e-6)
    return sorted({k for k in candidates if 0 < k < n})


def corners(n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Rows with what can be odd in them, their budgets and temperatures."""
    plain = normal(n, seed=2, dtype=dtype)
    some = torch.arange(n) % 5 == 1
    count = int(some.sum())
    cases: list[tuple[Tensor, float, float]] = [
        (plain, k, t) for k in (0.0, float(n), n / 2, 1.0) for t in (0.0, 1.0)
    ]
    cases += [(plain, 0.0, 1e-6), (plain, float(n), 1e-6)]
    cases += [(plain, k, 1.0) for k in (-1.0, n + 1.0, math.nan, math.inf, -math.inf)]
    cases += [(plain, n / 2, t) for t in (-1.0, math.nan, math.inf, -math.inf)]
    cases += [(plain.index_fill(0, torch.tensor([n // 2]), math.nan), n / 2, t) for t in (0.0, 1.0)]
    for t in (0.0, 0.5):
        with_inf, without = plain.masked_fill(some, math.inf), plain.masked_fill(some, -math.inf)
        cases += [(with_inf, k, t) for k in (0.0, 1.0, count, count + 1.5, float(n))]
        cases += [(without, k, t) for k in (0.0, 2.5, n - count, n - count + 1.0)]
        cases += [(torch.full_like(plain, value), n / 3, t) for value in (math.inf, 0.0, -math.inf)]
        cases += [(torch.full_like(plain, -math.inf), 0.0, t)]
        cases += [((2 * plain).round(), n / 3, t)]  # ties share
        cases += [(with_inf.masked_fill(torch.arange(n) % 7 == 2, -math.inf), count + 2.5, t)]
        cases += [(with_inf.index_fill(0, torch.tensor([0]), math.nan), n / 2, t)]
    rows, k, temperatures = zip(*cases, strict=True)
    k, temperatures = (torch.tensor(x, dtype=torch.float64) for x in (k, temperatures))
    return torch.stack(rows), k, temperatures


def ulp(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Unit in the last place of numbers of ``dtype`` at the size of ``value``, in float64."""
    info = torch.finfo(dtype)
    exponent = torch.frexp(value.detach().double()).exponent - 1
    unit = info.eps * torch.exp2(exponent.double())
    return torch.where(value == 0, 0.0, unit.clamp(min=info.tiny * info.eps))


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def budget_tolerance(p: Tensor, k: Tensor) -> Tensor:
    """How far sum(p) over the last dimension may be from k: the issue's bar."""
    rounding = ulp(p, p.dtype).sum(-1) / 2
    if p.dtype == torch.float64:
        return 1e-12 * k.double() + rounding
    return 32 * ulp(k, torch.float32) + rounding


def assert_budget(p: Tensor, k: Tensor | float) -> None:
    """sum(p) = k along the last dimension, every p inside [0, 1]."""
    k = torch.as_tensor(k, dtype=torch.float64).expand(p.shape[:-1])
    assert not p.isnan().any()
    assert ((p >= 0) & (p <= 1)).all()
    error = (p.double().sum(-1) - k).abs()
    excess = error - budget_tolerance(p, k)
    assert (excess <= 0).all(), (
        f"budget missed by {error.max():.3g} (worst excess over the tolerance {excess.max():.3g} "
        f"at k={k.reshape(-1)[excess.argmax()]})"
    )


Solve = Callable[[Tensor, float, float], reference.Threshold]


def remembered(solve: Solve) -> Solve:
    """The reference's threshold of a row, which every backend, dtype and function asks for."""
    known: dict[tuple[object, ...], reference.Threshold] = {}

    def solve_once(scores: Tensor, k: float, temperature: float) -> reference.Threshold:
        row = scores.detach().cpu()
        number = row.view(torch.uint16) if row.dtype == torch.bfloat16 else row
        digest = blake2b(number.contiguous().numpy().tobytes(), digest_size=16).digest()
        key = (row.dtype, tuple(row.shape), digest, float(k), float(temperature))
        found = known.get(key)
        if found is None:
            found = known[key] = solve(scores, k, temperature)
        return found

    return solve_once


class Expected(NamedTuple):
    """What the reference says of rows [rows, n], and how far a backend may be from it."""

    mask: Tensor
    d_scores: Tensor
    d_budget: Tensor
    d_temperature: Tensor
    mask_tolerance: Tensor
    d_scores_tolerance: Tensor
    d_budget_tolerance: Tensor
    d_temperature_tolerance: Tensor


def expected(
    scores: Tensor,
    k: Tensor | float,
    temperature: Tensor | float,
    grad: Tensor,
    out_dtype: torch.dtype | None = None,
) -> Expected:
    """The reference for finite or infinite rows [..., n]; k and temperature number or [...]."""
    out_dtype = out_dtype or scores.dtype
    rows, grads = scores.reshape(-1, scores.shape[-1]), grad.reshape(-1, scores.shape[-1])
    outer = scores.shape[:-1]
    ks = torch.as_tensor(k, dtype=torch.float64).expand(outer).reshape(-1).tolist()
    ts = torch.as_tensor(temperature, dtype=torch.float64).expand(outer).reshape(-1).tolist()
    with num_threads(1):
        collected = [
            _expected_row(row, budget, t, g, scores.dtype, out_dtype)
            for row, budget, t, g in zip(rows, ks, ts, grads, strict=True)
        ]
    stacked = [torch.stack(column) for column in zip(*collected, strict=True)]
    return Expected(*(x.reshape((*outer, *x.shape[1:])) for x in stacked))


def _expected_row(
    scores: Tensor,
    k: float,
    t: float,
    grad: Tensor,
    dtype: torch.dtype,
    out_dtype: torch.dtype,
) -> Expected:
    threshold = reference.solve_row(scores, k, t)
    mask = reference.mask_row(scores, threshold, t)
    d_scores, d_budget, d_temperature = reference.vjp_row(grad, scores, threshold, t)
    info = torch.finfo(compute_dtype(dtype))
    tiny, zero = info.tiny, torch.zeros((), dtype=torch.float64, device=scores.device)
    rounding = ulp(mask, out_dtype) + tiny
    per_row = (zero + d_budget, zero + d_temperature)
    if threshold.is_hard or t == 0:
        return Expected(mask, d_scores, *per_row, rounding, torch.zeros_like(mask), zero, zero)
    u = reference.distances(scores, threshold, t)
    live = u.isfinite()
    u = torch.where(live, u, 0.0)
    phi = torch.where(live, torch.exp(-u.abs()) / 2, 0.0)
    q = torch.softmax(torch.where(live, -u.abs(), -math.inf), 0).nan_to_num(nan=0.0)
    g = torch.where(live, grad.double(), 0.0).abs()
    # The pair (hi, lo) that holds b adds nothing: lo is rounded by eps / 2 of itself, and no score
    # is nearer to b than |lo|, because hi is the number next to b and scores are numbers, too.
    u_error = U_ROUNDING * info.eps * (1 + u.abs())
    mean_g, mean_g_error = (q * g).sum(), (q * g * u_error).sum()
    # q is a ratio: a common relative error cancels, the spread of the errors does not.
    q_error = (q * u_error).sum()
    mean_g_error = mean_g_error + mean_g * q_error
    spread = (u - (q * u).sum()).abs() + 1
    d_scores_error = phi / t * ((g + mean_g) * u_error + mean_g_error)
    d_temperature_error = 2 * (g * phi * spread * (u_error + q_error)).sum() / t
    d_temperature_error = d_temperature_error + (g * phi).sum() / t * (q * u_error * spread).sum()
    return Expected(
        mask,
        d_scores,
        *per_row,
        rounding + phi * u_error + q * (phi * u_error).sum(),
        # What is smaller than the smallest normal number may be 0, before it is divided by t.
        ulp(d_scores, dtype) + d_scores_error + tiny / t * (g + mean_g) + torch.finfo(dtype).tiny,
        mean_g_error + info.eps * mean_g + tiny,
        d_temperature_error + tiny / t * (g * spread).sum(),
    )


def assert_near(actual: Tensor, wanted: Tensor, tolerance: Tensor, what: str) -> None:
    """Equal within the tolerance; NaN only where NaN is wanted."""
    actual = actual.detach().double()
    assert actual.shape == wanted.shape, f"{what}: shape {actual.shape}, wanted {wanted.shape}"
    assert torch.equal(actual.isnan(), wanted.isnan()), f"{what}: NaN in the wrong places"
    excess = ((actual - wanted).abs() - tolerance).nan_to_num(nan=0.0)
    if excess.numel() and excess.max() > 0:
        worst = excess.argmax()
        raise AssertionError(
            f"{what}: got {actual.reshape(-1)[worst]:.17g}, wanted "
            f"{wanted.reshape(-1)[worst]:.17g}, off by "
            f"{(actual - wanted).reshape(-1)[worst]:.3g} with tolerance "
            f"{tolerance.expand_as(actual).reshape(-1)[worst]:.3g}; {(excess > 0).sum()} of "
            f"{excess.numel()} off"
        )


class Batch(NamedTuple):
    """Independent cases that share n: scores [rows, n] in float64, the rest [rows]."""

    scores: Tensor
    k: Tensor
    temperature: Tensor
    distributions: list[str]


def torture(seed: int, cases: int, rows: int = 50, largest_n: int = 65_536) -> Iterator[Batch]:
    """Cases over every distribution, n log-uniform in 1..largest_n, t log-uniform in 1e-6..1e3.

    Budgets are whole, fractional or extreme (next to 0 or n, and 0 and n themselves).
    """
    g = generator(seed)

    def uniform() -> float:
        return float(torch.rand((), generator=g, dtype=torch.float64))

    names = list(DISTRIBUTIONS)
    done = 0
    while done < cases:
        n = min(int(math.exp(uniform() * math.log(largest_n + 1))), largest_n)
        count = min(rows, cases - done)
        chosen = [names[(done + row) % len(names)] for row in range(count)]
        extreme = (0.0, 1e-6, 1e-3, 0.5, n - 0.5, n - 1e-3, n - 1e-6, float(n))
        ks = []
        for _ in range(count):
            kind = uniform()
            if kind < 0.35:
                ks.append(float(min(int(math.exp(uniform() * math.log(n + 1))), n)))
            elif kind < 0.7:
                ks.append(uniform() * n)
            else:
                ks.append(extreme[int(uniform() * len(extreme))])
        k = torch.tensor(ks, dtype=torch.float64).clamp(0, n)
        temperature = 10 ** (9 * torch.rand(count, generator=g, dtype=torch.float64) - 6)
        scores = torch.stack([DISTRIBUTIONS[name](n, g) for name in chosen])
        yield Batch(scores, k, temperature, chosen)
        done += count


def gradients(p: Tensor, *leaves: Tensor, seed: int = 0) -> tuple[Tensor, ...]:
    """Gradients of a random weighted sum of p."""
    return torch.autograd.grad(p, leaves, normal(*p.shape, seed=seed, dtype=p.dtype))


def leaf_of(*values: object, dtype: torch.dtype = torch.float64) -> Tensor:
    """A tensor of these values that wants a gradient."""
    data = values[0] if len(values) == 1 else list(values)
    return torch.tensor(data, dtype=dtype, requires_grad=True)


def same(actual: Tensor, wanted: object) -> None:
    """Every element equal, NaN too."""
    wanted = torch.as_tensor(wanted, dtype=actual.dtype)
    torch.testing.assert_close(actual.detach(), wanted, rtol=0, atol=0, equal_nan=True)
