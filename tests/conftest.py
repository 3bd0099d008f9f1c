"""What every test shares: the backends under test, and hypothesis without surprises in CI."""

from __future__ import annotations

import gc
import importlib
import signal
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor

from cases import BACKENDS, num_threads, remembered
from fast_lapsum import log_soft_topk, reference, soft_topk, threshold
from fast_lapsum.backends.cpu import entry

# torch loads this on the first use of forward mode and warns about itself while it does.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    importlib.import_module("torch._decomp.decompositions_for_jvp")

reference.solve_row = remembered(reference.solve_row)

settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # `backend` is set up once
)
settings.load_profile("repeatable")

# A shell makes what it runs in the background deaf to interruptions, and its children, too: tests
# interrupt theirs.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What is there by now stays to the end, and the garbage collector need not look at it again.

    It looks less often, too: interpreted kernels make objects by the thousand.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The ``solver=`` of the call: the fastest backend here, and plain torch.

    Plain torch means all of it: without the compiled kernel, backward included, which is what a
    machine without a compiler runs.
    """
    if request.param != "auto":
        monkeypatch.setattr(entry, "supports", lambda tensor: False)
    return str(request.param)


@pytest.fixture(params=[soft_topk, log_soft_topk, threshold], ids=lambda f: f.__name__)
def function(request: pytest.FixtureRequest) -> Callable[..., Tensor]:
    """The differentiable functions, which take the same arguments."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """One thread, unless a test asks for more: ``parametrize("threads", [2], indirect=True)``."""
    wanted = int(getattr(request, "param", 1))
    with num_threads(wanted):
        yield wanted


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """No graphs from other tests. The compiler warns about itself: it instantiates Functions."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch._dynamo.reset()
