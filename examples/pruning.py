"""Prune a classifier of handwritten digits to 5 and to 2 percent of its weights.

The usual ways have hard masks: of the largest weights, where zeros learn nothing (gradual magnitude
pruning) or learn by a straight-through gradient, and of learned scores with a straight-through
gradient. Ours is `prune.soften`: soft masks of learned scores whose temperature is annealed, and
hard masks of the largest weights with the soft masks' gradient. In all of them one budget over all
layers falls by a cubic, masks are fixed for the last fifth of the steps, and a seed has its own
starting weights, batches and split. Digits are those of scikit-learn, 8 x 8 pixels.

    python examples/pruning.py            # about four minutes, resumable
    python examples/pruning.py --short    # seconds, into build/examples
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from study import Method, Run, Study, Values, grid, main
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.parametrize import register_parametrization

from fast_lapsum import hard_topk_mask
from fast_lapsum.prune import soften

PROTOCOL = {
    "hidden": 100, "batch": 128, "steps": 1500, "fixed_from": 1200, "validation": 297, "test": 600,
    "cooling": 30.0,
}  # fmt: skip
DENSITIES = {"5 percent": 0.05, "2 percent": 0.02}


def split(seed: int, validation: int, test: int) -> list[tuple[Tensor, Tensor]]:
    """Pictures and labels: of training, validation and test."""
    digits = load_digits()
    pictures = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    parts = order.split([len(labels) - validation - test, validation, test])
    return [(pictures[part], labels[part]) for part in parts]


class HardMask(nn.Module):
    """A parametrization with a hard mask; what gradients pass through it is the method."""

    def __init__(self, weight: Tensor, method: str) -> None:
        super().__init__()
        self.is_fixed, self.method = False, method
        self.mask = torch.ones_like(weight)
        learned = method == "straight-through, learned"
        self.scores = nn.Parameter(weight.detach().abs().clone()) if learned else None

    def scores_of(self, weight: Tensor) -> Tensor:
        """What the mask has the largest of."""
        return (weight.abs() if self.scores is None else self.scores).detach()

    def forward(self, weight: Tensor) -> Tensor:
        """The masked weight."""
        if self.is_fixed or self.method == "gradual magnitude":
            return weight * self.mask
        if self.scores is not None:  # the mask's gradient is the scores'
            return weight * (self.mask + self.scores - self.scores.detach())
        return weight + (weight * self.mask - weight).detach()

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Parametrizations have one."""
        return weight


class HardMasks:
    """The usual masks of a model, with the interface of `prune.soften`'s."""

    def __init__(self, layers: list[nn.Linear], method: str) -> None:
        self.masks = [HardMask(layer.weight, method) for layer in layers]
        for layer, mask in zip(layers, self.masks, strict=True):
            register_parametrization(layer, "weight", mask)
        self.weights = [layer.parametrizations["weight"].original for layer in layers]

    def set_density(self, density: float) -> None:
        """Keep a share of all weights."""
        pairs = list(zip(self.masks, self.weights, strict=True))
        scores = [mask.scores_of(weight).flatten() for mask, weight in pairs]
        count = round(density * sum(one.numel() for one in scores))
        parts = hard_topk_mask(torch.cat(scores), count).split([one.numel() for one in scores])
        for (mask, weight), part in zip(pairs, parts, strict=True):
            mask.mask = part.view_as(weight)

    def fix(self) -> None:
        """Zeros stay zeros from now on."""
        for mask in self.masks:
            mask.is_fixed = True


def softened(
    model: nn.Module, run: Run
) -> tuple[Callable[[float, float], None], Callable[[], None]]:
    """Our masks: what sets them at a share of the way, and what fixes them."""
    hottest = run.setting["temperature"]
    is_learned = run.method == "soft masks, learned"
    scores = "learned" if is_learned else "magnitude"
    pruning = soften(
        model, density=1.0, temperature=hottest, scores=scores, hard=not is_learned
    )  # fmt: skip

    def set_masks(density: float, done: float) -> None:
        pruning.density = density
        if is_learned:
            pruning.temperature = hottest * run.protocol["cooling"] ** -done

    return set_masks, lambda: pruning.finalize(fixed=True) and None


def train(run: Run) -> Values:
    """One network, pruned while it learns."""
    protocol, final = run.protocol, DENSITIES[run.condition]
    hidden, fixed_from = protocol["hidden"], protocol["fixed_from"]
    parts = split(run.seed, protocol["validation"], protocol["test"])
    pictures, labels = parts[0]
    model = nn.Sequential(
        nn.Linear(64, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 10),
    )
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    if run.method.startswith("soft"):
        set_masks, fix = softened(model, run)
    else:
        hard = HardMasks(layers, run.method)
        set_masks, fix = (lambda density, done: hard.set_density(density)), hard.fix
    optimiser = torch.optim.Adam(model.parameters(), lr=run.setting["rate"])
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, protocol["steps"])
    for step in range(protocol["steps"]):
        done = min(step / fixed_from, 1.0)
        if step <= fixed_from:
            falling = max(1 - done / run.setting.get("until", 1.0), 0.0) ** 3
            set_masks(final + (1 - final) * falling, done)
        if step == fixed_from:
            fix()
        chosen = torch.randint(len(labels), (protocol["batch"],))
        optimiser.zero_grad()
        cross_entropy(model(pictures[chosen]), labels[chosen]).backward()
        optimiser.step()
        decay.step()
    with torch.no_grad():
        losses = [float(cross_entropy(model(x), y)) for x, y in parts]
        error = float((model(parts[2][0]).argmax(-1) != parts[2][1]).float().mean())
        kept = sum(int(layer.weight.count_nonzero()) for layer in layers)
    total = sum(layer.weight.numel() for layer in layers)
    return {
        "validation": losses[1], "test": 100 * error, "test loss": losses[2],
        "kept": kept / round(final * total),
    }  # fmt: skip


RATES = (3e-3, 1e-2, 3e-2)
USUAL = grid(rate=RATES, until=(0.5, 1.0))
STUDY = Study(
    name="pruning",
    text=__doc__ or "",
    methods=(
        Method("gradual magnitude", USUAL),
        Method("straight-through", USUAL),
        Method("straight-through, learned", USUAL),
        Method("soft gradient", grid(rate=RATES, temperature=(0.01, 0.03)), is_ours=True),
        Method("soft masks, learned", grid(rate=RATES, temperature=(0.03, 0.1)), is_ours=True),
    ),
    conditions={name: f"{name} kept" for name in DENSITIES},
    measure="test error, %",
    smaller_is_better=True,
    protocol=PROTOCOL,
    short={"steps": 20, "fixed_from": 16},
    train=train,
)

if __name__ == "__main__":
    main(STUDY)
