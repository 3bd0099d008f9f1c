"""The subclasses that the page of autoencoders shows, inside SAELens and dictionary_learning.

They train, and what is saved loads strictly, without the layer: in the libraries where they are
installed, and always in stand-ins for them.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import Module

import autoencoder_libraries as stand_ins
from fast_lapsum.nn import BatchTopK
from places import ROOT

PAGE = ROOT / "docs" / "layers" / "autoencoders.md"
BLOCKS = dict(
    re.findall(r"^```python\n# needs (\w+)\n(.*?)^```", PAGE.read_text("utf-8"), re.S | re.M)
)
WIDTH, LATENTS, BUDGET, STEPS = 24, 96, 4, 200
KINDS = ["stand-in", "installed"]


def _batches(rows: int = 256) -> Iterator[Tensor]:
    """Sums of a few of 48 directions, as activations of a network are thought to be."""
    generator = torch.Generator().manual_seed(3)
    directions = torch.randn(48, WIDTH, generator=generator)
    while True:
        is_there = torch.rand(rows, 48, generator=generator) < BUDGET / 48
        yield (torch.rand(rows, 48, generator=generator) * is_there) @ directions


def _from_page(library: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(BLOCKS[library], str(PAGE), "exec", dont_inherit=True), names)
    return names


def _installed(library: str) -> Any:
    """The library, which warns about what it loads."""
    warnings.simplefilter("ignore")
    return pytest.importorskip(library)


@torch.no_grad()
def _unexplained(model: Module, data: Tensor) -> float:
    return float((model(data) - data).var(0).sum() / data.var(0).sum())


class SAELens(NamedTuple):
    """The subclass and its configuration, training, and both ways to load."""

    model: type[Any]
    config: type[Any]
    fit: Callable[[Any, Iterator[Tensor], int], None]
    load_inference_model: Callable[[Path], Module]
    load_checkpoint: Callable[[Path, Any], Module]


@pytest.fixture(scope="module", params=KINDS)
def sae_lens(request: pytest.FixtureRequest) -> Iterator[SAELens]:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        if request.param == "stand-in":
            library: ModuleType = stand_ins.sae_lens()
            patch.setitem(sys.modules, "sae_lens", library)
            calls = (library.fit, library.load_inference_model, library.load_checkpoint)
        else:
            library = _installed("sae_lens")
            calls = (_fit, library.SAE.load_from_disk, _loaded_checkpoint)
        names = _from_page("sae_lens")
        yield SAELens(names["SoftBatchTopKSAE"], names["SoftBatchTopKConfig"], *calls)


def _fit(sae: Any, batches: Iterator[Tensor], steps: int) -> None:
    """By SAELens's own loop."""
    from sae_lens.config import SAETrainerConfig
    from sae_lens.training.sae_trainer import SAETrainer

    rows = len(next(batches))
    settings = SAETrainerConfig(
        total_training_samples=rows * steps,
        train_batch_size_samples=rows,
        lr=3e-3,
        lr_end=3e-3,
        dead_feature_window=50,
        n_batches_for_norm_estimate=10,
    )
    SAETrainer(settings, sae, batches).fit()


def _loaded_checkpoint(path: Path, like: Any) -> Module:
    from sae_lens import TrainingSAE

    return TrainingSAE.load_from_disk(path)


@pytest.mark.parametrize("normalized", ["none", "expected_average_only_in"])
def test_in_sae_lens(sae_lens: SAELens, normalized: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = sae_lens.config(
        d_in=WIDTH, d_sae=LATENTS, k=BUDGET, temperature=0.05, normalize_activations=normalized
    )
    sae = sae_lens.model(config)
    assert isinstance(sae.activation_fn, BatchTopK)
    held_out = next(_batches(4096))
    before = _unexplained(sae, held_out)
    sae_lens.fit(sae, _batches(), STEPS)
    sae.eval()
    assert _unexplained(sae, held_out) < before / 2
    assert float(sae.topk_threshold) == pytest.approx(float(sae.activation_fn.threshold))

    sae.save_inference_model(tmp_path / "inference")
    loaded = sae_lens.load_inference_model(tmp_path / "inference")
    assert {name for name, _ in loaded.named_parameters()} == set(loaded.state_dict())
    with torch.no_grad():
        chosen, wanted = loaded.encode(held_out) > 0, sae.encode(held_out) > 0
        assert wanted.sum(-1).double().mean().item() == pytest.approx(BUDGET, rel=0.1)
        assert (chosen != wanted).double().mean().item() < 1e-4  # next to the threshold
        assert _unexplained(loaded, held_out) == pytest.approx(
            _unexplained(sae, held_out), rel=0.01
        )

    sae.save_model(tmp_path / "checkpoint")
    again = sae_lens.load_checkpoint(tmp_path / "checkpoint", sae).eval()
    with torch.no_grad():
        assert torch.equal(again.encode(held_out), sae.encode(held_out))
    assert set(again.state_dict()) == set(sae.state_dict())
    sae_lens.fit(again, _batches(), 2)  # goes on
    assert again.activation_fn.running.num_batches == sae.activation_fn.running.num_batches + 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("normalized", [False, True])
def test_in_dictionary_learning(
    kind: str, normalized: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    sizes = {"activation_dim": WIDTH, "dict_size": LATENTS, "k": BUDGET}
    with warnings.catch_warnings():
        if kind == "stand-in":
            for name, module in stand_ins.dictionary_learning().items():
                monkeypatch.setitem(sys.modules, name, module)
            train = sys.modules["dictionary_learning.trainers.batch_top_k"].train
        else:
            _installed("dictionary_learning.training")
            train = _train
        names = _from_page("dictionary_learning")
        trainer, model = names["SoftBatchTopKTrainer"], names["SoftBatchTopKSAE"]
        saved = train(trainer, model, _batches(), STEPS, normalized, tmp_path, **sizes)
        loaded = names["BatchTopKSAE"].from_pretrained(saved)
    assert set(loaded.state_dict()) == set(torch.load(saved))
    held_out = next(_batches(4096))
    with torch.no_grad():
        active = (loaded.encode(held_out) > 0).sum(-1).double().mean().item()
        assert active == pytest.approx(BUDGET, rel=0.1)
        assert _unexplained(loaded, held_out) < 0.5


def _train(
    trainer: type[Any],
    model: type[Any],
    batches: Iterator[Tensor],
    steps: int,
    normalized: bool,
    folder: Path,
    **sizes: int,
) -> Path:
    """By dictionary_learning's own loop."""
    from dictionary_learning.training import trainSAE

    settings = {"trainer": trainer, "dict_class": model, "steps": steps, **sizes, "lr": 3e-3}
    settings |= {"warmup_steps": 10, "decay_start": steps - 10, "threshold_start_step": 10}
    settings |= {"layer": 0, "lm_name": "made up", "device": "cpu", "seed": 0}
    rest = {"device": "cpu", "normalize_activations": normalized, "save_dir": str(folder)}
    trainSAE(batches, [settings], steps=steps, **rest)
    return folder / "trainer_0" / "ae.pt"
