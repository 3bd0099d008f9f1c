"""Tables of the examples, out of results/examples, for docs/tools/marked_parts.py."""

from __future__ import annotations

from typing import Any

from result_tables import environment_of, load, unbroken

#: Results files, and the script that writes each.
EXAMPLES = (
    *("sparse-autoencoder", "routed-language-model", "token-selection"),
    *("pruning", "top-k-loss", "ranking"),
)
#: Parts of a budget that are active on held-out data, and what they are called.
BUDGETS = {"active, as trained": "active / budget, as trained", "active": "active / budget"}


def example(name: str) -> str:
    """What an example measured: means of its seeds, and paired differences of ours."""
    results = load(f"examples/{name}.json")
    usual = [method for method in results["grids"] if method not in results["ours"]]
    known = {key for line in results["summary"] for key in line["means"]}
    budgets = {key: head for key, head in BUDGETS.items() if key in known}
    heads = ["", "method", results["measure"], *budgets.values()]
    heads += [f"against {method}" for method in usual]
    lines = ["| " + " | ".join(heads) + " |", "|---|---" + "|---:" * (len(heads) - 2) + "|"]
    before = None
    for line in results["summary"]:
        condition = results["conditions"][line["condition"]]
        cells = ["" if condition == before else unbroken(condition), line["method"]]
        cells.append(_number(line["means"]["test"]))
        means = line["means"]
        cells += [f"{means[key]:.3f}" if key in means else "" for key in budgets]
        differences = line.get("differences", {})
        cells += [_difference(differences[other]) if differences else "" for other in usual]
        lines.append("| " + " | ".join(cells) + " |")
        before = condition
    count, seeds = len(next(iter(results["grids"].values()))), len(results["seeds"])
    better = "less" if results["smaller_is_better"] else "more"
    text = (
        f"Means of {seeds} seeds, where {better} is better. Differences are those of equal seeds,\n"
        "with half of their 95% interval, and bold where it leaves 0 out. Every method chose\n"
        f"among {count} settings, by validation data of another seed:\n"
    )
    grids = "\n".join(f"- {name}: {_settings(grid)}" for name, grid in results["grids"].items())
    script = f"python examples/{name.replace('-', '_')}.py"
    source = (
        f"From `results/examples/{name}.json`,\nwritten by `{script}` on "
        f"{results['created'][:10]}:\n{environment_of(results)}."
    )
    return f"{text}\n{grids}\n\n{source}\n\n" + "\n".join(lines) + "\n"


def _settings(grid: list[dict[str, float]]) -> str:
    """The values that each part of a setting may have."""
    values = {key: sorted({one[key] for one in grid}) for key in grid[0]}
    return "; ".join(f"{key} {', '.join(f'{x:.4g}' for x in xs)}" for key, xs in values.items())


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.3f}"


def _difference(found: dict[str, Any]) -> str:
    half = (found["interval"][1] - found["interval"][0]) / 2
    text = unbroken(f"{found['mean']:+.3f} ± {half:.3f}")
    return text if found["verdict"] == "neither" else f"**{text}**"
