"""Layers over a process group: what one process makes of the whole batch; and what DDP averages."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import group_layers
import ranks as processes
from fast_lapsum.nn import BatchTopK, BudgetGate, SoftTopK

pytestmark = processes.NEEDS_GLOO


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    """What each of three processes found."""
    return processes.run(group_layers.main, 3)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", group_layers.LAYERS)
def test_a_batch_over_ranks_is_one_batch(
    name: str, masked: bool, found: list[dict[str, Any]]
) -> None:
    """Gates, gradients and thresholds; ranks have other numbers of rows, and none at times."""
    for one in found:
        worst = one[name, masked]["worst"]
        assert max(worst["gate"], worst["gradient"]) < 1e-12, worst
        assert max(worst["threshold"], worst["calibrated"]) < 1e-6, worst
    first = found[0][name, masked]["state"]
    assert int(first["running.num_batches"]) == 4  # one of five is empty
    for one in found[1:]:
        for key, value in one[name, masked]["state"].items():
            assert torch.equal(value, first[key]), key


def test_gradients_under_ddp_are_those_of_the_mean_loss(found: list[dict[str, Any]]) -> None:
    for one in found:
        assert one["ddp"].pop("seen") > 1e-3
        assert max(one["ddp"].values()) < 1e-12


def test_ddp_leaves_k_and_temperature_the_gradient_of_the_sum(found: list[dict[str, Any]]) -> None:
    """So many times that of the mean as there are ranks, unless hooks divide it."""
    for one in found:
        plain, divided = one["averaged"]
        assert plain == pytest.approx({"scale": 1, "k": 3, "temperature": 3})
        assert divided == pytest.approx({"scale": 1, "k": 1, "temperature": 1})


def test_collectives(found: list[dict[str, Any]]) -> None:
    """Few in training, and none at inference."""
    for one in found:
        for name in group_layers.LAYERS:
            assert 1 <= one["collectives"][name] <= 10
            assert one["collectives"][f"{name}, evaluated"] == 0
        assert one["collectives"] == found[0]["collectives"]


def test_a_group_is_kept(found: list[dict[str, Any]]) -> None:
    for one in found:
        said = one["kept"]
        assert said["copied"]
        assert "hard=True, process_group='0'" in said["shown"]
        assert said["no group"].startswith("process_group must be a torch.distributed.ProcessGroup")
        assert said["too many"].startswith("k must lie in [0, 12] for 12 scores per row")


@pytest.mark.slow
def test_a_graph_is_whole() -> None:
    assert max(processes.run(group_layers.compiled, 2)) < 1e-12


@pytest.mark.parametrize("layer", [BatchTopK, BudgetGate, SoftTopK])
def test_what_is_no_group_is_named_as_layers_call_it(layer: Any) -> None:
    with pytest.raises(TypeError, match=r"^process_group must be a torch\.distributed.*got int"):
        layer(4, process_group=0)


def test_a_layer_can_be_shown_after_its_group_has_ended() -> None:
    for shown in processes.run(group_layers.after_its_group, 2):
        assert all("process_group=" in one for one in shown)
