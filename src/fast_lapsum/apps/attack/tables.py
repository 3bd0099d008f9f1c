"""The paper's three tables and its curve from the rows of ``attack-bench``, its numbers beside.

``tab:attack-main`` (share fooled, median B), ``tab:attack-paired`` (B of a method over ours, on the
pictures that both fool), ``tab:attack-budget`` (share fooled within a total change) and the steps
of ``fig:budget-success``. A picture that a method does not fool counts as not fooled everywhere; a
median is over the fooled ones, and None where there is none. A method that was run with several
settings, ours too, is shown everywhere with those that are its best at that setting and calls.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median
from typing import Any, NamedTuple

from .methods import METHODS, base_name

Row = dict[str, Any]

OURS = "ours"
#: Parts of ours: in the tables, but nothing that ours could lose to.
_ABLATIONS = ("no-operator", "no-race")
#: The paper's own, beside which everything is said twice.
NO_RIVALS = ("paper-recipe", "dense")
#: The columns of tab:attack-budget.
BUDGETS = (100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)
#: What the paper's numbers were measured on.
PAPER_SETTING = "ConvNeXt-V2, 237 confident DIV2K pictures at native resolution"


class Published(NamedTuple):
    """What the paper prints for one method; None where it has a dash."""

    fooled: float
    median: float | None
    both: int | None
    median_ratio: float | None
    mean_ratio: float | None
    wins: float | None
    within: tuple[float, ...]


#: The paper's cells: tab:attack-main, tab:attack-paired and tab:attack-budget.
PAPER = {
    "ours": Published(100, 199.8, None, None, None, None, (14, 78, 99, 100, 100, 100, 100)),
    "sigma-zero": Published(98, 3101.0, 233, 15, 19, 100, (0, 1, 9, 48, 84, 92, 98)),
    "sparse-pgd": Published(100, 16134.2, 237, 54, 43, 100, (0, 0, 0, 32, 32, 100, 100)),
    "pgd-l0": Published(100, 74553.3, 237, 275, 286, 100, (0, 0, 0, 0, 0, 31, 98)),
    "sparse-fool": Published(0, None, 0, None, None, None, (0, 0, 0, 0, 0, 0, 0)),
}


def paper_numbers() -> dict[str, Any]:
    """The paper's cells for a results file, with what they were measured on."""
    return {
        "measured_on": PAPER_SETTING,
        "budgets": list(BUDGETS),
        "methods": {name: cells._asdict() for name, cells in PAPER.items()},
    }


def groups(rows: Iterable[Row]) -> list[tuple[str, int]]:
    """The (setting, calls) that there are rows for, in a stable order."""
    return sorted({(row["key"]["setting"], row["key"]["calls"]) for row in rows})


def main_table(rows: list[Row], setting: str, calls: int) -> list[dict[str, Any]]:
    """tab:attack-main, with what else was measured."""
    table = []
    tried = _variants(rows, setting, calls)
    for method, found in _by_method(rows, setting, calls).items():
        fooled = [row["values"] for row in found if _fools(row)]
        paper = PAPER.get(method)
        table.append(
            {
                "method": method,
                "settings": _settings(found),
                "settings_tried": len(tried[method]),
                "pictures": len(found),
                "fooled_percent": 100 * len(fooled) / len(found),
                "median_B": _median(value["B"] for value in fooled),
                "median_L0": _median(value["L0"] for value in fooled),
                "median_L_star": _median(
                    value["L_star"] for value in fooled if value.get("L_star") is not None
                ),
                "median_calls": _median(row["values"]["calls"] for row in _measured(found)),
                "median_seconds": _median(row["values"]["seconds"] for row in _measured(found)),
                "jobs": max(row.get("jobs", 1) for row in found),
                "ended_otherwise": _endings(found),
                "paper_fooled_percent": paper.fooled if paper else None,
                "paper_median_B": paper.median if paper else None,
            }
        )
    return table


def paired_table(rows: list[Row], setting: str, calls: int) -> list[dict[str, Any]]:
    """tab:attack-paired: B of each method over ours where both fool."""
    by_method = _by_method(rows, setting, calls)
    ours = {
        row["key"]["picture"]: row["values"]["B"] for row in by_method.get(OURS, []) if _fools(row)
    }
    table = []
    for method, found in by_method.items():
        if method == OURS:
            continue
        pairs = [
            (row["values"]["B"], ours[row["key"]["picture"]])
            for row in found
            if _fools(row) and row["key"]["picture"] in ours
        ]
        # A change of nothing cannot fool, so no B is zero.
        ratios = [theirs / our for theirs, our in pairs]
        paper = PAPER.get(method)
        table.append(
            {
                "method": method,
                "settings": _settings(found),
                "both_fool": len(ratios),
                "median_B": _median(theirs for theirs, _ in pairs),
                "ours_median_B": _median(our for _, our in pairs),
                "median_ratio": _median(ratios),
                "geometric_mean_ratio": (
                    math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None
                ),
                "ours_wins_percent": (
                    100 * sum(ratio > 1 for ratio in ratios) / len(ratios) if ratios else None
                ),
                "paper_both_fool": paper.both if paper else None,
                "paper_median_ratio": paper.median_ratio if paper else None,
                "paper_geometric_mean_ratio": paper.mean_ratio if paper else None,
                "paper_ours_wins_percent": paper.wins if paper else None,
            }
        )
    return table


def budget_table(rows: list[Row], setting: str, calls: int) -> list[dict[str, Any]]:
    """tab:attack-budget: percent fooled with B at most each of the paper's columns."""
    table = []
    for method, found in _by_method(rows, setting, calls).items():
        spent = [row["values"]["B"] for row in found if _fools(row)]
        paper = PAPER.get(method)
        table.append(
            {
                "method": method,
                "settings": _settings(found),
                "pictures": len(found),
                "within_percent": {
                    str(most): 100 * sum(one <= most for one in spent) / len(found)
                    for most in BUDGETS
                },
                "paper_within_percent": (
                    dict(zip(map(str, BUDGETS), paper.within, strict=True)) if paper else None
                ),
            }
        )
    return table


def curve(rows: list[Row], setting: str, calls: int) -> dict[str, list[tuple[float, float]]]:
    """fig:budget-success: for every method the points (B, share fooled within B), ascending."""
    found = {}
    for method, group in _by_method(rows, setting, calls).items():
        spent = sorted(row["values"]["B"] for row in group if _fools(row))
        found[method] = [(B, (index + 1) / len(group)) for index, B in enumerate(spent)]
    return found


def verdict(rows: list[Row], setting: str, calls: int) -> dict[str, Any]:
    """Whether ours has the lowest median B, how often it wins, and the dense control over it.

    The paper's recipe and the dense control are no rivals, so everything is said twice: against
    rivals, and against all other methods. A picture is jointly fooled if ours and any of the others
    fool it, and won where ours is lower than every other that fools it. Methods fool different
    pictures, so medians are also taken two by two, over those that ours and the other both fool.
    """
    by_method = _by_method(rows, setting, calls)
    spent = {
        name: {row["key"]["picture"]: row["values"]["B"] for row in found if _fools(row)}
        for name, found in by_method.items()
    }
    ours = spent.pop(OURS, {})
    for name in _ABLATIONS:
        spent.pop(name, None)
    rivals = {name: found for name, found in spent.items() if name not in NO_RIVALS}
    middle = _median(ours.values())
    best_rival, best_other = _lowest_median(rivals), _lowest_median(spent)
    contested, won = _won(ours, rivals)
    contested_by_all, won_of_all = _won(ours, spent)
    both = {name: _medians_where_both(ours, found) for name, found in spent.items()}
    dense = spent.get("dense", {})
    return {
        "ours_fools_all": len(ours) == len(by_method.get(OURS, [])) > 0,
        "ours_settings": _settings(by_method[OURS]) if OURS in by_method else None,
        "ours_median_B": middle,
        "best_rival_median_B": best_rival,
        "ours_lowest_median": _is_lower(middle, best_rival),
        "ours_lower_where_both_fool": bool(ours)
        and all(pair is None or pair[0] < pair[1] for pair in map(both.get, rivals)),
        "medians_where_both_fool": both,
        "contested": contested,
        "won_percent": won,
        "best_other_median_B": best_other,
        "ours_lowest_median_of_all": _is_lower(middle, best_other),
        "contested_by_all": contested_by_all,
        "won_percent_of_all": won_of_all,
        "won_percent_against": {name: _won(ours, {name: spent[name]})[1] for name in spent},
        "dense_over_ours": _median(
            dense[picture] / ours[picture] for picture in ours if picture in dense
        ),
    }


def _won(ours: dict[str, float], others: dict[str, dict[str, float]]) -> tuple[int, float | None]:
    """Pictures that ours and any other fool, and the percentage of them where ours is lowest."""
    joint = [picture for picture in ours if any(picture in found for found in others.values())]
    won = sum(
        all(ours[picture] < found.get(picture, math.inf) for found in others.values())
        for picture in joint
    )
    return len(joint), 100 * won / len(joint) if joint else None


def _medians_where_both(
    ours: dict[str, float], other: dict[str, float]
) -> tuple[float, float] | None:
    """Of ours and of the other, over the pictures that both fool."""
    shared = sorted(ours.keys() & other.keys())
    if not shared:
        return None
    return median(ours[name] for name in shared), median(other[name] for name in shared)


def _lowest_median(spent: dict[str, dict[str, float]]) -> float | None:
    return min((median(found.values()) for found in spent.values() if found), default=None)


def _is_lower(ours: float | None, other: float | None) -> bool:
    return ours is not None and (other is None or ours < other)


def all_tables(rows: list[Row]) -> list[dict[str, Any]]:
    """Every table for every setting and number of calls, ready for JSON."""
    return [
        {
            "setting": setting,
            "calls": calls,
            "tab:attack-main": main_table(rows, setting, calls),
            "tab:attack-paired": paired_table(rows, setting, calls),
            "tab:attack-budget": budget_table(rows, setting, calls),
            "fig:budget-success": curve(rows, setting, calls),
            "verdict": verdict(rows, setting, calls),
        }
        for setting, calls in groups(rows)
    ]


def _by_method(rows: Iterable[Row], setting: str, calls: int) -> dict[str, list[Row]]:
    """Rows of every method at its best settings here, in the order of ``METHODS``.

    The best settings fool most pictures, and among those have the lowest median B.
    """
    found = _variants(rows, setting, calls)
    return {name: min(variants, key=_rank) for name, variants in found.items()}


def _variants(rows: Iterable[Row], setting: str, calls: int) -> dict[str, list[list[Row]]]:
    """Rows of every method here, apart for each of its settings.

    Methods are in the order of ``METHODS``, whichever row of a run with several jobs came first.
    """
    found: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        key = row["key"]
        if (key["setting"], key["calls"]) == (setting, calls):
            base = base_name(key["method"])
            found.setdefault(base, {}).setdefault(key["method"], []).append(row)
    known = list(METHODS)
    names = sorted(found, key=lambda name: known.index(name) if name in known else len(known))
    return {name: [found[name][text] for text in sorted(found[name])] for name in names}


def _rank(rows: list[Row]) -> tuple[int, float]:
    spent = [row["values"]["B"] for row in rows if _fools(row)]
    return -len(spent), median(spent) if spent else math.inf


def _settings(rows: list[Row]) -> str:
    return str(rows[0]["key"]["method"].partition(":")[2])


def _fools(row: Row) -> bool:
    return row["status"] == "ok" and bool(row["values"]["success"])


def _measured(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row["status"] == "ok"]


def _endings(rows: Iterable[Row]) -> dict[str, int]:
    """How many rows ended other than by the number of calls: time-outs, errors, no memory."""
    counted: dict[str, int] = {}
    for row in rows:
        ending = row["status"]
        if ending == "ok":
            ending = "timeout" if row["values"].get("timed_out") else ""
        if ending:
            counted[ending] = counted.get(ending, 0) + 1
    return counted


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return float(median(found)) if found else None
