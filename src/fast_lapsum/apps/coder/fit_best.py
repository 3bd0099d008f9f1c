"""The best coder around its training: the step that meets the budget, and the budget kept.

The step is found by bisection on the estimated prices, corrected by what a file of the open-loop
code would really take. After training, k moves by the few per cent that the estimate was off, until
the file fits.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fast_lapsum.functional import hard_topk_mask

from . import rate
from .assemble import assemble
from .best import BestTrainer, best_magnitudes
from .code import FRACTION_BITS, MAX_LEVELS, Code
from .dictionary import Dictionary
from .prices import Prices

_LEAST_STEP, _MOST_STEP = 0.5, 1000.0  # grey levels
_MARGIN_BITS = 64.0  # the range coder's last words
_CLOSE = 0.996  # of the budget: near enough to stop


def open_loop(values: Tensor, step_size: float, prices: Prices, rounds: int = 3) -> Tensor:
    """Magnitudes [N] that minimise error plus rate for orthonormal atoms; updates the prices."""
    scaled = values / step_size
    magnitudes = (scaled.abs() + 0.35).floor_()
    for _ in range(rounds):
        prices.update(magnitudes)
        gain, found = best_magnitudes(scaled, prices)
        magnitudes = found * (gain > 0)
    prices.update(magnitudes)
    return magnitudes


def find_step(values: Tensor, prices: Prices, bits: float) -> float:
    """The smallest step whose open-loop code keeps the budget by the estimate."""
    low, high = _LEAST_STEP, _MOST_STEP
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        open_loop(values, middle, prices)
        low, high = (middle, high) if float(prices.total) > bits else (low, middle)
    return high


def calibrated_step(dictionary: Dictionary, values: Tensor, prices: Prices, bits: float) -> float:
    """:func:`find_step`, with the estimate scaled to the bits that the file takes."""
    step = find_step(values, prices, bits)
    magnitudes = open_loop(values, step, prices)
    prices.calibrate(file_bits(dictionary, magnitudes * values.sign(), step))
    step = find_step(values, prices, bits)
    open_loop(values, step, prices)
    return step


def file_bits(dictionary: Dictionary, integers: Tensor, step: float) -> float:
    """What a file of integers [N] takes: the entropy coder without its output."""
    return rate.estimate(code_of(dictionary, integers, step)).total


def code_of(
    dictionary: Dictionary,
    integers: Tensor,
    step: float,
    shrink: float = 0.0,
    matrix: tuple[int, ...] = (),
) -> Code:
    """The wavelet code of integers [N]; atoms at 0 are off."""
    integers = integers.clamp(-MAX_LEVELS, MAX_LEVELS)
    largest = [
        int(part.abs().amax()) if part.numel() else 0
        for part in torch.split(integers, dictionary.sizes)
    ]
    widths = [step] * len(largest)
    if dictionary.colour == "opponent" and not matrix:
        matrix = (1 << 14, 0, 0, 0, 1 << 14, 0, 0, 0, 1 << 14)
    return assemble(dictionary, integers[None], integers != 0, widths, largest, shrink, matrix)


def keep_budget(trainer: BestTrainer, bits: float, matrix: tuple[int, ...]) -> tuple[Code, float]:
    """The trained code with as many atoms as the file may hold, and its bits by training's count.

    That count is scaled as it was in training, not to the file that comes out.
    """
    dictionary = trainer.dictionary
    _, magnitudes = best_magnitudes(trainer.values, trainer.prices)
    integers = magnitudes * trainer.values.sign()
    scores = trainer.scores.detach()
    room = bits - _MARGIN_BITS
    chosen = integers * hard_topk_mask(scores, trainer.atoms)
    step, shrink = refit(dictionary, trainer.planes, chosen, trainer.step_size)

    def build(atoms: int) -> tuple[Code, float]:
        chosen = integers * hard_topk_mask(scores, atoms)
        code = code_of(dictionary, chosen, step, shrink, matrix)
        return code, rate.estimate(code).total

    atoms = trainer.atoms
    under: tuple[int, float] | None = None
    over: tuple[int, float] | None = None
    best: Code | None = None
    while True:
        code, found = build(atoms)
        if found <= room or atoms == 0:
            under, best = (atoms, found), code
        else:
            over = (atoms, found)
        if found <= room and (found >= _CLOSE * room or atoms == dictionary.count):
            break
        following = next_count(under, over, room)
        if following == atoms or (under is not None and following == under[0]):
            break
        atoms = min(following, dictionary.count)
    assert best is not None
    assert under is not None
    trainer.prices.update((integers * hard_topk_mask(scores, under[0])).abs())
    return best, float(trainer.prices.total)


def next_count(under: tuple[int, float] | None, over: tuple[int, float] | None, room: float) -> int:
    """The number of atoms to try next, from those that were under and over budget, with bits.

    Between the two by the straight line, kept off both ends so that the gap closes quickly.
    """
    if over is None:
        assert under is not None
        atoms, found = under
        return atoms + min(max(1, int((room - found) / 8)), atoms + 8)
    if under is None:
        atoms, found = over
        return min(atoms - 1, int(0.995 * atoms * max(0.0, room / found)))
    gap = over[0] - under[0]
    share = (0.998 * room - under[1]) / (over[1] - under[1])
    return under[0] + int(gap * min(max(share, 0.1), 0.9))


def refit(
    dictionary: Dictionary, planes: Tensor, integers: Tensor, step: float
) -> tuple[float, float]:
    """Step and shrink of the least squared error for these integers."""
    directions = [integers, -integers.sign()]
    pictures = torch.stack([dictionary.synthesise(one[None]).flatten() for one in directions])
    normal = (pictures @ pictures.T).double()
    wanted = (pictures @ planes.flatten()).double()
    if float(torch.linalg.det(normal)) <= 1e-9 * float(normal[0, 0]) ** 2:
        return step, 0.0
    found = torch.linalg.solve(normal, wanted)
    refitted, shrink = float(found[0]), float(found[1])
    if not (refitted > 2**-FRACTION_BITS and abs(shrink) < 0.9 * refitted):
        return step, 0.0
    return refitted, shrink
