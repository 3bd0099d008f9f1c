"""Tests on a CUDA device, through the public functions; `make test-gpu` runs them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch


def pytest_configure(config: pytest.Config) -> None:
    """Without a device every test would only be skipped, and look well."""
    if not torch.cuda.is_available():
        raise pytest.UsageError(
            f"tests/gpu needs a CUDA device, and torch {torch.__version__} sees none"
        )
    # torch 2.11 takes its own deprecated way when it loads its compiler.
    told = "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
    config.addinivalue_line("filterwarnings", told)
    # It also looks at .grad of what flex_attention's own function reads, which is no leaf.
    told = "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
    config.addinivalue_line("filterwarnings", told)
    # Its compiler says of every product of float32 matrices that rounding would be faster.
    told = "ignore:TensorFloat32 tensor cores for float32 matrix multiplication:UserWarning"
    config.addinivalue_line("filterwarnings", told)
    # And of a softmax of very short rows that it takes another way; its text begins a line later.
    told = r"ignore:\s*Online softmax is disabled on the fly:UserWarning"
    config.addinivalue_line("filterwarnings", told)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    """The largest tests take much of the device: what one leaves behind, the next may need."""
    yield
    if torch.cuda.memory_reserved() > 8 << 30:
        torch.cuda.empty_cache()


@contextmanager
def _no_sync() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the mode a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def no_sync() -> Callable[[], AbstractContextManager[None]]:
    """Within it, whatever waits for the device is an error."""
    return _no_sync
