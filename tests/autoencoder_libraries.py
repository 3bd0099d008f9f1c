"""Stand-ins for SAELens and dictionary_learning: what they ask of an autoencoder, and no more.

Written from what the libraries do with a subclass: when they call which method, which names they
save, and that they load strictly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Module, Parameter

REGISTERED: dict[str, type[Module]] = {}


@dataclass
class TrainingConfig:
    """Of an autoencoder in SAELens."""

    d_in: int
    d_sae: int
    k: float = 100
    normalize_activations: str = "none"


class Autoencoder(Module):
    """The parameters that SAELens gives a training model and a JumpReLU alike."""

    def __init__(self, d_in: int, d_sae: int) -> None:
        super().__init__()
        decoder = torch.randn(d_sae, d_in)
        self.W_dec = Parameter(0.1 * decoder / decoder.norm(dim=-1, keepdim=True))
        self.W_enc = Parameter(self.W_dec.detach().T.clone())
        self.b_enc, self.b_dec = Parameter(torch.zeros(d_sae)), Parameter(torch.zeros(d_in))

    def latents(self, x: Tensor) -> Tensor:
        return (x - self.b_dec) @ self.W_enc + self.b_enc


class JumpReLUSAE(Autoencoder):
    """What SAELens makes of a BatchTopK model for inference."""

    def __init__(self, d_in: int, d_sae: int) -> None:
        super().__init__(d_in, d_sae)
        self.threshold = Parameter(torch.zeros(d_sae))

    def encode(self, x: Tensor) -> Tensor:
        latents = self.latents(x)
        return latents.relu() * (latents > self.threshold)

    def forward(self, x: Tensor) -> Tensor:
        return self.encode(x) @ self.W_dec + self.b_dec


class BatchTopKTrainingSAE(Autoencoder):
    """Latents in units of their decoder's norm, the activation of a method, and a threshold."""

    topk_threshold: Tensor
    activation_fn: Callable[[Tensor], Tensor]

    def __init__(self, cfg: TrainingConfig) -> None:
        super().__init__(cfg.d_in, cfg.d_sae)
        self.cfg = cfg
        self.activation_fn = self.get_activation_fn()
        self.register_buffer("topk_threshold", torch.zeros((), dtype=torch.float64))

    def get_activation_fn(self) -> Callable[[Tensor], Tensor]:
        raise NotImplementedError

    def update_topk_threshold(self, acts_topk: Tensor) -> None:
        raise NotImplementedError

    def encode(self, x: Tensor) -> Tensor:
        return self.activation_fn(self.latents(x) * self.W_dec.norm(dim=-1))

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x))

    def decode(self, acts: Tensor) -> Tensor:
        return (acts / self.W_dec.norm(dim=-1)) @ self.W_dec + self.b_dec

    def training_loss(self, x: Tensor) -> Tensor:
        acts = self.encode(x)
        self.update_topk_threshold(acts)
        return (self.decode(acts) - x).square().sum(-1).mean()

    @torch.no_grad()
    def fold_activation_norm_scaling_factor(self, scaling_factor: float) -> None:
        self.W_enc *= scaling_factor
        self.W_dec /= scaling_factor
        self.b_dec /= scaling_factor
        self.topk_threshold /= scaling_factor

    def process_state_dict_for_saving_inference(self, state_dict: dict[str, Any]) -> None:
        norms = self.W_dec.detach().norm(dim=-1)
        state_dict["W_enc"] = state_dict["W_enc"] * norms
        state_dict["b_enc"] = state_dict["b_enc"] * norms
        state_dict["W_dec"] = state_dict["W_dec"] / norms[:, None]
        threshold = state_dict.pop("topk_threshold").item()
        state_dict["threshold"] = torch.full_like(self.b_enc.detach(), threshold)

    def save_inference_model(self, path: Path) -> None:
        state = self.state_dict()
        self.process_state_dict_for_saving_inference(state)
        torch.save(state, path)

    def save_model(self, path: Path) -> None:
        architecture = self.cfg.architecture()
        torch.save({"architecture": architecture, "weights": self.state_dict()}, path)


def _load_inference_model(path: Path) -> JumpReLUSAE:
    state = torch.load(path)
    model = JumpReLUSAE(*state["W_enc"].shape)
    model.load_state_dict(state)
    return model


def _load_checkpoint(path: Path, like: BatchTopKTrainingSAE) -> Module:
    saved = torch.load(path)
    model = REGISTERED[saved["architecture"]](like.cfg)
    model.load_state_dict(saved["weights"], assign=True)
    return model


def _fit(sae: BatchTopKTrainingSAE, batches: Iterator[Tensor], steps: int) -> None:
    """A scale for the inputs, if wanted, training, and the scale moved into the weights."""
    scale = 1.0
    if sae.cfg.normalize_activations != "none":
        scale = math.sqrt(sae.cfg.d_in) / float(next(batches).norm(dim=-1).mean())
    optimiser = torch.optim.Adam(sae.parameters(), lr=3e-3)
    for _ in range(steps):
        optimiser.zero_grad()
        sae.train().training_loss(next(batches) * scale).backward()
        optimiser.step()
    if scale != 1:
        sae.fold_activation_norm_scaling_factor(scale)


def sae_lens() -> ModuleType:
    """A module of the names that a subclass and its test take."""
    found = ModuleType("sae_lens")
    found.BatchTopKTrainingSAE = BatchTopKTrainingSAE
    found.BatchTopKTrainingSAEConfig = TrainingConfig
    found.register_sae_training_class = lambda name, model, config: REGISTERED.update({name: model})
    found.fit = _fit
    found.load_inference_model = _load_inference_model
    found.load_checkpoint = _load_checkpoint
    return found


class BatchTopKSAE(Module):
    """The autoencoder of dictionary_learning; the budget of a batch is the subclass's."""

    k: Tensor
    threshold: Tensor

    def __init__(self, activation_dim: int, dict_size: int, k: int) -> None:
        super().__init__()
        self.register_buffer("k", torch.tensor(k))
        self.register_buffer("threshold", torch.tensor(-1.0))
        self.decoder = Linear(dict_size, activation_dim, bias=False)
        self.encoder = Linear(activation_dim, dict_size)
        self.b_dec = Parameter(torch.zeros(activation_dim))

    def encode(self, x: Tensor, return_active: bool = False, use_threshold: bool = True) -> Any:
        assert (use_threshold, return_active) == (True, False), "the subclass has the rest"
        acts = self.encoder(x - self.b_dec).relu()
        return acts * (acts > self.threshold)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encode(x)) + self.b_dec

    def scale_biases(self, scale: float) -> None:
        for one in (self.encoder.bias.data, self.b_dec.data, self.threshold):
            one.mul_(scale)

    @classmethod
    def from_pretrained(cls, path: Path) -> BatchTopKSAE:
        state = torch.load(path)
        found = cls(*reversed(state["encoder.weight"].shape), int(state["k"]))
        found.load_state_dict(state)
        return found


class BatchTopKTrainer:
    """One step at a time, with the activations that fired and those before the selection."""

    def __init__(self, dict_class: type[BatchTopKSAE], **sizes: int) -> None:
        self.ae = dict_class(**sizes)
        self.optimizer = torch.optim.Adam(self.ae.parameters(), lr=3e-3)

    def update_threshold(self, f: Tensor) -> None:
        raise NotImplementedError

    def update(self, step: int, x: Tensor) -> None:
        acts, fired, before = self.ae.encode(x, return_active=True, use_threshold=False)
        assert (fired.shape, fired.dtype) == (acts.shape[1:], torch.bool)
        assert bool((before >= acts).all())
        if step > 10:
            self.update_threshold(acts)
        loss = (self.ae.decoder(acts) + self.ae.b_dec - x).square().sum(-1).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def _train(
    trainer: type[BatchTopKTrainer],
    dict_class: type[BatchTopKSAE],
    batches: Iterator[Tensor],
    steps: int,
    normalized: bool,
    folder: Path,
    **sizes: int,
) -> Path:
    made = trainer(dict_class, **sizes)
    scale = float(next(batches).square().sum(-1).mean().sqrt()) if normalized else 1.0
    for step in range(steps):
        made.update(step, next(batches) / scale)
    made.ae.scale_biases(scale)
    torch.save(made.ae.state_dict(), folder / "ae.pt")
    return folder / "ae.pt"


def dictionary_learning() -> dict[str, ModuleType]:
    """Modules of the names that subclasses and their test take, by their own names."""
    names = ("dictionary_learning", "dictionary_learning.trainers")
    found = {name: ModuleType(name) for name in (*names, f"{names[1]}.batch_top_k")}
    last = found[f"{names[1]}.batch_top_k"]
    last.BatchTopKSAE, last.BatchTopKTrainer = (
        BatchTopKSAE,
        BatchTopKTrainer,
    )
    last.train = _train
    return found
