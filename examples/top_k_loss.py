"""Train for the first k: a small classifier of digits whose label should be among its first three.

Pictures are scikit-learn's digits, shrunk to 4 x 4 pixels, and the classifier is linear, so that it
cannot be right about all of them. A share of the training labels may be wrong. The usual ways are
the cross entropy, with labels smoothed or not, and the hinge loss of the k-th score (Lapin,
Hein and Schiele). Ours is `losses.TopKCrossEntropyLoss`, all of whose weight is on k = 3.

    python examples/top_k_loss.py            # about two minutes, resumable
    python examples/top_k_loss.py --short    # seconds, into build/examples
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from study import Method, Run, Study, Values, grid, main
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy

from fast_lapsum.losses import TopKCrossEntropyLoss

PROTOCOL = {"k": 3, "steps": 600, "batch": 200, "validation": 600, "test": 600}
NOISE = {"clean labels": 0.0, "noisy labels": 0.3}


def split(seed: int, validation: int, test: int) -> list[tuple[Tensor, Tensor]]:
    """Pictures and labels: of training, validation and test."""
    digits = load_digits()
    pictures = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    pictures = avg_pool2d(pictures, 2).flatten(1)
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    parts = order.split([len(labels) - validation - test, validation, test])
    return [(pictures[part], labels[part]) for part in parts]


def hinge(scores: Tensor, labels: Tensor, k: int) -> Tensor:
    """One plus the k-th best of the wrong classes, less the right one's score, if positive."""
    right = scores.gather(1, labels[:, None]).squeeze(1)
    wrong = scores.scatter(1, labels[:, None], -torch.inf)
    return (1 + wrong.topk(k, 1).values.mean(1) - right).relu().mean()


def loss_of(run: Run, scores: Tensor, labels: Tensor) -> Tensor:
    """The loss of a method."""
    k = run.protocol["k"]
    if run.method == "cross entropy":
        return cross_entropy(scores, labels, label_smoothing=run.setting["smoothing"])
    if run.method == "top-k hinge":
        return hinge(scores / run.setting["scale"], labels, k)
    loss = TopKCrossEntropyLoss([0.0] * (k - 1) + [1.0], temperature=run.setting["temperature"])
    return loss(scores, labels)


def train(run: Run) -> Values:
    """One classifier."""
    protocol = run.protocol
    parts = split(run.seed, protocol["validation"], protocol["test"])
    pictures, labels = parts[0]
    is_wrong = torch.rand(len(labels)) < NOISE[run.condition]
    labels = torch.where(is_wrong, torch.randint_like(labels, 10), labels)
    model = nn.Linear(16, 10)
    optimiser = torch.optim.Adam(model.parameters(), lr=run.setting["rate"], weight_decay=1e-4)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, protocol["steps"])
    for _ in range(protocol["steps"]):
        chosen = torch.randint(len(labels), (protocol["batch"],))
        optimiser.zero_grad()
        loss_of(run, model(pictures[chosen]), labels[chosen]).backward()
        optimiser.step()
        decay.step()
    values = {}
    with torch.no_grad():
        for name, (x, y) in zip(("validation", "test"), parts[1:], strict=True):
            first = model(x).topk(protocol["k"], 1).indices
            values[name] = 100 * float((first == y[:, None]).any(1).float().mean())
        values["top-1"] = 100 * float((first[:, 0] == y).float().mean())
    return values


RATES = (1e-2, 3e-2, 1e-1)
STUDY = Study(
    name="top-k-loss",
    text=__doc__ or "",
    methods=(
        Method("cross entropy", grid(rate=RATES, smoothing=(0.0, 0.1))),
        Method("top-k hinge", grid(rate=RATES, scale=(1.0, 0.3))),
        Method("TopKCrossEntropyLoss", grid(rate=RATES, temperature=(0.3, 1.0)), is_ours=True),
    ),
    conditions={name: name for name in NOISE},
    measure="top-3 accuracy, %",
    smaller_is_better=False,
    protocol=PROTOCOL,
    short={"steps": 20},
    train=train,
)

if __name__ == "__main__":
    main(STUDY)
