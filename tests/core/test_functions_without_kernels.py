"""Devices that have no kernels: what plain torch says is what the C++ kernel says."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import FULL_DTYPES, normal
from fast_lapsum import (
    _ops,
    hard_topk_mask,
    log_soft_topk,
    sample_topk,
    select_topk,
    soft_topk,
    threshold,
)
from fast_lapsum.backends.cpu import entry
from fast_lapsum.backends.torch import entry as plain
from fast_lapsum.backends.triton import loader


def _all(scores: Tensor, k: Any, t: Any, **more: Any) -> list[Tensor]:
    leaf = scores.clone().requires_grad_()
    outs = [
        soft_topk(leaf, k, t, **more),
        soft_topk(leaf, k, t, hard=True, **more),
        log_soft_topk(leaf, k, t, **more),
        threshold(leaf, k, t, **more),
    ]
    if not isinstance(k, Tensor):
        chosen = select_topk(leaf, k, t, **more)
        outs += [chosen.weights, chosen.indices]
    grads = []
    for out in outs:
        if out.requires_grad:
            fit = torch.where(out.detach().isfinite(), out, 0.0)
            grads += torch.autograd.grad(fit.square().sum(), leaf)
    outs += [hard_topk_mask(scores, k, **more)]
    start = torch.Generator().manual_seed(1)
    outs += [sample_topk(scores, k, t, generator=start, **more)]
    return [x.detach() for x in (*outs, *grads)]


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
@pytest.mark.parametrize("largest", [True, False])
def test_everything_is_what_the_kernel_says(
    dtype: torch.dtype, largest: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = normal(6, 40, dtype=dtype)
    scores[1, 3], scores[2, 5] = math.inf, -math.inf
    mask = normal(6, 40, seed=2) > -1
    k, t = torch.tensor([3.0, 5, 1, 0, 7, 2]).double(), torch.full((6,), 0.3).double()
    calls = [(5, 0.4, {}), (5, 0.0, {}), (k, t, {}), (4, t, {"mask": mask})]
    with_kernel = [_all(scores, *call[:2], largest=largest, **call[2]) for call in calls]
    monkeypatch.setattr(entry, "supports", lambda tensor: False)
    for call, wanted in zip(calls, with_kernel, strict=True):
        found = _all(scores, *call[:2], largest=largest, **call[2])
        for one, two in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("version", [None, "3.1.0"])
def test_a_gpu_without_its_kernels_is_told_of_once(
    version: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu: Any = SimpleNamespace(is_cuda=True)
    monkeypatch.setattr(loader, "find_spec", lambda name: version and object())
    monkeypatch.setattr(loader, "_version", lambda: version)
    for cached in (loader.entry, loader.hint_at_triton):
        cached.cache_clear()
    says = "Triton is not installed" if version is None else "Triton 3.1.0 is older than 3.4"
    with pytest.warns(UserWarning, match=f"{says}.*many times slower"):
        assert _ops.backend_for(on_gpu) is plain
    assert _ops.backend_for(on_gpu) is plain  # and not again: warnings are errors here
    monkeypatch.undo()
    for cached in (loader.entry, loader.hint_at_triton):
        cached.cache_clear()
