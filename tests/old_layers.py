"""Makes ``data/layers-0.1.pt`` and ``data/layers-0.1-whole.pt`` with the code of version 0.1.

That is the last commit before anything was "Unreleased" in the changelog; its code runs without
being built:

    git archive 4796933^ src | tar x -C OLD
    PYTHONPATH=OLD/src python tests/old_layers.py tests/data

with a Python that has torch and no other fast-lapsum installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import fast_lapsum
from fast_lapsum.nn import SoftTopK


def make(folder: Path) -> None:
    torch.manual_seed(0)
    layers = torch.nn.ModuleDict(
        {
            "fixed": SoftTopK(3.5, 0.1),
            "learned": SoftTopK(3, 0.5, num_scores=12, learn_k=True, learn_temperature=True),
            "budget": SoftTopK(2, 0.3, num_scores=12, learn_k=True),
            "temperature": SoftTopK(4, 0.2, learn_temperature=True, hard=True),
        }
    )
    scores = torch.randn(4, 12)
    optimiser = torch.optim.Adam(layers.parameters(), lr=0.1)
    for _ in range(5):
        optimiser.zero_grad()
        sum((layer(scores) * torch.arange(12.0)).sum() for layer in layers.values()).backward()
        optimiser.step()
    with torch.no_grad():
        record = {
            "version": fast_lapsum.__version__,
            "state_dict": layers.state_dict(),
            "scores": scores,
            "masks": {name: layer(scores) for name, layer in layers.items()},
            "values": {
                name: (float(layer.k), float(layer.temperature)) for name, layer in layers.items()
            },
        }
    torch.save(record, folder / "layers-0.1.pt")
    torch.save(layers, folder / "layers-0.1-whole.pt")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
