"""The pictures of docs/how-it-works.md, ranking.md and the first page: `make pictures`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from fast_lapsum import soft_argsort, soft_rank, soft_sort, soft_topk, threshold

FIGURES = Path(__file__).resolve().parents[1] / "figures"
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

    scores = _scores(24).sort(descending=True).values
    places = torch.arange(1, 25)
    for t, color, marker in ((1.0, BLUE, "o"), (0.3, ORANGE, "s"), (0.03, GREEN, "^")):
        p = soft_topk(scores, 8, t)
        right.plot(
            places, p, color=color, marker=marker, markersize=4, linewidth=1, label=f"t = {t:g}"
        )
    right.axvline(8.5, color=GREY, linewidth=0.8, linestyle=":")
    right.set(xlabel="scores, largest first", ylabel="p", title="one row of 24, k = 8")
    right.legend(frameon=False)
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
    give = 4 * math.sqrt(share * (1 - share) / size)
    high, low = (float(scores.quantile(1 - share + sign * give)) for sign in (1, -1))
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


PICTURES = {"mask": mask, "budget-curve": budget, "band": band, "ranking": ranking}


def main() -> None:
    """Draw them all."""
    with plt.rc_context(STYLE):
        for name, draw in PICTURES.items():
            figure = draw()
            figure.savefig(FIGURES / f"how-{name}.svg", metadata={"Date": None})
            plt.close(figure)


if __name__ == "__main__":
    main()
