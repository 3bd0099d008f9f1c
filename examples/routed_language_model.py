"""A language model of characters with routed experts, on the Python library's own sources.

Two blocks of causal attention, each followed by eight small experts of which a token takes two. The
usual ways are a softmax over the logits whose two largest entries weigh the experts, with the
load-balance loss of the Switch Transformer, and the same with a straight-through gradient to all
experts' weights. Ours is `nn.TopKRouter` with the same loss: two experts for each token, two on
average over a batch, and equally many tokens for each expert; the latter two route a token by
itself at inference, by thresholds, which are averaged over batches after the training. Passages
that train, choose settings and test are dealt by chance.

    python examples/routed_language_model.py            # about seven minutes, resumable
    python examples/routed_language_model.py --short    # seconds, into build/examples
"""

from __future__ import annotations

import math
import sysconfig
from functools import cache
from pathlib import Path

import torch
from study import Method, Run, Study, Values, grid, main
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from fast_lapsum.nn import Routing, TopKRouter, update_thresholds

PROTOCOL = {
    "dim": 48, "heads": 4, "experts": 8, "top_k": 2, "hidden": 48, "context": 64, "batch": 16,
    "steps": 300, "characters": 2_000_000, "threshold_batches": 200,
    "tested_batches": 60,
}  # fmt: skip
BUDGETS = {"router, token": "token", "router, batch": "batch", "router, expert": "expert"}


@cache
def text(characters: int) -> tuple[tuple[Tensor, ...], int]:
    """Sources of the library as numbers: of training, validation, test; and how many there are.

    Passages of 1000 characters are dealt by chance, so that all three are of all modules.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    read = "".join(
        path.read_text(encoding="utf-8", errors="ignore") for path in sorted(folder.glob("*.py"))
    )
    codes = torch.tensor(list(read.encode("ascii", "replace")))
    kept, numbers = codes.unique(return_inverse=True)
    passages = numbers[: len(numbers) // 1000 * 1000].view(-1, 1000)
    order = torch.randperm(len(passages), generator=torch.Generator().manual_seed(0))
    passages = passages[order[: characters // 1000]]
    ends = [round(len(passages) * share) for share in (0.6, 0.8)]
    return tuple(part.flatten() for part in passages.tensor_split(ends)), len(kept)


class SoftmaxRouter(nn.Module):
    """The usual router: the largest entries of a softmax, made to add up to one."""

    def __init__(self, dim: int, experts: int, top_k: int, straight_through: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, experts, bias=False)
        self.top_k, self.straight_through = top_k, straight_through
        self.temperature = 1.0

    def forward(self, tokens: Tensor) -> Routing:
        """In the form of ours, so that everything else is shared."""
        logits = self.linear(tokens) / self.temperature
        soft = logits.softmax(-1)
        chosen = torch.zeros_like(soft, dtype=torch.bool)
        chosen = chosen.scatter(-1, soft.topk(self.top_k, -1).indices, True)
        weights = soft * chosen
        weights = weights / weights.sum(-1, keepdim=True)
        if self.straight_through:  # all experts are computed, and gradients reach all weights
            weights = weights.detach() + soft - soft.detach()
        return Routing(logits, soft * self.top_k, weights, chosen, None)


class Block(nn.Module):
    """Attention, and experts by a router."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        protocol, dim = run.protocol, run.protocol["dim"]
        experts, hidden = protocol["experts"], protocol["hidden"]
        self.heads = protocol["heads"]
        self.norms = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])
        self.mix, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.into = nn.Parameter(torch.randn(experts, dim, hidden) / dim**0.5)
        self.back = nn.Parameter(torch.randn(experts, hidden, dim) / hidden**0.5)
        self.router: SoftmaxRouter | TopKRouter
        if run.method in BUDGETS:
            self.router = TopKRouter(
                dim, experts, protocol["top_k"], run.setting["temperature"],
                budget=BUDGETS[run.method],  # type: ignore[arg-type]
            )  # fmt: skip
        else:
            is_straight = run.method == "softmax, straight-through"
            self.router = SoftmaxRouter(dim, experts, protocol["top_k"], is_straight)
            self.router.temperature = run.setting["temperature"]

    def forward(self, x: Tensor) -> tuple[Tensor, Routing]:
        """The block's output, and what was routed."""
        query, key, value = (
            one.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for one in self.mix(self.norms[0](x)).chunk(3, -1)
        )
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        tokens = self.norms[1](x)
        routing = self.router(tokens)
        # All experts compute all tokens here, which is quicker for experts as small as these.
        inner = torch.einsum("btd,edh->bteh", tokens, self.into).relu()
        weighed = inner * routing.probabilities.unsqueeze(-1)
        return x + torch.einsum("bteh,ehd->btd", weighed, self.back), routing


class Model(nn.Module):
    """Characters to logits of the next one."""

    def __init__(self, run: Run, characters: int) -> None:
        super().__init__()
        dim, context = run.protocol["dim"], run.protocol["context"]
        self.embed = nn.Embedding(characters, dim)
        self.places = nn.Parameter(0.1 * torch.randn(context, dim))
        self.blocks = nn.ModuleList([Block(run), Block(run)])
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, characters)

    def forward(self, numbers: Tensor) -> tuple[Tensor, list[Routing]]:
        """Logits, and the routing of each block."""
        x, routings = self.embed(numbers) + self.places, []
        for block in self.blocks:
            x, routing = block(x)
            routings.append(routing)
        return self.head(self.norm(x)), routings


def drawn(numbers: Tensor, protocol: dict[str, int]) -> tuple[Tensor, Tensor]:
    """A batch of contexts, and of the characters that follow."""
    starts = torch.randint(len(numbers) - protocol["context"] - 1, (protocol["batch"], 1))
    window = numbers[starts + torch.arange(protocol["context"] + 1)]
    return window[:, :-1], window[:, 1:]


def train(run: Run) -> Values:
    """One model."""
    protocol = run.protocol
    (training, validation, test), characters = text(protocol["characters"])
    model = Model(run, characters)
    optimiser = torch.optim.Adam(model.parameters(), lr=run.setting["rate"])
    decay = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, run.setting["rate"], protocol["steps"], pct_start=0.1
    )
    for _ in range(protocol["steps"]):
        inputs, following = drawn(training, protocol)
        logits, routings = model(inputs)
        loss = cross_entropy(logits.flatten(0, 1), following.flatten())
        loss = loss + 0.01 * sum(routing.load_balance_loss() for routing in routings)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        decay.step()
    values: Values = {}
    if run.method in ("router, batch", "router, expert"):
        values["active, as trained"] = measured(model, test, run)[1]
        counted = range(protocol["threshold_batches"])
        update_thresholds(model, (drawn(training, protocol)[0] for _ in counted))
    values["validation"], *_ = measured(model, validation, run)
    values["test"], values["active"], values["largest load"] = measured(model, test, run)
    return values


@torch.no_grad()
def measured(model: Model, part: Tensor, run: Run) -> tuple[float, float, float]:
    """Bits per character, experts per token by budget, and the largest load, at inference."""
    model.eval()
    torch.manual_seed(run.seed)  # the same passages for all methods
    losses, active, loads = [], [], torch.zeros(run.protocol["experts"])
    for _ in range(run.protocol["tested_batches"]):
        inputs, following = drawn(part, run.protocol)
        logits, routings = model(inputs)
        losses.append(cross_entropy(logits.flatten(0, 1), following.flatten()))
        for routing in routings:
            active.append(routing.routing_map.sum(-1).float().mean())
            loads += routing.tokens_per_expert()
    bits = float(torch.stack(losses).mean()) / math.log(2)
    experts = float(torch.stack(active).mean()) / run.protocol["top_k"]
    return bits, experts, float(loads.max() / loads.mean())


RATES = (3e-3, 1e-2)
STUDY = Study(
    name="routed-language-model",
    text=__doc__ or "",
    methods=(
        Method("softmax", grid(rate=RATES, temperature=(0.5, 1.0))),
        Method("softmax, straight-through", grid(rate=RATES, temperature=(0.5, 1.0))),
        *(Method(n, grid(rate=RATES, temperature=(0.5, 1.0)), is_ours=True) for n in BUDGETS),
    ),
    conditions={"2 of 8": "2 of 8 experts per token"},
    measure="bits per character",
    smaller_is_better=True,
    protocol=PROTOCOL,
    short={"steps": 4, "characters": 20_000, "threshold_batches": 2, "tested_batches": 1},
    train=train,
    budget="active",
)

if __name__ == "__main__":
    main(STUDY)
