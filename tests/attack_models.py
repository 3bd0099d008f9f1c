"""A classifier small enough to train inside the tests, and the pictures it knows."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fast_lapsum.apps.attack.protocol import Classifier

SIDE = 32
SHAPES = ("disc", "square", "horizontal bars", "vertical bars")


def draw(label: int, generator: torch.Generator, side: int = SIDE) -> Tensor:
    """A shape of the given class in two random colours at a random place, in whole 255ths."""
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    middle = side / 2 + (torch.rand(2, generator=generator) - 0.5) * side / 4
    radius = side * (0.2 + 0.1 * float(torch.rand((), generator=generator)))
    down, across = rows - middle[0], columns - middle[1]
    inside = {
        0: down**2 + across**2 < radius**2,
        1: torch.maximum(down.abs(), across.abs()) < radius * 0.9,
        2: (rows + int(middle[0])) % 8 < 4,
        3: (columns + int(middle[1])) % 8 < 4,
    }[label]
    dark = torch.rand(3, 1, 1, generator=generator) * 0.35 + 0.05
    light = torch.rand(3, 1, 1, generator=generator) * 0.35 + 0.6
    picture = torch.where(inside, light, dark)
    noise = torch.randn(3, side, side, generator=generator) * 0.03
    return ((picture + noise).clamp(0, 1) * 255).round() / 255


def pictures(count: int, seed: int = 0, side: int = SIDE) -> tuple[Tensor, Tensor]:
    """``count`` pictures of the classes in turn, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % len(SHAPES)
    return torch.stack([draw(int(label), generator, side) for label in labels]), labels


class SmallNet(nn.Module):
    """Three convolutions and a mean: sees any size."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Linear(32, len(SHAPES))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.layers(images * 2 - 1).mean((-2, -1)))


@functools.cache
def trained_net() -> SmallNet:
    """The network after a short training, the same in every run."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = SmallNet()
    images, labels = pictures(256)
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(1)
    for _ in range(80):
        chosen = torch.randint(0, len(images), (32,), generator=generator)
        loss = F.cross_entropy(net(images[chosen]), labels[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return net.eval().requires_grad_(False)


def trained_classifier() -> Classifier:
    """A fresh counter around the trained network."""
    return Classifier(trained_net(), SHAPES, name="small net")


def confident_pictures(count: int = 4, seed: int = 7) -> tuple[Tensor, Tensor]:
    """Pictures that the trained network gets right with a confidence of 0.8 or more."""
    images, labels = pictures(8 * count, seed)
    probabilities = torch.softmax(trained_net()(images), -1)
    sure = probabilities.gather(-1, labels[:, None])[:, 0] >= 0.8
    return images[sure][:count], labels[sure][:count]
