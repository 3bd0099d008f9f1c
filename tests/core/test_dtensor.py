"""DTensors: what a call gives is what it gives for the whole tensor, placed like the scores."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed.tensor import Replicate, Shard

import dtensor_cases
import ranks as processes

pytestmark = processes.NEEDS_GLOO


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    """What each of four processes found."""
    return processes.run(dtensor_cases.main, 4)


def _differences(said: dict[str, Any]) -> list[float]:
    return [value for value in said.values() if isinstance(value, float)]


def test_results_and_gradients_are_those_of_whole_tensors(found: list[dict[str, Any]]) -> None:
    wrong = []
    for one in found:
        for name, (case, function, said) in one["cases"].items():
            of_result, of_gradient = said["placed"]
            if max(_differences(said)) > 1e-12:
                wrong.append((name, said))
            if of_gradient != case.placements or said.get("k placed") is False:
                wrong.append((name, said))
            if function != "threshold" and of_result != case.placements:
                wrong.append((name, of_result))
    assert not wrong, wrong[:5]


def test_options(found: list[dict[str, Any]]) -> None:
    for one in found:
        for name, said in one["options"].items():
            assert max(_differences(said)) < 1e-12, (name, said)
        for name in ("clamped", "with a boundary"):
            assert one["options"][name]["threshold placed"] == (Shard(0), Replicate())


def test_thresholds_are_whole_along_the_rows(found: list[dict[str, Any]]) -> None:
    seen = 0
    for name, (case, function, said) in found[0]["cases"].items():
        if function == "threshold" and case.dim == -1:
            rows = len(case.shape) - 1
            wanted = tuple(Replicate() if one.is_shard(rows) else one for one in case.placements)
            assert said["placed"][0] == wanted, name
            seen += 1
    assert seen > 3


SAID = {
    "partial": "scores must be sharded or replicated, got Partial(sum) along dimension 0 of the "
    "mesh: of a sum that is not yet taken nothing can be selected; redistribute it",
    "mesh": "k must be on the mesh of scores",
    "shape": "k must broadcast to the shape of scores without dim, (6,), got shape (5,)",
    "mask": "mask must broadcast to the shape of scores, (6, 11), got shape (5,)",
    "group": "group must be left out for scores that are a DTensor",
    "lengths": "lengths must be left out for scores that are a DTensor",
    "over": "k must be at most 11, the number of scores that take part in a row on all ranks",
    **{
        name: f"scores must be a tensor of this rank for {function}, got a DTensor: soft_topk, "
        for name, function in (
            ("select", "select_topk"),
            ("hard mask", "hard_topk_mask"),
            ("sample", "sample_topk"),
        )
    },
    "list": "tensors must be all DTensors or none, got Tensor for tensors[1]; DTensor.from_local(",
    "list partial": "tensors[1] must be sharded or replicated, got Partial(sum) along dimension 0",
    "list meshes": "tensors must be on one mesh, got ",
    "list group": "group must be left out for tensors that are DTensors",
    "list over": "k must be at most 66, the number of scores that take part in",
    "list k": "k must be one number for all tensors, without dimensions, got shape (3,)",
    "solver": "solver must be 'auto' for a call with group",
}


@pytest.mark.parametrize("name", SAID)
def test_errors_say_what_to_do(name: str, found: list[dict[str, Any]]) -> None:
    for one in found:
        assert one["errors"][name].startswith(SAID[name])


@pytest.mark.parametrize("name", ["loss", "layer", "ties", "on its way"])
def test_others(name: str, found: list[dict[str, Any]]) -> None:
    for one in found:
        assert one["others"][name] < 1e-12


def test_lists_count_every_tensor_once(found: list[dict[str, Any]]) -> None:
    for one in found:
        for name, said in one["lists"].items():
            assert max(_differences(said)) < 1e-12, (name, said)


def test_parameters_under_fsdp_are_masked_where_they_lie(found: list[dict[str, Any]]) -> None:
    """On a mesh of shards, and on one of replicas of shards."""
    for one in found:
        for said in one["fsdp"]:
            assert max(_differences(said)) < 1e-12, said
            assert said["kept"]
    assert any(one["fsdp"][0]["empty"] for one in found)


@pytest.mark.slow
def test_a_graph_is_whole() -> None:
    assert max(processes.run(dtensor_cases.compiled, 2)) < 1e-12
