"""Compiled layers with the kernels of gated activations, interpreted, against eager ones without.

In a file of its own: memory that is poisoned is not what a compiler traces with.
"""

from __future__ import annotations

import copy
import os
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("`make test` interprets the kernels in another process", allow_module_level=True)

from cases import normal
from fast_lapsum import _activation_ops
from fast_lapsum.backends.triton import activation_entry
from fast_lapsum.backends.triton.config import LongBackwardPlan, SharedPlan
from fast_lapsum.nn import BatchTopK, BudgetGate, TopKActivation, activated
from interpreting import in_chunks


def _chunks(n: int, rows: int, itemsize: int, width: int, *rest: Any) -> SharedPlan:
    return in_chunks(n, 512, width=width)._replace(piece=64 * width)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("longest", [10**9, 0], ids=["gate kept", "boundary kept"])
@pytest.mark.parametrize(
    "plain",
    [BatchTopK(2.5), BatchTopK(2.5, 0.5, hard=False), TopKActivation(3), BatchTopK(3, 0.0)],
    ids=["batch", "soft batch", "rows", "cold batch"],
)
def test_compiled_layers_take_the_kernels(
    plain: BudgetGate, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one graph, with what an eager layer has without them: thresholds, too."""
    calls: list[str] = []

    def noted(name: str) -> None:
        function = getattr(activation_entry, name)

        def call(*given: Any) -> Any:
            calls.append(name)
            return function(*given)

        monkeypatch.setattr(activation_entry, name, call)

    for name in ("activate", "gated_forward", "gated_backward"):
        noted(name)
    monkeypatch.setattr(activation_entry, "BLOCK", 64)
    monkeypatch.setattr(activation_entry, "MOST_PROGRAMS", 3)
    monkeypatch.setattr(activation_entry, "LONGEST_WITH_GATE", longest)
    if not longest:  # rows of any length are solved in chunks
        plan = LongBackwardPlan(block=32, warps=1, sum_programs=3, write_programs=2)
        monkeypatch.setattr(activation_entry, "LONG_BACKWARD", plan)
        monkeypatch.setattr(activation_entry, "longest_block", lambda itemsize: 0)
        monkeypatch.setattr(activation_entry, "_plan", _chunks)
        monkeypatch.setattr(activation_entry, "LONGEST_BLOCK", 0)
        activation_entry._solving.cache_clear()
    monkeypatch.setattr(_activation_ops, "kernels_for", lambda scores: activation_entry)
    monkeypatch.setattr(activated, "_DEVICES_WITH_KERNELS", ("cpu",))
    eager, layer, exact = (copy.deepcopy(plain) for _ in range(3))
    exact.double()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    is_one = eager.hard and eager.budget == "batch" and not longest
    for seed in range(3):
        scores = normal(6, 40, seed=seed).float()
        leaf, wide = scores.clone().requires_grad_(), scores.double().requires_grad_()
        out, upstream = compiled(leaf), 1 + scores
        if eager.hard:
            assert torch.equal(out, eager(scores))
        else:
            torch.testing.assert_close(out, eager(scores))
        (gradient,) = torch.autograd.grad(out, leaf, upstream)
        assert calls == ["gated_forward" if is_one else "activate", "gated_backward"]
        calls.clear()
        (wanted,) = torch.autograd.grad(exact(wide), wide, upstream.double())
        assert (gradient.double() - wanted).abs().max() <= 5e-7 * (1 + wanted.abs().max())
        for name, value in eager.state_dict().items():
            one = layer.state_dict()[name]
            torch.testing.assert_close(one, value, rtol=1e-5, atol=1e-7, equal_nan=True, msg=name)
