"""The inputs of tab:robustness, and three that a sampler with a fixed stride finds hard."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

#: Scores of one trial, float32 [n], from a generator on the device that they are wanted on.
Distribution = Callable[[int, torch.Generator], Tensor]

PERIOD = 64
#: Of a periodic input, in temperatures: enough for the threshold to lie among the scores.
AMPLITUDE = 8.0
#: Noise on it: without any, only as many levels as the period has would be left.
PERIODIC_NOISE = 0.05
CLUSTERS = (-4.0, 0.0, 4.0)
CLUSTER_DEVIATION = 0.3
LEVELS = 16


def paper_stride(n: int) -> int:
    """The stride of Algorithm 1's systematic sample of K = ceil(n^(2/3)) scores."""
    sample_size: int = math.ceil(n ** (2 / 3))
    return n // sample_size


def _normal(n: int, generator: torch.Generator) -> Tensor:
    return torch.randn(n, generator=generator, device=generator.device)


def _student_t2(n: int, generator: torch.Generator) -> Tensor:
    """A normal variable over the root of an exponential one: two degrees of freedom."""
    scale = torch.empty(n, device=generator.device).exponential_(generator=generator)
    return _normal(n, generator) / scale.sqrt_()


def _log_normal(n: int, generator: torch.Generator) -> Tensor:
    return _normal(n, generator).exp_()


def _cauchy(n: int, generator: torch.Generator) -> Tensor:
    return torch.empty(n, device=generator.device).cauchy_(generator=generator)


def _three_clusters(n: int, generator: torch.Generator) -> Tensor:
    centres = torch.tensor(CLUSTERS, device=generator.device)
    cluster = torch.randint(len(CLUSTERS), (n,), generator=generator, device=generator.device)
    return centres[cluster] + CLUSTER_DEVIATION * _normal(n, generator)


def _levels(n: int, generator: torch.Generator) -> Tensor:
    level = torch.randint(LEVELS, (n,), generator=generator, device=generator.device)
    return level.to(torch.float32)


def _sorted(n: int, generator: torch.Generator) -> Tensor:
    """Ascending normal scores, without a sort: order statistics from exponential spacings."""
    spacings = torch.empty(n + 1, device=generator.device, dtype=torch.float64)
    sums = spacings.exponential_(generator=generator).cumsum(0)
    scores: Tensor = torch.special.ndtri(sums[:-1] / sums[-1])
    return scores.to(torch.float32)


def _periodic(n: int, generator: torch.Generator) -> Tensor:
    return _wave(n, PERIOD, generator)


def _periodic_with_the_stride(n: int, generator: torch.Generator) -> Tensor:
    """Every score of a strided sample has the same phase."""
    return _wave(n, paper_stride(n), generator)


def _wave(n: int, period: int, generator: torch.Generator) -> Tensor:
    """A sine with a random phase, so that trials differ, and a little noise."""
    device = generator.device
    phase = torch.rand((), generator=generator, device=device)
    one_period = torch.sin(2 * math.pi * (torch.arange(period, device=device) / period + phase))
    wave = AMPLITUDE * one_period.repeat(-(-n // period))[:n]
    return wave + PERIODIC_NOISE * _normal(n, generator)


#: By name; the first six are the paper's.
DISTRIBUTIONS: dict[str, Distribution] = {
    "gaussian": _normal,
    "student-t2": _student_t2,
    "log-normal": _log_normal,
    "cauchy": _cauchy,
    "3-cluster": _three_clusters,
    "16-level": _levels,
    "sorted": _sorted,
    "periodic": _periodic,
    "periodic-stride": _periodic_with_the_stride,
}
