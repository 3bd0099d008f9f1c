"""tab:gradcheck: the analytical gradient against centred finite differences, in float64."""

from __future__ import annotations

from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from fast_lapsum import soft_topk

from ..experiment import Case, Experiment, Record, Settings
from ..paper import PAPER
from ..tables import verdict
from .rendering import PAPER_ROW, status_text

EPSILON = 1e-5
#: What the paper claims of all its configurations; its table itself passes at 1e-3.
RELATIVE_ERROR_LIMIT = 3e-10
_KEY = ("B", "n", "k", "temperature")


def cases(settings: Settings) -> list[Case]:
    """The paper's three configurations."""
    return [
        Case({name: printed[name] for name in _KEY}, int(printed["B"]) * int(printed["n"]))
        for printed in PAPER["tab:gradcheck"].records()
        if int(printed["B"]) * int(printed["n"]) <= settings.max_n
    ]


def measure(case: Case, settings: Settings) -> dict[str, Any]:
    """The largest errors over all scores."""
    shape = int(case.key["B"]), int(case.key["n"])
    k, temperature = int(case.key["k"]), float(case.key["temperature"])
    generator = torch.Generator().manual_seed(settings.seed)
    scores, cotangent = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    # A constant has no gradient, since sum p = k, and would only add rounding to the differences.
    cotangent -= cotangent.mean(-1, keepdim=True)
    scores, cotangent = scores.to(settings.device), cotangent.to(settings.device)

    leaf = scores.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(soft_topk(leaf, k, temperature), leaf, cotangent)
    differences = finite_differences(scores, cotangent, k, temperature)
    error = float((gradient - differences).abs().max())
    return {
        "absolute_error": error,
        "relative_error": error / float(differences.abs().max()),
    }


def finite_differences(scores: Tensor, cotangent: Tensor, k: int, temperature: float) -> Tensor:
    """The gradient of <cotangent, mask>, moving one score at a time by ``EPSILON`` both ways.

    Masks are subtracted before they are added up, where the difference of two sums would cancel.
    """
    count = scores.numel()
    steps = EPSILON * torch.eye(count, dtype=scores.dtype, device=scores.device)
    steps = steps.reshape(count, *scores.shape)
    change = soft_topk(scores + steps, k, temperature) - soft_topk(scores - steps, k, temperature)
    slopes = (cotangent * change).sum((-2, -1)) / (2 * EPSILON)
    return slopes.reshape(scores.shape)


def tables(record: Record) -> list[Table]:
    """Errors, the paper's below each of ours."""
    table = Table(
        title=f"Gradient against centred differences, eps = {EPSILON:g}, float64",
        title_justify="left",
    )
    table.add_column("")
    for header in (*_KEY, "absolute error", "relative error", "limit"):
        table.add_column(header, justify="right")
    table.add_column("")
    for entry in record["rows"]:
        key = [f"{entry['key'][name]:g}" for name in _KEY]
        if entry["status"] == "ok":
            values = entry["values"]
            met = values["relative_error"] <= RELATIVE_ERROR_LIMIT
            errors = [f"{values[name]:.2e}" for name in ("absolute_error", "relative_error")]
            table.add_row("fast-lapsum", *key, *errors, f"{RELATIVE_ERROR_LIMIT:g}", verdict(met))
        else:
            word = status_text(entry["status"], record["settings"]["seconds"])
            table.add_row("fast-lapsum", *key, word)
        printed = PAPER["tab:gradcheck"].row(**entry["key"])
        errors = [f"{printed[name]:.2e}" for name in ("absolute_error", "relative_error")]
        table.add_row(PAPER_ROW, *key, *errors, "0.001", str(printed["status"]), style="dim")
    return [table]


EXPERIMENT = Experiment(
    name="gradcheck",
    title="The gradient against finite differences",
    labels=("tab:gradcheck",),
    method=(
        "The package's gradient for <c, mask>, in float64 on standard normal scores, against "
        "centred differences with eps = 1e-5 of every score. c is a normal cotangent less its mean "
        "over a row, which changes no gradient because the mask's sum is fixed; the two masks are "
        "subtracted before they are added up. Both keep the rounding of the differences below "
        "their limit. The relative error is the largest absolute error over the largest finite "
        "difference, and 3e-10 is the limit. The paper's rows are its own errors, for other draws."
    ),
    cases=cases,
    measure=measure,
    tables=tables,
)
