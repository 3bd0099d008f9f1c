"""A Mixture of Depths: a language model whose second block computes with a quarter of the tokens.

Characters are those of the Python library's own sources, as for the routed language model. Scores
say which 16 of 64 tokens the second block reads, attention and all; what it computes is added to
these. The usual ways weigh a token with the sigmoid of its score, forward, or backward alone
(straight-through). At inference, where later tokens are not known, they take tokens whose score is
over 0, which an auxiliary loss teaches. Ours is `nn.TokenSelect`, at one temperature or annealed,
with the threshold that it keeps, which is averaged over batches after the training. Every fourth
token, whatever it says, is there for comparison.

    python examples/token_selection.py            # about ten minutes, resumable
    python examples/token_selection.py --short    # seconds, into build/examples
"""

from __future__ import annotations

import math

import torch
from routed_language_model import drawn, text
from study import Method, Run, Study, Values, grid, main
from torch import Tensor, nn
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    scaled_dot_product_attention,
)

from fast_lapsum.nn import SelectedTokens, TemperatureSchedule, TokenSelect, update_thresholds

PROTOCOL = {
    "dim": 64, "heads": 4, "keep": 16, "context": 64, "batch": 16, "steps": 400,
    "characters": 2_000_000, "threshold_batches": 600,
}  # fmt: skip


class UsualSelect(nn.Module):
    """The best tokens, weighed by a sigmoid; or every fourth token."""

    def __init__(self, keep: int, temperature: float, method: str) -> None:
        super().__init__()
        self.keep, self.temperature, self.method = keep, temperature, method

    def forward(self, tokens: Tensor, scores: Tensor) -> SelectedTokens:
        """In the form of ours, so that everything else is shared."""
        length = scores.shape[1]
        places = torch.arange(length).expand_as(scores)
        if self.method == "every fourth token":
            is_selected = places % (length // self.keep) == 0
        elif self.training:
            best = scores.topk(self.keep, 1).indices
            is_selected = torch.zeros_like(scores, dtype=torch.bool).scatter(1, best, True)
        else:
            is_selected = scores > 0
        # Selected tokens come first, in their order.
        order = places.where(is_selected, length).sort(1).values
        order = order if not self.training else order[:, : self.keep]
        is_used, indices = order < length, order.clamp(max=length - 1)
        soft = (scores / self.temperature).sigmoid().gather(1, indices)
        weights = soft if self.method == "sigmoid gate" else 1 + soft - soft.detach()
        taken = tokens.gather(1, indices.unsqueeze(-1).expand(-1, -1, tokens.shape[2]))
        return SelectedTokens(taken, indices.where(is_used, -1), weights * is_used, is_selected)


class Block(nn.Module):
    """Causal attention and a small network: what is to be added to tokens."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])
        self.mix, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.into, self.back = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Of tokens in their order."""
        query, key, value = (
            one.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for one in self.mix(self.norms[0](x)).chunk(3, -1)
        )
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        first = self.out(attended.transpose(1, 2).flatten(2))
        return first + self.back(self.into(self.norms[1](x + first)).relu())


class Model(nn.Module):
    """Characters to logits of the next one."""

    def __init__(self, run: Run, characters: int) -> None:
        super().__init__()
        protocol, t = run.protocol, run.setting["temperature"]
        dim = protocol["dim"]
        self.embed = nn.Embedding(characters, dim)
        self.places = nn.Parameter(0.1 * torch.randn(protocol["context"], dim))
        self.first, self.second = (Block(dim, protocol["heads"]) for _ in range(2))
        self.scorer = nn.Linear(dim, 1)
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, characters)
        self.select: UsualSelect | TokenSelect = UsualSelect(protocol["keep"], t, run.method)
        if run.method.startswith("TokenSelect"):
            self.select = TokenSelect(protocol["keep"], t)

    def forward(self, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, the tokens' scores, and which were selected."""
        x = self.embed(numbers) + self.places
        x = x + self.first(x)
        scores = self.scorer(nn.functional.layer_norm(x, x.shape[-1:])).squeeze(-1)
        selected = self.select(x, scores)
        x = selected.scatter(self.second(selected.tokens), onto=x)
        return self.head(self.norm(x)), scores, selected.is_selected


def train(run: Run) -> Values:
    """One model."""
    protocol, t = run.protocol, run.setting["temperature"]
    (training, validation, test), characters = text(protocol["characters"])
    model = Model(run, characters)
    optimiser = torch.optim.Adam(model.parameters(), lr=run.setting["rate"])
    decay = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, run.setting["rate"], protocol["steps"], pct_start=0.1
    )
    schedule = None
    if run.method == "TokenSelect, annealed":
        schedule = TemperatureSchedule(model.select, protocol["steps"], start=t, end=t / 10)
    for _ in range(protocol["steps"]):
        inputs, following = drawn(training, protocol)
        logits, scores, is_selected = model(inputs)
        loss = cross_entropy(logits.flatten(0, 1), following.flatten())
        if isinstance(model.select, UsualSelect):
            loss = loss + 0.1 * binary_cross_entropy_with_logits(scores, is_selected.float())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        decay.step()
        if schedule is not None:
            schedule.step()
    values: Values = {}
    if isinstance(model.select, TokenSelect):
        values["active, as trained"] = measured(model, test, run)[1]
        counted = range(protocol["threshold_batches"])
        update_thresholds(model, (drawn(training, protocol)[0] for _ in counted))
    values["validation"], _ = measured(model, validation, run)
    values["test"], values["active"] = measured(model, test, run)
    return values


@torch.no_grad()
def measured(model: Model, part: Tensor, run: Run) -> tuple[float, float]:
    """Bits per character, and selected tokens by budget, at inference."""
    model.eval()
    # All of the text: passages differ so much in what is selected that a sample is 2 percent off.
    length = run.protocol["context"] + 1
    windows = part[: len(part) // length * length].view(-1, length)
    bits, active = 0.0, 0.0
    for some in windows.split(256):
        logits, _, is_selected = model(some[:, :-1])
        bits += float(cross_entropy(logits.flatten(0, 1), some[:, 1:].flatten(), reduction="sum"))
        active += float(is_selected.sum())
    bits /= len(windows) * run.protocol["context"] * math.log(2)
    return bits, active / (len(windows) * run.protocol["keep"])


GRID = grid(rate=(3e-3, 1e-2), temperature=(0.3, 1.0))
STUDY = Study(
    name="token-selection",
    text=__doc__ or "",
    methods=(
        Method("every fourth token", GRID),
        Method("sigmoid gate", GRID),
        Method("straight-through", GRID),
        Method("TokenSelect", GRID, is_ours=True),
        Method("TokenSelect, annealed", GRID, is_ours=True),
    ),
    conditions={"16 of 64": "16 of 64 tokens"},
    measure="bits per character",
    smaller_is_better=True,
    protocol=PROTOCOL,
    short={"steps": 4, "characters": 20_000, "threshold_batches": 2},
    train=train,
    budget="active",
)

if __name__ == "__main__":
    main(STUDY)
