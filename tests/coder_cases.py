"""Random codes of the image coder, for several test files."""

from __future__ import annotations

import numpy as np

from fast_lapsum.apps.coder.code import Band, Code, layout

SIZES = ((1, 1), (1, 2), (7, 513), (2, 1), (3, 64), (33, 17), (64, 64), (65, 5), (20, 31))


def random_code(
    seed: int,
    size: tuple[int, int] | None = None,
    dictionary: str | None = None,
    density: float | None = None,
) -> Code:
    """A valid code with nothing behind it."""
    random = np.random.default_rng(seed)
    height, width = size or SIZES[seed % len(SIZES)]
    dictionary = dictionary or ("blocks", "wavelet")[seed // 2 % 2]
    planes = (1, 3)[seed % 2]
    colour = "rgb" if planes == 1 else ("rgb", "opponent")[seed // 4 % 2]
    step = int(random.integers(2, 1 << 20))
    shrink = int(random.integers(1 - step, step)) if dictionary == "wavelet" else 0
    bands = []
    for place in layout(dictionary, colour, height, width, planes):
        share = random.choice([0, 0.02, 0.3, 1]) if density is None else density
        mask = random.random((place.height, place.width)) < share
        levels = int(2 ** random.uniform(0, 10 if dictionary == "wavelet" else 7))
        values = np.rint(random.laplace(0, levels / 4, (int(mask.sum()), place.planes)))
        values = np.clip(values, -levels, levels).astype(np.int32)
        if dictionary == "wavelet":
            values[values == 0] = 1
            levels = int(np.abs(values).max(initial=0))
        else:
            step = int(random.integers(1, 1 << 20))
        bands.append(Band(place.level, place.plane, place.kind, mask, values, step, levels))
    matrix = () if colour == "rgb" else tuple(random.integers(-(1 << 14), 1 << 14, 9).tolist())
    return Code(height, width, planes, dictionary, colour, shrink, tuple(bands), matrix)


def same(left: Code, right: Code) -> bool:
    """Whether two codes agree in everything."""
    if left._replace(bands=()) != right._replace(bands=()) or len(left.bands) != len(right.bands):
        return False
    return all(
        (one.level, one.plane, one.kind, one.step, one.levels)
        == (other.level, other.plane, other.kind, other.step, other.levels)
        and np.array_equal(one.mask, other.mask)
        and np.array_equal(one.values, other.values)
        and one.values.dtype == other.values.dtype
        for one, other in zip(left.bands, right.bands, strict=True)
    )
