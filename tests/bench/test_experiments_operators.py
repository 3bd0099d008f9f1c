"""The experiments that put every method side by side, and the paper's numbers beside them."""

from __future__ import annotations

import io
import json
import math
import time
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from cases import normal
from fast_lapsum.bench.experiment import Case, Experiment, Settings, Unavailable
from fast_lapsum.bench.experiments import (
    budget,
    clock,
    dftopk,
    gradcheck,
    inputs,
    large_n,
    operators,
    selection,
)
from fast_lapsum.bench.experiments.rendering import grid_table
from fast_lapsum.bench.methods import METHODS, OURS
from fast_lapsum.bench.paper import MACHINE, PAPER
from fast_lapsum.bench.peers import published, published_sorting, softsort, sparse_topk
from fast_lapsum.bench.peers.protocol import Peer

QUICK = Settings("cpu", True, 3, 10**9, 2.0, 4.0, 0)
FULL = QUICK._replace(quick=False)
MODULES = (large_n, operators, budget, gradcheck, dftopk)
EXPERIMENTS = [module.EXPERIMENT for module in MODULES]

every = pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.name)


def measured(experiment: Experiment, settings: Settings) -> dict[str, Any]:
    """A record of all cases, without the limits that a runner keeps."""
    rows: list[dict[str, Any]] = []
    for case in experiment.cases(settings):
        try:
            values = experiment.measure(case, settings)
            rows.append({"key": case.key, "status": "ok", "values": values})
        except Unavailable as error:
            rows.append({"key": case.key, "status": "unavailable", "reason": str(error)})
    return {"rows": rows, "settings": settings._asdict()}


def text_of(tables: list[Table]) -> str:
    written = io.StringIO()
    for table in tables:
        Console(width=240, file=written).print(table)
    return written.getvalue()


# Cases.


@every
def test_keys_are_unique_and_json(experiment: Experiment) -> None:
    for settings in (QUICK, FULL):
        keys = [json.dumps(case.key) for case in experiment.cases(settings)]
        assert len(set(keys)) == len(keys) > 0


@every
def test_the_ceiling_cuts_sizes(experiment: Experiment) -> None:
    cases = experiment.cases(FULL._replace(max_n=1000))
    assert all(case.size <= 1000 for case in cases)


@every
def test_labels_are_the_papers(experiment: Experiment) -> None:
    assert set(experiment.labels) <= set(PAPER)


def test_every_method_has_every_row() -> None:
    for experiment, passes in ((operators.EXPERIMENT, 2), (budget.EXPERIMENT, 1)):
        for settings in (QUICK, FULL):
            cases = experiment.cases(settings)
            sizes = {case.size for case in cases}
            assert len(cases) == len(METHODS) * len(sizes) * passes
            assert {case.key["method"] for case in cases} == set(METHODS)


def test_sizes_of_the_issue() -> None:
    def sizes(experiment: Experiment) -> list[int]:
        return sorted({case.size for case in experiment.cases(FULL)})

    assert sizes(operators.EXPERIMENT) == [10**power for power in range(1, 9)]
    assert sizes(budget.EXPERIMENT) == [10**power for power in range(3, 8)]
    assert sizes(large_n.EXPERIMENT) == [10**6, 3 * 10**6, 10**7, 3 * 10**7, 10**8]
    wanted = {10, 100, 1000, 10**4, 10**5, 10**6, 3 * 10**6, 10**7, 10**8}
    assert set(sizes(dftopk.EXPERIMENT)) == wanted


# Measuring.


def test_operators_at_small_sizes() -> None:
    record = measured(operators.EXPERIMENT, QUICK._replace(max_n=100))
    statuses = {(row["key"]["method"], row["key"]["pass"]): row["status"] for row in record["rows"]}
    assert statuses[OURS.name, selection.FORWARD_BACKWARD] == "ok"
    assert statuses["torch.topk", selection.FORWARD_BACKWARD] == "unavailable"
    for row in record["rows"]:
        if row["status"] == "ok":
            assert row["values"]["seconds"]["p50"] > 0
            assert row["values"]["peak_bytes"] is None
    shown = text_of(operators.tables(record))
    assert all(name in shown for name in METHODS)
    assert "DFTopK 1400 ms at n = 100,000,000" in shown


def test_memory_has_a_table_where_it_was_measured() -> None:
    key = {"method": OURS.name, "pass": selection.FORWARD_BACKWARD, "n": 1000}
    values = {"seconds": {"p50": 1e-3}, "peak_bytes": 3 * 2**20}
    record = {"rows": [{"key": key, "status": "ok", "values": values}], "settings": {"seconds": 20}}
    assert "Peak memory" in text_of(operators.tables(record))
    values["peak_bytes"] = None
    assert "Peak memory" not in text_of(operators.tables(record))


def test_budget_is_the_papers_in_kind() -> None:
    case = Case({"method": "DFTopK", "n": 100_000}, 100_000)
    error = budget.measure(case, QUICK)["relative_error"]
    assert error == pytest.approx(2.46, abs=0.05)
    case = Case({"method": OURS.name, "n": 100_000}, 100_000)
    values = budget.measure(case, QUICK)
    assert values["relative_error"] <= 1e-6
    assert values["mass"] == pytest.approx(6250, rel=1e-6)


def test_budget_table_has_the_papers_rows() -> None:
    record = measured(budget.EXPERIMENT, QUICK._replace(max_n=1000))
    shown = text_of(budget.tables(record))
    assert shown.count(f"paper, {MACHINE}") == len(PAPER["tab:budget"].rows)
    assert "2.47" in shown


def test_large_n_solvers_agree_on_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_n, "QUICK_SIZES", (20_000,))
    record = measured(large_n.EXPERIMENT, QUICK)
    assert [row["key"]["solver"] for row in record["rows"]] == list(large_n.SOLVERS)
    assert all(row["values"]["relative_error"] <= 1e-6 for row in record["rows"])
    assert "99.0" in text_of(large_n.tables(record))


def test_dftopk_takes_half() -> None:
    record = measured(dftopk.EXPERIMENT, QUICK._replace(max_n=10))
    assert "torch.sort" not in {row["key"]["method"] for row in record["rows"]}
    assert "7895" in text_of(dftopk.tables(record))


@pytest.mark.parametrize("seed", range(5))
def test_gradcheck_meets_the_papers_bar(seed: int) -> None:
    record = measured(gradcheck.EXPERIMENT, QUICK._replace(seed=seed))
    assert len(record["rows"]) == 3
    for row in record["rows"]:
        assert row["values"]["relative_error"] <= gradcheck.RELATIVE_ERROR_LIMIT
    assert "missed" not in text_of(gradcheck.tables(record))


def test_gradcheck_would_see_a_wrong_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = gradcheck.finite_differences
    monkeypatch.setattr(gradcheck, "finite_differences", lambda *args: exact(*args) * (1 + 1e-8))
    record = measured(gradcheck.EXPERIMENT, QUICK)
    assert "missed" in text_of(gradcheck.tables(record))


# Checks before timing.


def fake(function: Any, name: str = "fake") -> Peer:
    return OURS._replace(name=name, function=function)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda s, k, t: s[:, 1:], "a mask of shape"),
        (lambda s, k, t: s * math.nan, "adds up to nan"),
        (lambda s, k, t: s / 0, "not a number"),
    ],
)
def test_insane_masks_get_no_time(function: Any, message: str) -> None:
    scores, cotangent = inputs.normal_inputs("cpu", 20, 0)
    with pytest.raises(selection.SanityError, match=message):
        selection.checked_call(fake(function), scores, cotangent, 3, selection.FORWARD)


def test_only_our_budget_must_be_met() -> None:
    scores, cotangent = inputs.normal_inputs("cpu", 20, 0)

    def halves(s: Tensor, k: float, t: float) -> Tensor:
        return s * 0 + 0.5

    selection.checked_call(fake(halves), scores, cotangent, 3, selection.FORWARD_BACKWARD)
    with pytest.raises(selection.SanityError, match="expected k = 3"):
        selection.checked_call(fake(halves, OURS.name), scores, cotangent, 3, selection.FORWARD)


def test_our_gradient_must_add_up_to_nothing() -> None:
    scores, cotangent = inputs.normal_inputs("cpu", 20, 0)

    def unbalanced(s: Tensor, k: float, t: float) -> Tensor:
        return s.sigmoid() * (k / s.sigmoid().sum()).detach()

    with pytest.raises(selection.SanityError, match="a gradient that adds up to"):
        selection.checked_call(
            fake(unbalanced, OURS.name), scores, cotangent, 3, selection.FORWARD_BACKWARD
        )


def test_missing_support_of_a_device_is_unavailable() -> None:
    def unsupported(s: Tensor, k: float, t: float) -> Tensor:
        raise ImportError("no CUDA extension")

    scores, cotangent = inputs.normal_inputs("cpu", 20, 0)
    with pytest.raises(Unavailable, match="no CUDA extension"):
        selection.checked_call(fake(unsupported), scores, cotangent, 3, selection.FORWARD)


# The clock.


def test_clock_stops_at_half_of_the_limit() -> None:
    settings = QUICK._replace(repeats=1000, seconds=1.0)
    start = time.perf_counter()
    timing = clock.timed(lambda: time.sleep(0.005), settings)
    assert 3 <= timing.samples < 1000
    assert time.perf_counter() - start < 0.95


def test_clock_keeps_a_single_long_call() -> None:
    calls = []

    def long() -> None:
        calls.append(None)
        time.sleep(0.06)

    timing = clock.timed(long, QUICK._replace(seconds=0.1))
    assert timing.samples == len(calls) == 1
    assert timing.p50 >= 0.06


# Tables.


def test_statuses_in_a_grid() -> None:
    rows = [
        {"key": {"method": "a", "n": 10}, "status": "ok", "values": {"x": 1}},
        {"key": {"method": "a", "n": 1000}, "status": "timeout", "reason": ""},
        {"key": {"method": "a", "n": 10_000}, "status": "limit", "reason": ""},
        {"key": {"method": "b", "n": 10}, "status": "unavailable", "reason": ""},
        {"key": {"method": "b", "n": 1000}, "status": "oom", "reason": ""},
        {"key": {"method": "b", "n": 10_000}, "status": "limit", "reason": ""},
        {"key": {"method": "c", "n": 10_000}, "status": "error", "reason": ""},
    ]
    table = grid_table(
        {"rows": rows, "settings": {"seconds": 20.0}},
        "title",
        row="method",
        column="n",
        cell=lambda values: f"<{values['x']}>",
        paper={"a": {10: "printed"}, "only printed": {3000: "there"}},
    )
    shown = text_of([table])
    assert all(word in shown for word in ("<1>", "> 20 s", "(> 20 s)", "OOM", "(OOM)", "error"))
    assert shown.count(f"paper, {MACHINE}") == 2
    assert shown.index("1e3") < shown.index("3e3") < shown.index("1e4")
    assert "not tried" in shown


# The paper.


def test_speedups_of_the_paper_fit_its_times() -> None:
    # A digit typed wrong would show: the speedups are quotients of the times, as printed.
    for record in PAPER["tab:bench-fwd"].records():
        for variant in ("scan", "block scan", "fused"):
            quotient = float(record["bisection"]) / float(record[variant])
            assert float(record[f"{variant} speedup"]) == pytest.approx(quotient, rel=0.05)
    for record in PAPER["tab:bench-fb"].records():
        quotient = float(record["bisection"]) / float(record["fused"])
        assert float(record["fused speedup"]) == pytest.approx(quotient, rel=0.03)
    for record in PAPER["tab:ks-main"].records():
        quotient = float(record["full sort"]) / float(record["noised bracket"])
        assert float(record["speedup"]) == pytest.approx(quotient, rel=0.07)
    for record in PAPER["tab:ablation-main"].records():
        assert float(record["speedup"]) == pytest.approx(7.29 / float(record["forward"]), rel=0.01)
    for record in PAPER["tab:fast-main"].records():
        grid = PAPER["tab:bench-fwd"].row(sweep="n", n=record["n"])
        assert all(grid[name] == record[name] for name in ("bisection", "scan", "fused"))


def test_methods_of_the_paper_are_ours() -> None:
    for label in ("tab:budget", "fig:baseline-plot", "fig:baseline-plot-fb"):
        assert {record["method"] for record in PAPER[label].records()} <= set(METHODS)
    assert set(PAPER["tab:dftopk"].columns) - {"n"} <= set(METHODS)


def test_a_row_that_is_not_there() -> None:
    with pytest.raises(KeyError, match="tab:dftopk has no row with"):
        PAPER["tab:dftopk"].row(n=7)


# Published packages behind a step of their own.

SORTING = {
    "torchsort (isotonic solver)": sparse_topk.sparse_topk_pav,
    "softtorch (softsort)": softsort.softsort,
    "softjax (softsort)": softsort.softsort,
}


@pytest.mark.parametrize("peer", published_sorting.PEERS, ids=lambda p: p.name)
def test_published_sorting_is_the_peer_of_its_paper(peer: Peer) -> None:
    if (reason := peer.available()) is not None:
        pytest.skip(reason)
    scores = normal(3, 50, dtype=torch.float32).requires_grad_()
    weights = normal(3, 50, seed=1, dtype=torch.float32)
    for k, t in ((5, 1.0), (7, 0.1)):
        ours, theirs = SORTING[peer.name](scores, k, t), peer.function(scores, k, t)
        torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=2e-6)
        gradients = (torch.autograd.grad(mask, scores, weights)[0] for mask in (theirs, ours))
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("peer", published_sorting.PEERS, ids=lambda p: p.name)
def test_published_sorting_wants_whole_budgets(peer: Peer) -> None:
    with pytest.raises(ValueError, match="k must be a whole number"):
        peer.function(normal(2, 4), 2.5, 1.0)
    with pytest.raises(ValueError, match="k must lie in"):
        peer.function(normal(2, 4), 5, 1.0)


def test_a_package_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ImportError("a dependency is missing")

    monkeypatch.setattr(published.importlib, "import_module", broken)
    reason = published._needs("math", "sin")()
    assert reason is not None
    assert "cannot be imported: a dependency is missing" in reason
