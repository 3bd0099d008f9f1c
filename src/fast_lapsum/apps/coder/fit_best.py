"""The best coder around its training: the step that meets the budget, and the budget kept.

The step is found by bisection on the estimated prices, corrected by what a file of the open-loop
code would really take. After training, k moves by the few per cent that the estimate was off, until
the file fits.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fast_lapsum.selection import hard_topk_mask

from . import rate
from .assemble import assemble
from .best import BestTrainer, best_magnitudes
from .code import FRACTION_BITS, MAX_LEVELS, Code
from .dictionary import Dictionary
from .prices import Prices

_LEAST_STEP, _MOST_STEP = 0.5, 1000.0  # grey levels
_MARGIN_BITS = 64.0  # the range coder's last words
_CLOSE = 0.996  # of the budget: near enough to stop
_MOST_OF_LEVELS = 0.9  # of those that the format has; the rest is for what training adds
_MOST_COUNTS = 24  # numbers of atoms that are tried


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


def least_step(values: Tensor) -> float:
    """The smallest step that is tried: with a smaller one the largest value had too many levels.

    The average of a flat picture is one atom of a thousand times its grey levels, and clamped it
    would make white grey.
    """
    return max(_LEAST_STEP, float(values.abs().amax()) / (_MOST_OF_LEVELS * MAX_LEVELS))


def find_step(values: Tensor, prices: Prices, bits: float) -> float:
    """The smallest step whose open-loop code keeps the budget by the estimate."""
    low, high = least_step(values), _MOST_STEP
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

    That count is scaled as it was in training, not to the file that comes out. Beside the atoms of
    training, those come in that make the picture better: where nothing is left to code, the file is
    shorter than it may be.
    """
    dictionary = trainer.dictionary
    _, magnitudes = best_magnitudes(trainer.values, trainer.prices)
    integers = magnitudes * trainer.values.sign()
    scores = trainer.scores.detach()
    room = bits - _MARGIN_BITS
    trained = hard_topk_mask(scores, trainer.atoms) > 0
    # One of less than half a step is nearer to 0 than to the 1 that it would be rounded to.
    useful = trained | (trainer.values.abs() > 0.5)
    scores = scores.masked_fill(~useful, -math.inf)
    most = int(useful.sum())
    step, shrink = refit(dictionary, trainer.planes, integers * trained, trainer.step_size)

    def build(atoms: int) -> tuple[Code, float]:
        chosen = integers * hard_topk_mask(scores, atoms)
        code = code_of(dictionary, chosen, step, shrink, matrix)
        return code, rate.estimate(code).total

    atoms = trainer.atoms
    under: tuple[int, float] | None = None
    before: tuple[int, float] | None = None
    over: tuple[int, float] | None = None
    best: Code | None = None
    tried = 0
    while best is None or tried < _MOST_COUNTS:
        code, found = build(atoms)
        tried += 1
        if found <= room or atoms == 0:
            before, under, best = under, (atoms, found), code
        else:
            over = (atoms, found)
        if found <= room and (found >= _CLOSE * room or atoms == most):
            break
        following = min(next_count(under, over, room, before), most)
        if following == atoms or (under is not None and following == under[0]):
            break
        atoms = following
    assert best is not None
    assert under is not None
    trainer.prices.update((integers * hard_topk_mask(scores, under[0])).abs())
    return best, float(trainer.prices.total)


def next_count(
    under: tuple[int, float] | None,
    over: tuple[int, float] | None,
    room: float,
    before: tuple[int, float] | None = None,
) -> int:
    """The number of atoms to try next, from those that were under and over budget, with bits.

    Between the two by the straight line, kept off both ends so that the gap closes quickly. Where
    nothing was over yet, 8 bits for an atom, or what the last ones took since ``before``, which was
    under, too: atoms in a regular pattern cost a hundredth of a bit.
    """
    if over is None:
        assert under is not None
        atoms, found = under
        price = 8.0
        if before is not None:
            price = max(found - before[1], 1e-3) / (atoms - before[0])
        return atoms + min(max(1, int((room - found) / price)), atoms + 8)
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
