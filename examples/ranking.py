"""Learn to rank: order lists of handwritten digits by their value, the largest first.

A list has 20 pictures of scikit-learn's digits, shrunk to 4 x 4 pixels, and a small network gives
each a score; gains are the squares of the digits. The usual ways are regression of the gains, the
softmax cross entropy of ListNet, and the pairwise logistic loss of RankNet. Ours are
`losses.soft_ndcg`, of the first five, and `losses.spearman_loss`. What counts is NDCG of the first
five, on lists of pictures that were not trained on.

    python examples/ranking.py            # about two minutes, resumable
    python examples/ranking.py --short    # seconds, into build/examples
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from study import Method, Run, Study, Values, grid, main
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, mse_loss, softplus

from fast_lapsum import soft_rank
from fast_lapsum.losses import soft_ndcg, spearman_loss

PROTOCOL = {
    "length": 20, "first": 5, "lists": 32, "steps": 500, "hidden": 32, "validation": 600,
    "test": 600, "tested_lists": 1000,
}  # fmt: skip
NOISE = {"clean": 0.0, "noisy gains": 0.3}


def split(seed: int, validation: int, test: int) -> list[tuple[Tensor, Tensor]]:
    """Pictures and digits: of training, validation and test."""
    digits = load_digits()
    pictures = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    pictures = avg_pool2d(pictures, 2).flatten(1)
    values = torch.tensor(digits.target, dtype=torch.float32)
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))
    parts = order.split([len(values) - validation - test, validation, test])
    return [(pictures[part], values[part]) for part in parts]


def loss_of(run: Run, scores: Tensor, gains: Tensor) -> Tensor:
    """The loss of a method, for lists of scores."""
    t = run.setting["temperature"]
    if run.method == "regression":
        return mse_loss(scores, gains / t)
    if run.method == "ListNet":
        return -((gains / t).softmax(-1) * scores.log_softmax(-1)).sum(-1).mean()
    if run.method == "RankNet":
        is_before = gains.unsqueeze(-1) > gains.unsqueeze(-2)
        wrong = scores.unsqueeze(-2) - scores.unsqueeze(-1)
        return (softplus(wrong / t) * is_before).sum() / is_before.sum()
    if run.method == "soft_ndcg":
        return 1 - soft_ndcg(scores, gains, temperature=t, k=run.protocol["first"])
    return spearman_loss(scores, gains, temperature=t)


def measured(scores: Tensor, gains: Tensor, first: int) -> tuple[float, float]:
    """NDCG of the first and Spearman's rank correlation, exactly."""
    ranks, wanted = (soft_rank(one, 0.0, descending=True) for one in (scores, gains))
    ndcg = float(soft_ndcg(scores, gains, temperature=0, k=first))
    centred = [one - one.mean(-1, keepdim=True) for one in (ranks, wanted)]
    product = (centred[0] * centred[1]).sum(-1)
    return ndcg, float((product / (centred[0].norm(dim=-1) * centred[1].norm(dim=-1))).mean())


def train(run: Run) -> Values:
    """One network."""
    protocol = run.protocol
    parts = split(run.seed, protocol["validation"], protocol["test"])
    pictures, digits = parts[0]
    is_wrong = torch.rand(len(digits)) < NOISE[run.condition]
    digits = torch.where(is_wrong, torch.randint(10, digits.shape).float(), digits)
    hidden = protocol["hidden"]
    model = nn.Sequential(nn.Linear(16, hidden), nn.ReLU(), nn.Linear(hidden, 1), nn.Flatten(-2))
    optimiser = torch.optim.Adam(model.parameters(), lr=run.setting["rate"], weight_decay=1e-4)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, protocol["steps"])
    for _ in range(protocol["steps"]):
        chosen = torch.randint(len(digits), (protocol["lists"], protocol["length"]))
        optimiser.zero_grad()
        loss_of(run, model(pictures[chosen]), digits[chosen].square() / 81).backward()
        optimiser.step()
        decay.step()
    values = {}
    with torch.no_grad():
        for name, (x, y) in zip(("validation", "test"), parts[1:], strict=True):
            drawn = torch.Generator().manual_seed(run.seed)
            shape = protocol["tested_lists"], protocol["length"]
            chosen = torch.randint(len(y), shape, generator=drawn)
            gains = y[chosen].square() / 81
            ndcg, correlation = measured(model(x[chosen]), gains, protocol["first"])
            values[name] = 100 * ndcg
    values["rank correlation"] = correlation
    return values


RATES = (3e-3, 1e-2, 3e-2)
STUDY = Study(
    name="ranking",
    text=__doc__ or "",
    methods=(
        Method("regression", grid(rate=RATES, temperature=(0.3, 1.0))),
        Method("ListNet", grid(rate=RATES, temperature=(0.1, 0.3))),
        Method("RankNet", grid(rate=RATES, temperature=(0.3, 1.0))),
        Method("soft_ndcg", grid(rate=RATES, temperature=(0.3, 1.0)), is_ours=True),
        Method("spearman_loss", grid(rate=RATES, temperature=(0.3, 1.0)), is_ours=True),
    ),
    conditions={name: name for name in NOISE},
    measure="NDCG of the first five, %",
    smaller_is_better=False,
    protocol=PROTOCOL,
    short={"steps": 10, "tested_lists": 50},
    train=train,
)

if __name__ == "__main__":
    main(STUDY)
