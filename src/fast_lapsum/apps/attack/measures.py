"""What an attacked picture is measured by, always as it would be saved: in whole 255ths.

The budget is the paper's B = sum_i e_i with e_i = 1/3 sum_c |x'_ic - I_ic|, the total change in
fully changed pixels; L0 counts the pixels with any change at all.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .protocol import Classifier


def round_to_8_bits(image: Tensor) -> Tensor:
    """The nearest picture in whole 255ths, as a file holds it; without a gradient."""
    levels = (image.detach().clamp(0, 1) * 255).round_()
    # By a number on the device: by one of the host a GPU multiplies with a rounded 1/255, and its
    # pictures would differ from those that are read from a file.
    return levels.div_(levels.new_full((), 255.0))


def pixel_changes(adversarial: Tensor, image: Tensor) -> Tensor:
    """e [H, W]: the mean absolute change of a pixel's three colours."""
    return (adversarial - image).abs().mean(-3)


def budget(adversarial: Tensor, image: Tensor) -> float:
    """B: the sum of the pixels' changes, in float64."""
    return float((adversarial - image).abs_().sum(dtype=torch.float64)) / 3


def changed_pixels(adversarial: Tensor, image: Tensor) -> int:
    """L0: how many pixels differ by half a level or more in a colour."""
    return int(((adversarial - image).abs() > 0.5 / 255).any(-3).sum())


class Measured(NamedTuple):
    """An attacked picture after it was saved and read back."""

    success: bool
    predicted: int
    confidence: float
    true_confidence: float
    budget: float
    changed_pixels: int


def through_png(image: Tensor) -> Tensor:
    """The picture [3, H, W] after saving as PNG and reading the file back (needs Pillow)."""
    import numpy as np
    from PIL import Image

    levels = (image.detach().clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(levels.cpu().numpy()).save(buffer, format="PNG", compress_level=1)
    buffer.seek(0)
    with Image.open(buffer) as read:
        back = torch.from_numpy(np.asarray(read).copy())
    return (back.permute(2, 0, 1).to(image.dtype) / 255).to(image.device)


def measure(
    classifier: Classifier,
    adversarial: Tensor,
    image: Tensor,
    label: int,
    target: int | None = None,
) -> Measured:
    """Save, read back and classify the picture: what anybody who gets the file will find."""
    saved = through_png(adversarial)
    probabilities = classifier.predict(saved[None])[0]
    predicted = int(probabilities.argmax())
    return Measured(
        predicted == target if target is not None else predicted != label,
        predicted,
        float(probabilities[predicted]),
        float(probabilities[label]),
        budget(saved, image),
        changed_pixels(saved, image),
    )
