"""attack-bench: the tables, the verdict and the curve, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from fast_lapsum.apps.attack import tables, tables_text


def row(picture: str, method: str, spent: float | None, status: str = "ok", **more: Any) -> Any:
    key = {"picture": picture, "setting": "native", "calls": 100, "method": method}
    if status != "ok":
        return {"key": key, "status": status, "reason": "why"}
    values = {"success": spent is not None, "B": spent or 0.0, "L0": 5, "calls": 100, "seconds": 1}
    return {"key": key, "status": "ok", "values": {**values, "timed_out": False, **more}}


ROWS = [
    row("a", "ours", 10.0, L_star=7),
    row("b", "ours", 20.0, L_star=9),
    row("c", "ours", 200.0, L_star=None),
    row("a", "sigma-zero", 20.0),
    row("b", "sigma-zero", 10.0),
    row("c", "sigma-zero", None),
    row("a", "dense", 40.0),
    row("b", "dense", 400.0),
    row("c", "dense", 500.0),
    row("a", "sparse-fool", None, timed_out=True),
    row("b", "sparse-fool", None, status="oom"),
    row("c", "sparse-fool", None, timed_out=True),
]


def by_method(table: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {line["method"]: line for line in table}


def test_main_table_by_hand() -> None:
    found = by_method(tables.main_table(ROWS, "native", 100))
    assert list(found) == ["ours", "dense", "sigma-zero", "sparse-fool"]
    assert found["ours"]["fooled_percent"] == 100
    assert found["ours"]["median_B"] == 20
    assert found["ours"]["median_L_star"] == 8
    assert found["sigma-zero"]["fooled_percent"] == pytest.approx(200 / 3)
    assert found["sigma-zero"]["median_B"] == 15
    assert found["sparse-fool"]["fooled_percent"] == 0
    assert found["sparse-fool"]["median_B"] is None
    assert found["sparse-fool"]["ended_otherwise"] == {"timeout": 2, "oom": 1}
    assert found["sigma-zero"]["paper_median_B"] == 3101.0
    assert found["dense"]["paper_median_B"] is None


def test_paired_table_by_hand() -> None:
    found = by_method(tables.paired_table(ROWS, "native", 100))
    assert "ours" not in found
    sigma = found["sigma-zero"]
    assert sigma["both_fool"] == 2
    assert (sigma["median_B"], sigma["ours_median_B"]) == (15, 15)
    assert sigma["median_ratio"] == pytest.approx((2 + 0.5) / 2)
    assert sigma["geometric_mean_ratio"] == pytest.approx(1)
    assert sigma["ours_wins_percent"] == 50
    assert sigma["paper_median_ratio"] == 15
    dense = found["dense"]
    assert dense["geometric_mean_ratio"] == pytest.approx((4 * 20 * 2.5) ** (1 / 3))
    assert found["sparse-fool"]["both_fool"] == 0
    assert found["sparse-fool"]["median_ratio"] is None
    assert found["sparse-fool"]["ours_median_B"] is None
    assert (dense["median_B"], dense["ours_median_B"]) == (400, 20)


def test_budget_table_and_curve_by_hand() -> None:
    found = by_method(tables.budget_table(ROWS, "native", 100))
    assert found["ours"]["within_percent"]["100"] == pytest.approx(200 / 3)
    assert found["ours"]["within_percent"]["300"] == 100
    assert found["sigma-zero"]["within_percent"]["100000"] == pytest.approx(200 / 3)
    assert found["ours"]["paper_within_percent"]["1000"] == 99
    curve = tables.curve(ROWS, "native", 100)
    assert curve["ours"] == [(10.0, 1 / 3), (20.0, 2 / 3), (200.0, 1.0)]
    assert curve["sparse-fool"] == []


def test_verdict_counts_pictures_that_a_rival_fools() -> None:
    found = tables.verdict(ROWS, "native", 100)
    assert found["ours_fools_all"]
    assert found["best_rival_median_B"] == 15
    assert not found["ours_lowest_median"]
    assert found["contested"] == 2
    assert found["won_percent"] == 50
    assert found["dense_over_ours"] == 4
    assert found["best_other_median_B"] == 15
    assert not found["ours_lowest_median_of_all"]
    assert found["contested_by_all"] == 3
    assert found["won_percent_of_all"] == pytest.approx(200 / 3)
    assert found["won_percent_against"] == {"dense": 100, "sigma-zero": 50, "sparse-fool": None}


def test_verdict_has_medians_over_the_pictures_that_both_fool() -> None:
    found = tables.verdict(ROWS, "native", 100)
    assert found["medians_where_both_fool"] == {
        "dense": (20, 400),
        "sigma-zero": (15, 15),
        "sparse-fool": None,
    }
    assert not found["ours_lower_where_both_fool"]
    # Ours has the higher median only because it fools a picture that the rival does not.
    rows = [row("a", "ours", 10.0), row("b", "ours", 200.0), row("a", "sigma-zero", 20.0)]
    found = tables.verdict([*rows, row("b", "sigma-zero", None)], "native", 100)
    assert not found["ours_lowest_median"]
    assert found["ours_lower_where_both_fool"]
    assert not tables.verdict([row("a", "dense", 5.0)], "native", 100)["ours_lower_where_both_fool"]
    text = tables_text.markdown(tables.all_tables(ROWS))
    assert "lower than every rival: no (20 against 400 of dense, 15 against 15 of sigma-z" in text
    assert "| sigma-zero | 2 | 15 | 15 | 1.25 | 1 | 50 |" in text


@pytest.mark.parametrize("part", ["no-operator", "no-race"])
def test_verdict_leaves_out_parts_of_ours(part: str) -> None:
    rows = [*ROWS, *(row(name, part, 1e-3) for name in "abc")]
    assert tables.verdict(rows, "native", 100) == tables.verdict(ROWS, "native", 100)


def test_verdict_against_all_counts_the_control() -> None:
    found = tables.verdict([*ROWS, *(row(name, "dense:x=1", 1.0) for name in "abc")], "native", 100)
    assert found["best_rival_median_B"] == 15
    assert found["best_other_median_B"] == 1
    assert found["won_percent"] == 50
    assert found["won_percent_of_all"] == 0
    assert found["dense_over_ours"] == pytest.approx(1 / 20)
    alone = tables.verdict([row("a", "ours", 5.0)], "native", 100)
    assert alone["ours_lowest_median"]
    assert alone["won_percent"] is None
    assert not tables.verdict([row("a", "dense", 5.0)], "native", 100)["ours_lowest_median"]


def test_every_method_is_shown_at_its_best_settings() -> None:
    better = [row(name, "sigma-zero:step=0.5", 5.0) for name in "abc"]
    table = by_method(tables.main_table([*ROWS, *better], "native", 100))
    assert table["sigma-zero"]["settings"] == "step=0.5"
    assert table["sigma-zero"]["fooled_percent"] == 100
    assert table["sigma-zero"]["median_B"] == 5


def test_the_best_settings_fool_most_and_then_change_least() -> None:
    rows = [
        *ROWS,
        *(row(name, "ours:x=1", 9.0) for name in "abc"),
        row("a", "ours:x=2", 1.0),  # lowest, and all that were run, but fools fewer
        row("b", "ours:x=2", 1.0),
        *(row(name, "ours:x=3", 12.0) for name in "abc"),
    ]
    main = by_method(tables.main_table(rows, "native", 100))["ours"]
    assert (main["settings"], main["settings_tried"], main["median_B"]) == ("x=1", 4, 9)
    paired = by_method(tables.paired_table(rows, "native", 100))
    assert paired["sigma-zero"]["median_ratio"] == pytest.approx((20 / 9 + 10 / 9) / 2)
    budgets = by_method(tables.budget_table(rows, "native", 100))
    assert budgets["ours"]["settings"] == "x=1"
    assert tables.verdict(rows, "native", 100)["ours_settings"] == "x=1"
    assert tables.curve(rows, "native", 100)["ours"][-1] == (9.0, 1.0)
    text = tables_text.markdown(tables.all_tables(rows))
    assert "| ours | x=1 (best of 4) | 100 |" in text
    assert "| ours (x=1) | 100 |" in text
    assert tables.all_tables(rows[::-1]) == tables.all_tables(rows)  # whichever came first


def test_markdown_marks_the_papers_numbers() -> None:
    text = tables_text.markdown(tables.all_tables(ROWS))
    assert "## native, at most 100 classifier calls" in text
    assert "median B (paper)" in text
    assert "3,101" in text
    assert "| sigma-zero (paper) | 0 | 1 | 9 | 48 | 84 | 92 | 98 |" in text
    assert "Lowest median B: no (20 against 15 of the best rival, 15 of any other)" in text
    assert "Lowest B on 50% of 2 pictures that it and rivals fool (66.67% of 3" in text
    assert "Seconds" not in text
    shared = [{**one, "jobs": 8} for one in ROWS]
    assert "up to 8 rows at a time" in tables_text.markdown(tables.all_tables(shared))
