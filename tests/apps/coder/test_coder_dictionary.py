"""Geometry, synthesis and its adjoint, and the decoder's integers."""

import numpy as np
import pytest
import torch

from fast_lapsum.apps.coder import Band, Code, decode_picture, layout
from fast_lapsum.apps.coder.assemble import assemble
from fast_lapsum.apps.coder.colour import find_matrix, psnr, to_picture, to_planes
from fast_lapsum.apps.coder.dictionary import Dictionary

CPU = torch.device("cpu")
SIZES = [(1, 1), (2, 2), (5, 1), (1, 6), (7, 13), (32, 48), (65, 33)]
KINDS = [
    ("blocks", "rgb", 3),
    ("blocks", "rgb", 1),
    ("wavelet", "opponent", 3),
    ("wavelet", "rgb", 1),
]


@pytest.fixture(params=KINDS, ids=lambda kind: "-".join(map(str, kind)))
def kind(request):
    return request.param


def test_the_papers_pyramid_has_its_counts():
    places = layout("blocks", "rgb", 1536, 2048, 3)
    assert len(places) == 10
    assert (places[0].height, places[0].width) == (3, 4)
    assert sum(place.height * place.width for place in places) == 4_194_300


def test_chroma_has_no_finest_details():
    places = layout("wavelet", "opponent", 64, 64, 3)
    finest = max(place.level for place in places)
    assert {place.plane for place in places if place.level == finest} == {0}
    assert {place.plane for place in places if place.level == finest - 1} == {0, 1, 2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cubes", "rgb", 8, 8, 3), "'cubes'"),
        (("blocks", "cmyk", 8, 8, 3), "'cmyk'"),
        (("blocks", "rgb", 0, 8, 3), "0 x 8"),
        (("blocks", "rgb", 8, 8, 2), "planes=2"),
        (("wavelet", "opponent", 8, 8, 1), "'opponent'"),
    ],
)
def test_layout_names_what_it_cannot_lay_out(arguments, message):
    with pytest.raises(ValueError, match=message):
        layout(*arguments)


@pytest.mark.parametrize("size", SIZES)
def test_correlation_is_the_adjoint_of_synthesis(kind, size):
    name, colour, planes = kind
    dictionary = Dictionary(name, colour, *size, planes, CPU)
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(dictionary.channels, dictionary.count, generator=generator)
    picture = torch.randn(planes, *size, generator=generator)
    forward = (dictionary.synthesise(values) * picture).sum()
    backward = (dictionary.correlate(picture) * values).sum()
    assert float(forward) == pytest.approx(float(backward), rel=1e-4, abs=1e-3)


@pytest.mark.parametrize("size", SIZES)
def test_all_atoms_together_give_the_picture(kind, size):
    name, colour, planes = kind
    dictionary = Dictionary(name, colour, *size, planes, CPU)
    picture = 50 * torch.randn(planes, *size, generator=torch.Generator().manual_seed(0))
    rebuilt = dictionary.synthesise(dictionary.start(picture))
    exact = 1 if colour == "opponent" and min(size) > 0 else planes  # chroma lacks its finest
    assert torch.allclose(rebuilt[:exact], picture[:exact], atol=1e-3)


def test_synthesis_leaves_the_values_alone(kind):
    name, colour, planes = kind
    dictionary = Dictionary(name, colour, 16, 16, planes, CPU)
    values = torch.randn(dictionary.channels, dictionary.count)
    before = values.clone()
    dictionary.synthesise(values)
    assert torch.equal(values, before)


def test_norms_are_those_of_the_atoms(kind):
    name, colour, planes = kind
    dictionary = Dictionary(name, colour, 40, 24, planes, CPU)
    norms = dictionary.squared_norms()
    for atom in range(0, dictionary.count, 97):
        values = torch.zeros(dictionary.channels, dictionary.count)
        values[0, atom] = 1
        found = float(dictionary.synthesise(values).square().sum())
        # a mirrored border changes a wavelet atom's norm
        assert found == pytest.approx(float(norms[atom]), rel=1e-5 if name == "blocks" else 1.6)


@pytest.mark.parametrize("size", SIZES)
def test_integer_decoder_is_the_float_synthesis(kind, size):
    name, colour, planes = kind
    dictionary = Dictionary(name, colour, *size, planes, CPU)
    generator = torch.Generator().manual_seed(0)
    shape = (dictionary.channels, dictionary.count)
    integers = torch.randint(-3, 4, shape, generator=generator).float()
    on = (integers != 0).any(0)
    matrix = find_matrix(drawn(*size)) if colour == "opponent" else ()
    bands = len(dictionary.places)
    code = assemble(dictionary, integers, on, [5.5] * bands, [3] * bands, 0.25, matrix)
    amounts = 5.5 * integers - 0.25 * integers.sign()
    planes_wanted = dictionary.synthesise(amounts)
    if matrix:
        rows = torch.tensor(matrix).view(3, 3) / 2**14
        planes_wanted = (rows @ planes_wanted.flatten(1)).view_as(planes_wanted)
    wanted = (planes_wanted + 128).clamp(0, 255).permute(1, 2, 0).numpy()
    decoded = decode_picture(code)
    assert decoded.shape == (*size, planes)
    assert np.abs(decoded - wanted).max() <= 0.51


def test_decoding_needs_every_band():
    with pytest.raises(ValueError, match="argument"):
        decode_picture(Code(8, 8, 1, "blocks", "rgb", 0, ()))


def test_an_empty_code_is_grey():
    places = layout("wavelet", "rgb", 5, 9, 1)
    bands = tuple(
        Band(
            place.level,
            place.plane,
            place.kind,
            np.zeros((place.height, place.width), bool),
            np.zeros((0, 1), np.int32),
            4096,
            0,
        )
        for place in places
    )
    assert (decode_picture(Code(5, 9, 1, "wavelet", "rgb", 0, bands)) == 128).all()


def test_rotated_colours_come_back():
    picture = drawn(33, 20)
    matrix = find_matrix(picture)
    planes = to_planes(picture, matrix, CPU)
    fixed = (planes.double() * 4096).round().to(torch.int64).numpy()
    assert np.array_equal(to_picture(fixed, matrix), picture)
    # the first plane holds most of the edges
    spread = planes.diff(dim=1).square().sum((1, 2))
    assert spread[0] > spread[1] > spread[2]


def test_matrix_of_a_grey_or_flat_picture_is_a_rotation():
    for picture in (np.full((1, 1, 3), 7, np.uint8), np.repeat(drawn(16, 16)[..., :1], 3, 2)):
        rows = np.array(find_matrix(picture)).reshape(3, 3) / 2**14
        assert np.abs(rows.T @ rows - np.eye(3)).max() < 1e-3


def test_psnr_of_equal_pictures_is_infinite():
    picture = drawn(4, 4)
    assert psnr(picture, picture) == float("inf")
    assert psnr(np.zeros((2, 2, 1), np.uint8), np.full((2, 2, 1), 255, np.uint8)) == 0


def drawn(height, width):
    """A red disc on a blue gradient."""
    rows, columns = np.mgrid[:height, :width]
    disc = (rows - height / 2) ** 2 + (columns - width / 2) ** 2 < (min(height, width) / 3) ** 2
    red = np.where(disc, 220, 40)
    green = np.where(disc, 60, 80)
    blue = 60 + 120 * columns // max(1, width)
    return np.stack([red, green, blue], -1).astype(np.uint8)
