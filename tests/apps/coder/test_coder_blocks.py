"""The coder's building blocks, each alone."""

import math
from itertools import pairwise

import pytest
import torch

from fast_lapsum import soft_topk
from fast_lapsum.apps.coder import address_bits, anneal, bounded, dither_quantise, step_size


def test_annealing_is_geometric_and_ends_where_asked():
    temperatures = [anneal(step, 101) for step in range(101)]
    assert temperatures[0] == 1.0
    assert temperatures[-1] == pytest.approx(0.05)
    ratios = [b / a for a, b in pairwise(temperatures)]
    assert max(ratios) == pytest.approx(min(ratios))
    assert anneal(0, 1, start=0.3) == 0.3


@pytest.mark.parametrize(("step", "steps"), [(-1, 3), (3, 3), (0, 0)])
def test_annealing_names_a_step_that_does_not_exist(step, steps):
    with pytest.raises(ValueError, match=f"step={step}, steps={steps}"):
        anneal(step, steps)


def test_annealing_refuses_a_temperature_of_zero():
    with pytest.raises(ValueError, match="end=0"):
        anneal(0, 2, end=0)


def test_bounded_stays_inside_and_keeps_a_gradient():
    weight = torch.linspace(-4, 4, 9, dtype=torch.float64, requires_grad=True)
    amplitude = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    value = bounded(amplitude, weight)
    assert value.abs().max() < 3
    value.sum().backward()
    assert (weight.grad > 0).all()
    assert torch.autograd.gradcheck(bounded, (amplitude, weight))


def test_dither_has_the_error_of_a_quantiser():
    generator = torch.Generator().manual_seed(1)
    value = torch.randn(200_000, generator=generator)
    width = torch.tensor(0.7)
    error = dither_quantise(value, width, generator=generator) - value
    rounding = (value / width).round() * width - value
    assert error.abs().max() <= 0.35 + 1e-6
    assert float(error.mean()) == pytest.approx(0, abs=2e-3)
    assert float(error.var()) == pytest.approx(0.7**2 / 12, rel=0.02)
    assert float(error.var()) == pytest.approx(float(rounding.var()), rel=0.03)


def test_dither_is_differentiable_in_value_amplitude_and_bit_depth():
    value = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    amplitude = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    bits = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)

    def quantised(value, amplitude, bits):
        generator = torch.Generator().manual_seed(7)
        return dither_quantise(value, step_size(amplitude, bits), generator=generator)

    assert torch.autograd.gradcheck(quantised, (value, amplitude, bits))
    # more bits, less noise
    error = quantised(value, amplitude, bits).square().sum()
    (slope,) = torch.autograd.grad(error, bits)
    assert slope < 0


def test_dither_repeats_with_its_generator():
    draw = [
        dither_quantise(
            torch.zeros(9), torch.tensor(1.0), generator=torch.Generator().manual_seed(3)
        )
        for _ in range(2)
    ]
    assert torch.equal(*draw)


@pytest.mark.parametrize(("count", "places"), [(0, 0), (0, 9), (9, 9), (3, 9), (500, 12_288)])
def test_address_bits_count_the_choices(count, places):
    exact = math.log2(math.comb(places, count))
    assert address_bits(count, places) == pytest.approx(exact, abs=1e-6)
    counts = torch.tensor(count, dtype=torch.float64)
    assert float(address_bits(counts, places)) == pytest.approx(exact, abs=1e-6)


def test_address_bits_are_differentiable_in_soft_counts():
    counts = torch.tensor([0.5, 10.25, 4000.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda c: address_bits(c, 8192.0), (counts,))


def test_address_bits_refuse_more_atoms_than_places():
    with pytest.raises(ValueError, match="count=5, places=4"):
        address_bits(5, 4)


def test_rate_of_a_straight_through_mask_reaches_the_scores():
    scores = torch.randn(64, dtype=torch.float64, requires_grad=True)
    mask = soft_topk(scores, 8, 0.5, hard=True)
    assert set(mask.detach().tolist()) == {0.0, 1.0}
    rate = address_bits(mask[:16].sum(), 16) + address_bits(mask[16:].sum(), 48)
    rate.backward()
    assert scores.grad.abs().max() > 0
