"""The kernel as a compiler makes it that has one instruction set only and vectorises nothing.

That is what GCC before 12 and every Clang get, and what an old processor runs. Sums have a fixed
shape, so such a build gives the same bits as the installed one.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cases import FULL_DTYPES, budget_tolerance, normal, num_threads
from fast_lapsum import log_soft_topk, sample_topk, select_topk, soft_topk, threshold
from fast_lapsum.backends.cpu import kernel, loader
from hunting.check import judge, solve
from hunting.plan import Size, specs
from hunting.rows import make

CPU = torch.device("cpu")
COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler"),
    pytest.mark.skipif(loader.library() is None, reason="the C++ kernel is not there"),
]


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build of the kernel without vectors and without clones for other instruction sets."""
    assert COMPILER is not None
    out = tmp_path_factory.mktemp("baseline") / "_lapsum.so"
    source = Path(loader.__file__).with_name("lapsum.cpp")
    flags = ("-std=c++17", "-O1", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")
    subprocess.run(
        [COMPILER, *flags, "-DLAPSUM_NO_CLONES", "-shared", "-fPIC", str(source), "-o", str(out)],
        check=True,
        capture_output=True,
    )
    return out


@pytest.fixture
def in_both(baseline: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., object]]:
    """Runs something with the installed kernel and with the baseline's."""
    installed = kernel._library
    monkeypatch.setattr(loader, "_PATH", baseline)
    loader._load.cache_clear()
    plain = loader.library()
    assert plain is not None

    def run(call: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        monkeypatch.setattr(kernel, "_library", installed)
        first = call()
        monkeypatch.setattr(kernel, "_library", plain)
        return first, call()

    with num_threads(1):
        yield run
    loader._load.cache_clear()


InBoth = Callable[[Callable[[], Tensor]], tuple[Tensor, Tensor]]


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
def test_equal_scores_meet_their_budget(in_both: InBoth, dtype: torch.dtype) -> None:
    """Equal addends do not average out: a float sum of 512 of them was off by 7.6e-6 of k."""
    for n in (100, 512, 1000, 1023, 5000):
        scores = torch.zeros(n, dtype=dtype)
        for k in (0.37 * n, 503.5 / 1023 * n, 495.5 / 1023 * n, 0.9 * n):
            wanted = torch.tensor(k, dtype=torch.float64)
            for p in in_both(lambda scores=scores, k=k: soft_topk(scores, k, 1.0)):
                # 16 eps of phi is what the sum may lose
                allowed = 16 * torch.finfo(dtype).eps * torch.minimum(p, 1 - p).double().sum()
                error = (p.double().sum() - wanted).abs()
                assert error <= torch.minimum(allowed, budget_tolerance(p, wanted)), (n, k)


def test_a_slice_of_the_hunt_finds_nothing_and_bits_are_the_same(in_both: InBoth) -> None:
    for spec in specs(3, Size(1500, 0, 1 << 14, ("float32", "float64"))):
        batch = make(spec, CPU)
        installed, plain = in_both(lambda batch=batch: solve(batch))
        assert torch.equal(installed.nan_to_num(nan=-1.0), plain.nan_to_num(nan=-1.0)), spec
        assert not judge(batch, plain)[0].any(), spec


@pytest.mark.parametrize("n", [50, 1000, 20_001])
def test_gradients_have_the_same_bits(in_both: InBoth, n: int) -> None:
    scores, weights = normal(2, n, dtype=torch.float32), normal(2, n, seed=1, dtype=torch.float32)

    def gradients() -> Tensor:
        leaf = scores.clone().requires_grad_()
        t = torch.tensor([0.3, 2.0], dtype=torch.float64, requires_grad=True)
        k = torch.tensor([n / 9, n / 2], dtype=torch.float64, requires_grad=True)
        found = torch.autograd.grad((soft_topk(leaf, k, t) * weights).sum(), (leaf, k, t))
        return torch.cat([x.double().flatten() for x in found])

    installed, plain = in_both(gradients)
    assert torch.equal(installed, plain)


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@pytest.mark.parametrize("n", [50, 1000, 20_001])
def test_functions_have_the_same_bits(in_both: InBoth, dtype: torch.dtype, n: int) -> None:
    scores = normal(2, n, dtype=dtype)
    scores[1] = (4 * scores[1]).round()
    wide = torch.cat((scores[:1, : n // 3] + 1e4, scores[:1, n // 3 :]), -1)  # phi underflows

    def everything() -> Tensor:
        found = []
        for given in (scores, wide):
            leaf = given.clone().requires_grad_()
            t = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
            k = torch.tensor(float(n // 3), dtype=torch.float64, requires_grad=True)
            chosen = select_topk(leaf, n // 3, t)
            for out in (log_soft_topk(leaf, k, t), threshold(leaf, k, t), chosen.weights):
                leaves = (leaf, t) if out is chosen.weights else (leaf, k, t)
                found += [out, *torch.autograd.grad(out.sum(), leaves)]
            g = torch.Generator().manual_seed(0)
            found += [chosen.indices, sample_topk(given, n // 3, 0.3, generator=g)]
        return torch.cat([x.detach().double().flatten() for x in found])

    installed, plain = in_both(everything)
    assert torch.equal(installed, plain)
