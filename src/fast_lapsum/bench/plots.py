"""Pictures. matplotlib is needed here and nowhere else: the extra ``[bench]`` brings it."""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from torch import Tensor

from fast_lapsum import soft_topk

TEMPERATURES = (2.0, 0.5, 0.1, 0.01)
#: Evenly spread over viridis, whose lightness alone tells the curves apart.
COLOURS = [colormaps["viridis"](position) for position in (0.85, 0.6, 0.35, 0.05)]
POINTS = 2000
IMAGE_SIDE = 192
FIELD_SEED = 3
BLUR = 7


def draw_masks(scores: Tensor, k: float, path: Path) -> None:
    """Masks and sensitivities over the sorted scores, and the mask of a picture, by temperature.

    The suffix of ``path`` says what is written.
    """
    figure = Figure(figsize=(13, 6.8), dpi=120, layout="constrained")
    curves, images = figure.subfigures(1, 2, squeeze=False, width_ratios=(1.12, 1))[0]
    mask_axes, sensitivity_axes = curves.subplots(2, 1, sharex=True, height_ratios=(1.6, 1))
    ordered = scores.cpu().sort(descending=True).values
    _draw_mask_curves(mask_axes, ordered, k)
    _draw_sensitivities(sensitivity_axes, ordered, k)
    field = _random_field(IMAGE_SIDE)
    field_budget = field.numel() * k / scores.numel()
    images.suptitle(f"the same share of {IMAGE_SIDE} x {IMAGE_SIDE} pixels, softer to harder")
    image_axes = images.subplots(2, 2)
    for axes, temperature in zip(image_axes.flat, TEMPERATURES, strict=True):
        image = _draw_image(axes, field, field_budget, temperature)
    images.colorbar(image, ax=image_axes, location="bottom", shrink=0.6, aspect=40, label="mask p")
    figure.suptitle(
        f"soft top-k of {scores.numel():,} scores: every mask spends exactly k = {k:,.10g}",
        fontsize="x-large",
    )
    figure.savefig(path, format=path.suffix[1:].lower())


def _draw_mask_curves(axes: Axes, ordered: Tensor, k: float) -> None:
    ranks = _ranks(ordered, k)
    for temperature, colour in zip(TEMPERATURES, COLOURS, strict=True):
        mask = soft_topk(ordered, k, temperature)
        spent = float(mask.double().sum())
        axes.plot(
            ranks.numpy(),
            mask[ranks].numpy(),
            color=colour,
            linewidth=2.2,
            label=f"t = {temperature:<4g}  sum p = {spent:,.7g}",
        )
    end = int(ranks[-1])
    axes.plot([0, k, k, end], [1, 1, 0, 0], "k--", linewidth=1.2, label="hard top-k")
    axes.set(ylabel="mask p", ylim=(-0.03, 1.05), title="the area under every curve is k")
    axes.legend(frameon=False, prop={"family": "monospace", "size": "small"})
    _tidy(axes)


def _draw_sensitivities(axes: Axes, ordered: Tensor, k: float) -> None:
    """dp/du = exp(-|u|) / 2, with u = (r - b) / t: where the gradient goes."""
    ranks = _ranks(ordered, k)
    for temperature, colour in zip(TEMPERATURES, COLOURS, strict=True):
        mask = soft_topk(ordered, k, temperature)[ranks]
        axes.plot(ranks.numpy(), torch.minimum(mask, 1 - mask).numpy(), color=colour, linewidth=2.2)
    axes.set(
        xlabel="scores, sorted from the largest",
        ylabel="gradient weight",
        ylim=(-0.02, 0.54),
        title="a score learns while it is near the threshold",
    )
    axes.xaxis.set_major_formatter(lambda rank, _: f"{rank:,.0f}")
    _tidy(axes)


def _draw_image(axes: Axes, field: Tensor, k: float, temperature: float) -> AxesImage:
    mask = soft_topk(field.flatten(), k, temperature).view_as(field)
    image = axes.imshow(mask.numpy(), cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
    spent = float(mask.double().sum())
    axes.set_title(f"t = {temperature:g},  sum p = {spent:,.7g}", fontsize="medium")
    axes.set_axis_off()
    return image


def _ranks(ordered: Tensor, k: float) -> Tensor:
    """Places in the sorted order from the first to well past the budget."""
    last = min(ordered.numel() - 1, max(int(4 * k), 1))
    return torch.linspace(0, last, min(POINTS, last + 1)).long()


def _random_field(side: int) -> Tensor:
    """A smooth landscape of unit variance: white noise, blurred over BLUR pixels."""
    noise = torch.randn(side, side, generator=torch.Generator().manual_seed(FIELD_SEED))
    frequency = 2 * torch.pi * torch.fft.fftfreq(side)
    squared = frequency[:, None] ** 2 + frequency[None, :] ** 2
    blur = torch.exp(-squared * BLUR**2 / 2)
    smooth: Tensor = torch.fft.ifft2(torch.fft.fft2(noise) * blur).real
    return smooth / smooth.std()


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.01)
    axes.grid(alpha=0.25)
