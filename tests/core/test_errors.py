"""Bad input: every error names the argument, what came, and what was expected."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cases import normal
from fast_lapsum import (
    hard_topk_mask,
    lapsum,
    log_soft_topk,
    sample_topk,
    select_topk,
    soft_topk,
    threshold,
)

inf, nan = math.inf, math.nan
R = torch.tensor([[3.0, 1.0, 2.0, 0.0], [0.5, 2.5, 1.5, 4.0]])
FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "soft_topk": soft_topk,
    "log_soft_topk": log_soft_topk,
    "threshold": threshold,
    "hard_topk_mask": hard_topk_mask,
    "sample_topk": sample_topk,
    "lapsum": lambda scores, k=2, alpha=-1.0, **rest: lapsum(scores, k, alpha, **rest),
}
SOLVING = ("soft_topk", "log_soft_topk", "threshold")


def _takes(function: str, argument: str) -> bool:
    if argument in ("solver", "warm_start"):
        return function in SOLVING
    if argument == "temperature":
        return function not in ("hard_topk_mask", "lapsum")
    return function != "lapsum" or argument in ("scores", "k", "dim", "alpha")


#: (argument, value, exception, what the message says besides the argument's name)
BAD: list[tuple[str, Any, type[Exception], tuple[str, ...]]] = [
    ("scores", [1.0, 2.0], TypeError, ("torch.Tensor", "list")),
    ("scores", None, TypeError, ("torch.Tensor", "NoneType")),
    ("scores", torch.tensor([1, 2, 3]), TypeError, ("float32", "int64")),
    ("scores", torch.tensor([True, False]), TypeError, ("float32", "bool")),
    ("scores", torch.tensor([1j, 2j]), TypeError, ("float32", "complex64")),
    ("scores", torch.tensor(1.0), ValueError, ("at least one dimension", "scalar")),
    ("k", -1, ValueError, ("[0, 4]", "k=-1")),
    ("k", 5, ValueError, ("[0, 4]", "k=5")),
    ("k", 4.5, ValueError, ("[0, 4]", "k=4.5")),
    ("k", nan, ValueError, ("[0, 4]", "k=nan")),
    ("k", inf, ValueError, ("[0, 4]", "k=inf")),
    ("k", "2", TypeError, ("number or a tensor", "str")),
    ("k", None, TypeError, ("number or a tensor", "NoneType")),
    ("k", [1, 2], TypeError, ("number or a tensor", "list")),
    ("k", 2j, TypeError, ("number or a tensor", "complex")),
    ("k", True, TypeError, ("number or a tensor", "bool")),
    ("k", np.bool_(True), TypeError, ("number or a tensor", "bool")),
    ("k", np.array(True), TypeError, ("number or a tensor", "ndarray")),
    ("k", torch.tensor(True), TypeError, ("number or a tensor", "bool")),
    ("k", torch.ones(2, dtype=torch.bool), TypeError, ("number or a tensor", "bool")),
    ("k", torch.tensor(2j), TypeError, ("real", "complex64")),
    ("k", torch.ones(3), ValueError, ("(2,)", "(3,)", "broadcast")),
    ("k", torch.ones(2, 1), ValueError, ("(2,)", "(2, 1)", "broadcast")),
    ("k", torch.ones(2, device="meta"), ValueError, ("device of scores", "cpu", "meta")),
    ("k", torch.ones((), device="meta"), ValueError, ("device of scores", "cpu", "meta")),
    ("largest", None, TypeError, ("True or False", "None")),
    ("largest", "no", TypeError, ("True or False", "'no'")),
    ("largest", 1, TypeError, ("True or False", "1")),
    ("clamp", "x", TypeError, ("True or False", "'x'")),
    ("validate", "x", TypeError, ("True or False", "'x'")),
    (
        "temperature",
        -0.5,
        ValueError,
        ("finite and lie in [0, 1.33e+36] for float32", "temperature=-0.5"),
    ),
    ("temperature", nan, ValueError, ("finite and lie in [0,", "temperature=nan")),
    ("temperature", inf, ValueError, ("finite and lie in [0,", "temperature=inf")),
    ("temperature", "1", TypeError, ("number or a tensor", "str")),
    ("temperature", None, TypeError, ("number or a tensor", "NoneType")),
    ("temperature", True, TypeError, ("number or a tensor", "bool")),
    ("temperature", np.bool_(True), TypeError, ("number or a tensor", "bool")),
    ("temperature", torch.tensor(True), TypeError, ("number or a tensor", "bool")),
    ("temperature", torch.tensor(1j), TypeError, ("real", "complex64")),
    ("temperature", torch.ones(3), ValueError, ("(2,)", "(3,)", "broadcast")),
    ("temperature", torch.ones(2, device="meta"), ValueError, ("device of scores", "meta")),
    ("dim", 2, ValueError, ("[-2, 1]", "dim=2", "(2, 4)")),
    ("dim", -3, ValueError, ("[-2, 1]", "dim=-3", "(2, 4)")),
    ("dim", 1.0, TypeError, ("int", "float")),
    ("dim", (0, 1.0), TypeError, ("int", "float")),
    ("dim", (0, 2), ValueError, ("[-2, 1]", "dim=2", "(2, 4)")),
    ("dim", (1, -1), ValueError, ("once", "dim=(1, -1)")),
    ("dim", (), ValueError, ("at least one", "dim=()")),
    ("dim", torch.tensor(1), TypeError, ("int", "Tensor")),
    ("dim", np.bool_(True), TypeError, ("int", "bool")),
    ("dim", True, TypeError, ("int", "bool")),
    ("mask", [True, False], TypeError, ("torch.Tensor", "list")),
    ("mask", torch.ones(2, 4), TypeError, ("bool", "float32")),
    ("mask", torch.ones(2, 4, dtype=torch.uint8), TypeError, ("bool", "uint8")),
    ("mask", torch.ones(2, dtype=torch.bool), ValueError, ("(2, 4)", "(2,)", "broadcast")),
    ("mask", torch.ones(4, dtype=torch.bool, device="meta"), ValueError, ("device", "meta")),
    ("solver", "newton", ValueError, ("'two_exponential'", "solver='newton'")),
    ("solver", None, ValueError, ("'two_exponential'", "solver=None")),
    ("warm_start", 0.5, TypeError, ("torch.Tensor", "float")),
    ("warm_start", torch.ones(3), ValueError, ("(2,)", "(3,)", "broadcast")),
    ("warm_start", torch.tensor(1j), TypeError, ("real", "complex64")),
    ("alpha", nan, ValueError, ("finite", "alpha=nan")),
    ("alpha", inf, ValueError, ("finite", "alpha=inf")),
    ("alpha", "1", TypeError, ("number or a tensor", "str")),
    ("alpha", torch.ones(3), ValueError, ("(2,)", "(3,)", "broadcast")),
    ("alpha", torch.tensor(1j), TypeError, ("real", "complex64")),
]


def _name(value: object) -> str:
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{dtype}{tuple(value.shape)}{'' if value.is_cpu else value.device}"
    return repr(value)


@pytest.mark.parametrize(
    ("function", "argument", "value", "error", "says"),
    [
        pytest.param(function, *bad, id=f"{function}-{bad[0]}-{_name(bad[1])}")
        for function in FUNCTIONS
        for bad in BAD
        if _takes(function, bad[0]) and (bad[0] != "alpha" or function == "lapsum")
    ],
)
def test_bad_arguments_are_named(
    function: str, argument: str, value: object, error: type[Exception], says: tuple[str, ...]
) -> None:
    arguments = {"scores": R, "k": 2, argument: value}
    with pytest.raises(error) as caught:
        FUNCTIONS[function](**arguments)
    message = str(caught.value)
    for part in (argument, *says):
        assert part in message, f"{part!r} is missing from: {message}"


@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
def test_a_number_beyond_the_valid_count_is_an_error(backend: str, largest: bool) -> None:
    """Not only beyond n: scores that are left out do not count."""
    side = 1 if largest else -1
    left_out = torch.tensor([[1.0, -inf, 2.0, -inf], [1.0, 2.0, 3.0, 4.0]]) * side
    mask = torch.tensor([True, True, False, True])
    for scores, given in ((left_out, None), (R, torch.tensor([True, False, False, True]))):
        with pytest.raises(ValueError, match=r"k must .*\b2\b.*k=3"):
            soft_topk(scores, 3, mask=given, largest=largest, solver=backend)
        soft_topk(scores, 2, mask=given, largest=largest, solver=backend)
    soft_topk(R, 3, mask=mask, largest=largest, solver=backend)


@pytest.mark.parametrize("hard", [False, True], ids=["soft", "hard"])
@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
def test_validate_counts_what_takes_part(backend: str, largest: bool, hard: bool) -> None:
    """-inf is left out of the largest, +inf out of the smallest; the other one takes part."""
    side = 1 if largest else -1
    scores = side * torch.tensor([[1.0, 2.0, 3.0, 4.0], [-inf, 2.0, inf, nan]])
    mask = torch.tensor([True, True, True, False])

    def call(k: list[float]) -> Tensor:
        return soft_topk(
            scores,
            torch.tensor(k),
            mask=mask,
            largest=largest,
            hard=hard,
            solver=backend,
            validate=True,
        )

    assert call([3.0, 2.0]).isfinite().all()
    with pytest.raises(ValueError, match=r"k must .*\[0, 2\], got k=3\.0 in row \(1,\)"):
        call([3.0, 3.0])
    with pytest.raises(ValueError, match=r"k must .*\[0, 3\], got k=-1\.0 in row \(0,\)"):
        call([-1.0, 2.0])


@pytest.mark.parametrize("function", ["soft_topk", "log_soft_topk", "threshold", "sample_topk"])
@pytest.mark.parametrize("bad", [-0.5, nan, inf])
def test_validate_looks_at_the_temperature(function: str, bad: float) -> None:
    t = torch.tensor([1.0, bad])
    with pytest.raises(ValueError, match=rf"temperature must .* got temperature={bad} in row"):
        FUNCTIONS[function](R, 2, t, validate=True)
    with pytest.raises(ValueError, match="temperature must"):
        FUNCTIONS[function](R[0], torch.tensor(2.0), torch.tensor(bad), validate=True)


@pytest.mark.parametrize("function", ["soft_topk", "log_soft_topk", "threshold", "sample_topk"])
@pytest.mark.parametrize("bad", [-1.0, 5.0, nan, inf])
def test_validate_looks_at_the_budget(function: str, bad: float) -> None:
    k = torch.tensor([2.0, bad])
    with pytest.raises(ValueError, match=rf"k must .*\[0, 4\], got k={bad} in row \(1,\)"):
        FUNCTIONS[function](R, k, validate=True)
    assert not FUNCTIONS[function](R, k[:1].expand(2), validate=True).isnan().any()


def test_validate_accepts_good_input(backend: str) -> None:
    scores = normal(3, 5, 7)
    k = torch.tensor([[0.0], [3.5], [7.0]]).expand(3, 5)
    out = soft_topk(scores, k, torch.tensor(0.0), solver=backend, validate=True)
    assert torch.equal(out, soft_topk(scores, k, torch.tensor(0.0), solver=backend))


def test_numbers_at_the_limits_are_fine(backend: str) -> None:
    for k in (0, 4, 0.0, 4.0, -0.0, 1e-300):
        assert soft_topk(R, k, 1.0, solver=backend).isfinite().all()
    for t in (0, -0.0, 1e-300, 1e-45, 5e-324, 1.3e36):
        assert soft_topk(R, 2, t, solver=backend).isfinite().all()
        assert soft_topk(R.double(), 2, t, solver=backend).isfinite().all()
    assert soft_topk(R.double(), 2, 1e300, solver=backend).isfinite().all()


def test_a_temperature_whose_threshold_float32_cannot_hold_is_an_error(backend: str) -> None:
    with pytest.raises(ValueError, match=r"temperature must .* float32 .*temperature=1e\+37"):
        soft_topk(R, 2, 1e37, solver=backend)
    too_hot = torch.tensor(1e37, dtype=torch.float64)
    assert soft_topk(R, 2, too_hot, solver=backend).isnan().all()
    with pytest.raises(ValueError, match=r"temperature must .*1e\+37"):
        soft_topk(R, 2, too_hot, solver=backend, validate=True)


def test_flags_of_other_kinds() -> None:
    with pytest.raises(TypeError, match="hard must be True or False, got 'no'"):
        soft_topk(R, 2, hard="no")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="sorted must be True or False, got 'x'"):
        select_topk(R, 2, sorted="x")  # type: ignore[arg-type]
    for flag in (True, False):
        assert torch.equal(
            soft_topk(R, 2, largest=np.bool_(flag)),  # type: ignore[call-overload]
            soft_topk(R, 2, largest=flag),
        )


@pytest.mark.parametrize("largest", [True, False])
def test_a_short_row_is_told_what_takes_it_whole(largest: bool) -> None:
    scores = R.clone()
    scores[1, :2] = -inf if largest else inf
    left_out = "-inf" if largest else r"\+inf"
    with pytest.raises(ValueError, match=rf"at most 2.*not {left_out}.*row \(1,\); clamp=True"):
        soft_topk(scores, 3, largest=largest)


def test_a_row_with_a_nan_is_no_error() -> None:
    scores = torch.tensor([[nan, -inf, -inf], [1.0, 2.0, 3.0]])
    p = soft_topk(scores, torch.tensor([2.0, 2.0]), validate=True)
    assert p[0].isnan().all()
    assert not p[1].isnan().any()
