"""Arguments of pruning that are wrong are named, and nothing is changed by them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.utils import parametrize

from fast_lapsum.prune import soften
from prunable_model import NAMES, make_model


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"density": 1.5}, r"density must lie in \[0, 1\], got density=1.5"),
        ({}, "density must be given for scope='global'"),
        ({"density": 0.5, "scope": "row"}, "scope must be 'global', 'layer' or a pattern"),
        ({"scope": "4:2"}, "scope must be .*got scope='4:2'"),
        ({"density": 0.3, "scope": "2:4"}, "density must be None for scope='2:4'"),
        ({"scope": "2:3"}, r"multiple of 3, got '0.weight' of shape \(8, 4, 3, 3\)"),
        ({"density": 0.5, "names": ["9.weight"]}, "names must be of parameters of the module"),
        ({"density": 0.5, "names": []}, "names must name at least one parameter"),
        ({"density": 0.5, "temperature": -1.0}, "temperature must be finite and at least 0"),
        ({"density": 0.5, "scores": "random"}, "scores must be 'magnitude' or 'learned'"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], says: str) -> None:
    model = make_model()
    with pytest.raises(ValueError, match=says):
        soften(model, **arguments)
    assert not parametrize.is_parametrized(model[0])


def test_names_that_are_offered_are_accepted() -> None:
    """Not the inner names of what is pruned already."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))
    soften(model, density=0.5, scores="learned")
    offered = r"\(0\.bias, 1\.bias\), got '0\.wieght'"
    with pytest.raises(ValueError, match=offered):
        soften(model, ["0.wieght"], density=0.5)
    assert soften(model, ["0.bias", "1.bias"], density=0.5).count == 6
    with pytest.raises(ValueError, match=r"\(none is left\), got '0\.wieght'"):
        soften(model, ["0.wieght"], density=0.5)


def test_what_is_pruned_already_is_named() -> None:
    says = r"names must be of parameters that are not pruned already, got '{}': "
    model = make_model()
    pruning = soften(model, density=0.5)
    how = r"call finalize\(\) of what soften returned first"
    with pytest.raises(ValueError, match=says.format("0.weight") + how):
        soften(model, density=0.5)
    with pytest.raises(ValueError, match=says.format("2.weight") + how):
        soften(model, ["0.bias", "2.weight"], density=0.5)
    with pytest.raises(ValueError, match=says.format("weight") + how):
        soften(model[0], density=0.5)
    with pytest.raises(ValueError, match=r"names must be of parameters of the module \(0\.bias"):
        soften(model, ["9.weight"], density=0.5)
    pruning.finalize(fixed=True)
    with pytest.raises(ValueError, match=says.format("0.weight") + "call torch.nn.utils.para"):
        soften(model, density=0.5)
    for name in NAMES:
        parametrize.remove_parametrizations(model[int(name[0])], "weight")
    assert soften(model, density=0.5).names == list(NAMES)


@pytest.mark.parametrize(
    "inner", ["0.parametrizations.weight.original", "parametrizations.weight.0.scores"]
)
def test_what_is_pruned_already_is_no_other_parameter(inner: str) -> None:
    model = make_model()
    module = model if inner[0] == "0" else model[0]
    soften(module, density=0.5, scores="learned")
    assert inner in dict(module.named_parameters())
    with pytest.raises(ValueError, match=r"not pruned already, got '(0\.)?weight'"):
        soften(module, [inner], density=0.5)


def test_what_is_no_module_is_named() -> None:
    with pytest.raises(TypeError, match=r"module must be a torch\.nn\.Module, got str"):
        soften("x", density=0.1)  # type: ignore[arg-type]


def test_names_that_are_no_strings_are_named() -> None:
    names: Any
    for names, says in (
        (0.1, r"names must be strings, got 0\.1: did you mean density=0\.1\?"),
        ([0.1], r"names must be strings, got 0\.1 among them"),
        (torch.nn.ReLU(), r"names must be strings, got ReLU"),
        ("0.weight", r"names must be a list of names of parameters, got the string '0.weight'"),
    ):
        with pytest.raises(TypeError, match=says):
            soften(make_model(), names, 0.5)


def test_a_module_without_weights_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"module must have a parameter that is called weight .*ReLU"
    ):
        soften(torch.nn.ReLU(), density=0.1)


def test_parameters_that_two_modules_share_are_named() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model[1].weight = model[0].weight
    with pytest.raises(ValueError, match=r"got '0.weight', which is '1.weight', too"):
        soften(model, density=0.5)
