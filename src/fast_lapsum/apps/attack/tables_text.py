"""The tables for people, as Markdown; the paper's numbers marked as the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .tables import BUDGETS, NO_RIVALS, PAPER_SETTING


def markdown(tables: list[dict[str, Any]]) -> str:
    """The tables for people; the paper's numbers in columns of their own, marked as the paper's."""
    parts = [
        "# Sparse attack, all methods",
        f"Columns marked *paper* are the paper's own numbers ({PAPER_SETTING}): another classifier"
        " and other pictures, so they compare within a column, not across.",
    ]
    for group in tables:
        parts.append(f"## {group['setting']}, at most {group['calls']:,} classifier calls")
        parts += _main_markdown(group["tab:attack-main"])
        parts += _paired_markdown(group["tab:attack-paired"])
        parts += _budget_markdown(group["tab:attack-budget"])
        parts.append(_verdict_sentence(group["verdict"]))
    return "\n\n".join(parts) + "\n"


def _main_markdown(table: list[dict[str, Any]]) -> list[str]:
    header = (
        "method", "settings", "fooled %", "median B", "median L0", "median L*", "median calls",
        "median seconds", "not finished", "fooled % (paper)", "median B (paper)",
    )  # fmt: skip
    lines = [
        (
            row["method"],
            _chosen(row),
            _number(row["fooled_percent"]),
            _number(row["median_B"]),
            _number(row["median_L0"]),
            _number(row["median_L_star"]),
            _number(row["median_calls"]),
            _number(row["median_seconds"]),
            ", ".join(f"{count} {why}" for why, count in row["ended_otherwise"].items()) or "0",
            _number(row["paper_fooled_percent"]),
            _number(row["paper_median_B"]),
        )
        for row in table
    ]
    parts = ["### tab:attack-main", _table(header, lines)]
    jobs = max(row["jobs"] for row in table)
    if jobs > 1:
        parts.append(f"Seconds were taken with up to {jobs} rows at a time: they do not compare.")
    return parts


def _paired_markdown(table: list[dict[str, Any]]) -> list[str]:
    header = (
        "method", "both fool", "median B", "median B of ours", "median ratio", "geometric mean",
        "ours wins %",
        "both fool (paper)", "median ratio (paper)", "geometric mean (paper)",
        "ours wins % (paper)",
    )  # fmt: skip
    names = ("both_fool", "median_ratio", "geometric_mean_ratio", "ours_wins_percent")
    measured = ("both_fool", "median_B", "ours_median_B", *names[1:])
    lines = [
        (
            _named(row),
            *(_number(row[name]) for name in measured),
            *(_number(row[f"paper_{name}"]) for name in names),
        )
        for row in table
    ]
    title = "### tab:attack-paired, B of the method over B of ours, on pictures that both fool"
    return [title, _table(header, lines)]


def _budget_markdown(table: list[dict[str, Any]]) -> list[str]:
    header = ("method", *(f"<= {most:,}" for most in BUDGETS))
    lines = []
    for row in table:
        lines.append((_named(row), *map(_number, row["within_percent"].values())))
        if row["paper_within_percent"]:
            values = row["paper_within_percent"].values()
            lines.append((f"{row['method']} (paper)", *map(_number, values)))
    return ["### tab:attack-budget, percent fooled with B at most", _table(header, lines)]


def _verdict_sentence(found: dict[str, Any]) -> str:
    against = ", ".join(
        f"{name} {_number(percent)}%"
        for name, percent in found["won_percent_against"].items()
        if percent is not None
    )
    both = ", ".join(
        f"{_number(pair[0])} against {_number(pair[1])} of {name}"
        for name, pair in found["medians_where_both_fool"].items()
        if pair is not None
    )
    others = [name for name in found["won_percent_against"] if name in NO_RIVALS]
    any_other = f", {_number(found['best_other_median_B'])} of any other" if others else ""
    of_all = (
        f" ({_number(found['won_percent_of_all'])}% of {found['contested_by_all']} with"
        f" {' and '.join(others)})"
        if others
        else ""
    )
    dense = found["dense_over_ours"]
    return (
        f"Ours fools all: {_yes(found['ours_fools_all'])}. Lowest median B:"
        f" {_yes(found['ours_lowest_median'])} ({_number(found['ours_median_B'])} against"
        f" {_number(found['best_rival_median_B'])} of the best rival{any_other}). These are over"
        " what each fools; over the pictures that both fool ours is lower than every rival:"
        f" {_yes(found['ours_lower_where_both_fool'])} ({both or 'none'}). Lowest B on"
        f" {_number(found['won_percent'])}% of {found['contested']} pictures that it and rivals"
        f" fool{of_all}; against each alone: {against or 'none'}."
        + ("" if dense is None else f" Dense control over ours: {_number(dense)}x.")
    )


def _chosen(row: dict[str, Any]) -> str:
    """The settings shown, and of how many."""
    name = row["settings"] or "default"
    return f"{name} (best of {row['settings_tried']})" if row["settings_tried"] > 1 else name


def _named(row: dict[str, Any]) -> str:
    return f"{row['method']} ({row['settings']})" if row["settings"] else row["method"]


def _table(header: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> str:
    rule = ("---", *("---:" for _ in header[1:]))
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *lines))


def _number(value: float | None) -> str:
    """Four digits, thousands apart; a dash for nothing.

    >>> _number(None), _number(74553.3), _number(199.8), _number(0.01234)
    ('–', '74,553', '199.8', '0.01234')
    """
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
