"""The pictures of the README, of pages that explain, and of two layers: `make pictures`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from fast_lapsum import soft_argsort, soft_rank, soft_sort, soft_topk, threshold
from fast_lapsum.nn import BudgetGate, SparseAttentionBias

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "docs" / "figures"
BLUE, ORANGE, GREEN, GREY = "#3f51b5", "#e07b00", "#2e8b57", "#888888"
STYLE = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "fast-lapsum",
}


def _laplace(u: Tensor) -> Tensor:
    tail = torch.exp(-u.abs()) / 2
    return torch.where(u < 0, tail, 1 - tail)


def _scores(count: int) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(3)).double()


def mask() -> Any:
    """The Laplace CDF, and one row's mask at three temperatures: the mass is k in all of them."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.7), width_ratios=(1, 1.5))
    u = torch.linspace(-5, 5, 401)
    left.plot(u, _laplace(u), color=BLUE)
    left.axvline(0, color=GREY, linewidth=0.8, linestyle=":")
    left.set(xlabel="u = (r - b) / t", ylabel="σ(u)", title="the Laplace CDF")

    _draw_masks(right)
    right.set(title="one row of 24, k = 8")
    return figure


def _draw_masks(axes: Any, *, with_sums: bool = False) -> None:
    scores = _scores(24).sort(descending=True).values
    places = torch.arange(1, 25)
    for t, color, marker in ((1.0, BLUE, "o"), (0.3, ORANGE, "s"), (0.03, GREEN, "^")):
        p = soft_topk(scores, 8, t)
        label = f"t = {t:g}" + (f", sum = {float(p.sum()):.6f}" if with_sums else "")
        axes.plot(places, p, color=color, marker=marker, markersize=4, linewidth=1, label=label)
    axes.axvline(8.5, color=GREY, linewidth=0.8, linestyle=":")
    axes.set(xlabel="scores, largest first", ylabel="p")
    axes.legend(frameon=False)


#: Methods that have a colour and a name in the README's picture; the others are grey.
NAMED = {
    "fast-lapsum": "#d95f02",
    "Official LapSum (vectorised)": "#1b9e77",
    "SOFT top-k (Sinkhorn)": "#c76aa6",
    "DFTopK": "#1f78b4",
    "SoftSort": "#b8860b",
}


def readme() -> Any:
    """What it does, and what that takes: masks of one row, and all methods' times on a GPU."""
    results = json.loads((ROOT / "results/cuda/operators.json").read_text(encoding="utf-8"))
    times: dict[str, dict[int, float]] = {}
    for row in results["rows"]:
        if row["status"] == "ok" and row["key"]["pass"] == "forward+backward":
            seconds = row["values"]["seconds"]["p50"]
            times.setdefault(row["key"]["method"], {})[row["key"]["n"]] = seconds
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.4), width_ratios=(1, 1.2))
    _draw_masks(left, with_sums=True)
    left.set(title="a budget of 8, at any temperature", ylim=(-0.05, 1.4), yticks=(0, 0.5, 1))
    # The named ones come last, over the others.
    for method in sorted(times, key=lambda name: (name in NAMED, name == "fast-lapsum")):
        found = times[method]
        is_ours = method == "fast-lapsum"
        right.loglog(
            list(found),
            [1e3 * seconds for seconds in found.values()],
            color=NAMED.get(method, "#cccccc"),
            linewidth=3 if is_ours else 1.4,
            label=method if method in NAMED else None,
        )
    right.plot([], [], color="#cccccc", label=f"{len(times) - len(NAMED)} others")
    right.set(xlabel="number of scores", ylabel="milliseconds")
    right.set(title=f"forward and backward, eager, {results['environment']['gpus'][0]}")
    lines, names = right.get_legend_handles_labels()
    order = sorted(range(len(names)), key=lambda at: names[at] != "fast-lapsum")
    right.legend(
        [lines[at] for at in order], [names[at] for at in order],
        frameon=False, loc="center left", bbox_to_anchor=(1, 0.5),
    )  # fmt: skip
    return figure


def budget() -> Any:
    """The mass as the threshold moves: it falls from n to 0 and meets k once."""
    scores, t, k = _scores(24), 0.3, 8
    b = float(threshold(scores, k, t))
    trials = torch.linspace(-3.2, 3.2, 400).double()
    mass = _laplace((scores - trials[:, None]) / t).sum(-1)
    figure, axes = plt.subplots(figsize=(7.2, 2.7))
    axes.plot(trials, mass, color=BLUE, label="F(b), the sum of all p")
    axes.plot(scores, torch.zeros(24), "|", color=GREY, markersize=10, label="scores")
    axes.axhline(k, color=GREY, linewidth=0.8, linestyle=":")
    axes.plot([b, b], [0, k], color=ORANGE, linewidth=1.2)
    axes.plot([b], [k], "o", color=ORANGE, label=f"the threshold: F(b) = {k}")
    axes.set(xlabel="b", ylabel="mass", ylim=(-0.8, 25))
    axes.legend(frameon=False)
    return figure


def band() -> Any:
    """What is read of a long row: everything once, and the scores of the band again."""
    count, t = 200_000, 0.1
    k = count // 16
    scores = _scores(count)
    b = float(threshold(scores, k, t))
    # A sample of n^(2/3) scores tells the share above b to 4 standard deviations.
    size, share = round(count ** (2 / 3)), k / count
    half_width = 4 * math.sqrt(share * (1 - share) / size)
    high, low = (float(scores.quantile(1 - share + sign * half_width)) for sign in (1, -1))
    figure, axes = plt.subplots(figsize=(7.2, 2.7))
    bins = torch.linspace(-3.6, 3.6, 121)
    middle = (bins[1:] + bins[:-1]) / 2
    heights = torch.histogram(scores.float(), bins).hist
    inside = (middle > low) & (middle < high)
    axes.bar(middle, heights, width=0.06, color="#c5cae9", label="tail sums: read, not kept")
    axes.bar(
        middle[inside], heights[inside], width=0.06, color=ORANGE, label="the band: scores are kept"
    )
    axes.axvline(b, color=BLUE, linewidth=1.5, label="b")
    axes.set(xlabel="scores", ylabel="how many")
    axes.legend(frameon=False)
    return figure


def ranking() -> Any:
    """Ranks and sorted scores of one row at three temperatures, and a soft permutation."""
    scores = _scores(24).sort().values
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(7.2, 2.6))
    for t, color, marker in ((1.0, BLUE, "o"), (0.3, ORANGE, "s"), (0.03, GREEN, "^")):
        style: dict[str, Any] = {"color": color, "marker": marker, "markersize": 3, "linewidth": 1}
        left.plot(scores, soft_rank(scores, t), label=f"t = {t:g}", **style)
        middle.plot(torch.arange(1, 25), soft_sort(scores, t), **style)
    left.set(xlabel="scores", ylabel="rank", title="soft_rank")
    left.legend(frameon=False, fontsize=7)
    middle.set(xlabel="place", ylabel="b(j - 1/2)", title="soft_sort")
    right.imshow(soft_argsort(scores, 0.1).dense(), cmap="Blues", vmin=0, vmax=1)
    right.set(xlabel="place", ylabel="score", title="soft_argsort, t = 0.1")
    return figure


def gates() -> Any:
    """How many scores pass at inference, as training goes on, and by row when it has ended."""
    k, rows, length = 16, 32, 1024
    generator = torch.Generator().manual_seed(3)

    def scaled(count: int, scales: int) -> Tensor:
        """Normal scores; the rows of a batch have one scale, and those of the next another."""
        scale = torch.randn(scales, 1, generator=generator).mul(0.15).exp()
        return scale * torch.randn(count, length, generator=generator)

    held_out = scaled(4096, 4096)
    gate = BudgetGate(k, temperature=0.1, budget="batch", momentum=None)
    own: list[float] = []
    passed: dict[str, list[float]] = {"of nn.BudgetGate": [], "mean of the batches' own": []}
    for _ in range(200):
        scores = scaled(rows, 1)
        gate(scores)
        own.append(float(scores.flatten().kthvalue(scores.numel() - k * rows).values))
        for found, b in zip(passed.values(), (gate.threshold, sum(own) / len(own)), strict=True):
            found.append(float((held_out > b).sum(-1).float().mean()))
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.7), width_ratios=(1.4, 1))
    for (name, counts), color in zip(passed.items(), (BLUE, ORANGE), strict=True):
        left.plot(range(1, 201), counts, color=color, label=name)
    left.axhline(k, color=GREY, linewidth=0.8, linestyle=":")
    left.set(xlabel="batches of training", ylabel="scores over it, per row", ylim=(0, 30))
    left.set(title=f"two thresholds, k = {k}")
    left.legend(frameon=False)
    per_row = gate.eval()(held_out).sum(-1)
    right.hist(per_row, bins=range(0, 61, 3), color="#c5cae9")
    mean = float(per_row.mean())
    right.axvline(mean, color=BLUE, label=f"mean {mean:.1f}")
    right.set(xlabel="scores that pass", ylabel="rows", title="nn.BudgetGate in eval()")
    right.legend(frameon=False)
    return figure


def attention() -> Any:
    """What an indexer's scores make of causal attention: selections, and the weights of both."""
    queries, k = 24, 4
    generator = torch.Generator().manual_seed(3)
    scores, products = torch.randn(2, queries, queries, generator=generator)
    bias = SparseAttentionBias(k, temperature=0.5)
    # Squares that fill the width: with less height their titles would be cut off.
    figure, panels = plt.subplots(1, 3, figsize=(7.2, 3.0), sharey=True)
    training, inference = bias(scores), bias.eval()(scores)
    for axes, shown, title in (
        (panels[0], training.exp(), "p in training"),
        (panels[1], (products + training).softmax(-1), "softmax(qk + log p)"),
        (panels[2], (products + inference).softmax(-1), "the same in eval()"),
    ):
        axes.imshow(shown, cmap="Blues", vmin=0, vmax=1)
        axes.set(xlabel="key", title=title)
    panels[0].set(ylabel="query")
    return figure


PICTURES = {
    "mask": mask,
    "budget-curve": budget,
    "band": band,
    "ranking": ranking,
    "gates": gates,
    "attention": attention,
}


def main() -> None:
    """Draw them all."""
    with plt.rc_context(STYLE):
        for name, draw in PICTURES.items():
            figure = draw()
            figure.savefig(FIGURES / f"how-{name}.svg", metadata={"Date": None})
            plt.close(figure)
        # A package index takes no SVG from elsewhere.
        figure = readme()
        figure.savefig(FIGURES / "readme.png", dpi=160, metadata={"Software": None})
        plt.close(figure)


if __name__ == "__main__":
    main()
