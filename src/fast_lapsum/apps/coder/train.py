"""``fit``: train one picture's code within a bit budget."""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from . import rate
from .best import BestTrainer
from .code import Code
from .colour import find_matrix, psnr, to_planes
from .dictionary import Dictionary, decode_picture
from .fit_best import calibrated_step, file_bits, keep_budget
from .plain import PlainTrainer
from .prices import Prices
from .settings import Fit, Profile, Progress, ProgressCallback, Settings

_REPORT_EVERY = 10
#: Of the plain coder, by colour planes: the paper's, which is for colours. A grey atom has one
#: value where that has three, and with 16 bits for it a fifth of the file stayed empty.
_BITS_PER_ATOM = {3: 16, 1: 10}


def fit(
    picture: npt.NDArray[np.uint8], settings: Settings, progress: ProgressCallback | None = None
) -> Fit:
    """Train the code of a picture [H, W, C] of bytes, C = 1 or 3, within ``settings.bits``."""
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] not in (1, 3):
        raise ValueError(
            "picture must be uint8 [height, width, 1 or 3], got "
            f"{picture.dtype} {list(picture.shape)}"
        )
    begin = time.perf_counter()
    if settings.plain:
        trainer = train_plain(picture, settings, progress)
        code, bits = trainer.finish()
        return _finished(picture, "plain", code, bits, trainer.profile, begin)
    return _fit_best(picture, settings, progress, begin)


def train_plain(
    picture: npt.NDArray[np.uint8], settings: Settings, progress: ProgressCallback | None
) -> PlainTrainer:
    """The paper's coder, trained and not yet rounded."""
    height, width, count = picture.shape
    device = torch.device(settings.device)
    planes = to_planes(picture, (), device)
    dictionary = Dictionary("blocks", "rgb", height, width, count, device)
    atoms = settings.atoms or max(1, round(settings.bits / _BITS_PER_ATOM[count]))
    trainer = PlainTrainer(dictionary, planes, min(atoms, dictionary.count), settings)
    _train(trainer, progress)
    return trainer


def _fit_best(
    picture: npt.NDArray[np.uint8],
    settings: Settings,
    progress: ProgressCallback | None,
    begin: float,
) -> Fit:
    height, width, count = picture.shape
    device = torch.device(settings.device)
    matrix = find_matrix(picture) if count == 3 else ()
    planes = to_planes(picture, matrix, device)
    colour = "opponent" if matrix else "rgb"
    dictionary = Dictionary("wavelet", colour, height, width, count, device)
    prices = Prices(dictionary)
    step = calibrated_step(dictionary, dictionary.start(planes)[0], prices, settings.bits)
    trainer = BestTrainer(
        dictionary,
        planes,
        step,
        prices,
        settings,
        lambda integers: file_bits(dictionary, integers, step),
    )
    _train(trainer, progress)
    code, bits = keep_budget(trainer, settings.bits, matrix)
    return _finished(picture, "context", code, bits, trainer.profile, begin)


class _Trainer(Protocol):
    settings: Settings
    profile: Profile
    rate: Tensor

    def step(self, number: int) -> None: ...
    def psnr(self) -> float: ...


def _train(trainer: _Trainer, progress: ProgressCallback | None) -> None:
    """All steps, with a report every so many: in between nothing waits for a GPU.

    But for the first step, which the profile leaves out.
    """
    begin = time.perf_counter()
    steps = trainer.settings.step_count
    for done in range(1, steps + 1):
        trainer.step(done - 1)
        if done == 1:
            _wait(trainer.rate.device)
            trainer.profile.start()
        if progress is not None and (done % _REPORT_EVERY == 0 or done == steps):
            quality, bits = trainer.psnr(), float(trainer.rate)
            left = (time.perf_counter() - begin) / done * (steps - done)
            progress(Progress(done, steps, quality, bits, left))
    _wait(trainer.rate.device)
    trainer.profile.finish(steps - 1)


def _wait(device: torch.device) -> None:
    """Until all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _finished(
    picture: npt.NDArray[np.uint8],
    mode: str,
    code: Code,
    bits: float,
    profile: Profile,
    begin: float,
) -> Fit:
    quality = psnr(picture, decode_picture(code))
    atoms = sum(int(band.mask.sum()) for band in code.bands)
    file = rate.estimate(code, mode)
    heads = file.heads if mode == "plain" else 0.0
    return Fit(code, quality, bits, atoms, time.perf_counter() - begin, profile, heads, file.total)
