"""The layer on a GPU: its numbers are known there without waiting for the device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch

from fast_lapsum import soft_topk
from fast_lapsum.nn import SoftTopK


@pytest.mark.parametrize("kind", ["fixed", "learned", "clamped", "hard"])
def test_a_layer_that_was_moved_waits_for_nothing(
    kind: str, no_sync: Callable[[], AbstractContextManager[None]]
) -> None:
    given = {
        "fixed": {},
        "learned": {"num_scores": 1000, "learn_k": True, "learn_temperature": True},
        "clamped": {"num_scores": 1000, "learn_k": True, "clamp": True},
        "hard": {"hard": True},
    }[kind]
    layer = SoftTopK(50, 0.1, **given).cuda()  # type: ignore[arg-type]
    scores = torch.randn(4, 1000, device="cuda", requires_grad=True)
    layer(scores).sum().backward()  # compiles
    with no_sync():
        out = layer(scores)
        out.square().sum().backward()
        layer.k, layer.temperature = 60, 0.2
        again = layer(scores)
    torch.testing.assert_close(out, soft_topk(scores, 50, 0.1, hard=kind == "hard"))
    torch.testing.assert_close(again, soft_topk(scores, 60, 0.2, hard=kind == "hard"))
    assert all(value.is_cuda for value in layer.state_dict().values())


def test_a_layer_on_the_host_takes_scores_of_the_device() -> None:
    scores = torch.randn(4, 1000, device="cuda")
    wanted = soft_topk(scores, 50, 0.1)
    torch.testing.assert_close(SoftTopK(50, 0.1)(scores), wanted)
    learned = SoftTopK(50, 0.1, num_scores=1000, learn_k=True)
    torch.testing.assert_close(learned(scores), wanted)


def test_a_state_dict_of_the_device_loads_on_the_host() -> None:
    state = SoftTopK(50, 0.1).cuda().state_dict()
    layer = SoftTopK(3)
    layer.load_state_dict(state)
    assert (layer.k, layer.temperature) == (50.0, 0.1)
