import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fl_dpbayes.models.scattering import normalised, scattering


def periods(height, width):
    """Coordinates of the pixels in seven by seven periods."""
    for row, column in itertools.product(range(-3, 4), repeat=2):
        yield np.arange(height)[:, None] + row * height, np.arange(width)[None, :] + column * width


def morlet(height, width, scale, angle, angles):
    """The wavelet in space, made periodic, by its formula."""
    deviation = 0.8 * 2**scale
    frequency = 0.75 * math.pi / 2**scale
    slant = 4 / angles
    gaussian = np.zeros((height, width))
    wave = np.zeros((height, width), complex)
    for y, x in periods(height, width):
        along = x * math.cos(angle) + y * math.sin(angle)
        across = slant * (y * math.cos(angle) - x * math.sin(angle))
        bump = (
            np.exp(-(along**2 + across**2) / (2 * deviation**2))
            * slant
            / (2 * math.pi * deviation**2)
        )
        gaussian += bump
        wave += bump * np.exp(1j * frequency * along)
    return wave - gaussian * wave.sum() / gaussian.sum()


def gaussian_average(height, width, deviation):
    """The averaging filter in space, made periodic, by its formula."""
    total = sum(np.exp(-(x**2 + y**2) / (2 * deviation**2)) for y, x in periods(height, width))
    return total / total.sum()


def convolve(image, kernel, step):
    """Periodic convolution by its definition, at every step-th pixel."""
    height, width = image.shape
    found = np.zeros((height // step, width // step), complex)
    rows = np.arange(height)
    columns = np.arange(width)
    for row, column in itertools.product(range(found.shape[0]), range(found.shape[1])):
        turned = kernel[np.ix_((row * step - rows) % height, (column * step - columns) % width)]
        found[row, column] = (turned * image).sum()
    return found


def direct_scattering(image, margins, scales, angles):
    """Groups of coefficients as `Scattering` orders them, by slow sums in space."""
    stride = 2**scales
    padded = np.pad(image, margins, mode="reflect")

    def average(layer, resolution):
        kernel = gaussian_average(*layer.shape, 0.4 * 2 ** (scales - resolution))
        return convolve(layer, kernel, stride >> resolution).real[1:-1, 1:-1]

    def modulus(layer, scale, resolution):
        wavelets = (
            morlet(*layer.shape, scale - resolution, math.pi * k / angles, angles)
            for k in range(angles)
        )
        return [np.abs(convolve(layer, wavelet, 2 ** (scale - resolution))) for wavelet in wavelets]

    groups = [[average(padded, 0)]]
    for first in range(scales):
        layers = modulus(padded, first, 0)
        groups.append([average(layer, first) for layer in layers])
        for second in range(first + 1, scales):
            deeper = [modulus(layer, second, first) for layer in layers]
            groups.append([average(layer, second) for layer in itertools.chain(*deeper)])
    return [np.stack(group) for group in groups]


@pytest.mark.parametrize(
    ("height", "width", "scales", "margins"),
    [
        (8, 8, 1, ((2, 2), (2, 2))),
        (8, 10, 2, ((4, 4), (3, 3))),
        pytest.param(17, 16, 3, ((7, 8), (8, 8)), marks=pytest.mark.slow),
    ],
)
def test_transform_is_the_direct_convolution_in_space(height, width, scales, margins):
    images = np.random.default_rng(0).random((2, height, width))
    angles = 8 if scales == 1 else 4
    transform = scattering(height, width, scales=scales, angles=angles)
    left, right, top, bottom = transform.padding
    assert ((top, bottom), (left, right)) == margins
    found = transform(torch.tensor(images, dtype=torch.float32))
    for number, image in enumerate(images):
        expected = direct_scattering(image, margins, scales, angles)
        assert len(found) == len(expected)
        for group, wanted in zip(found, expected, strict=True):
            assert group[number].shape == wanted.shape
            np.testing.assert_allclose(group[number].numpy(), wanted, atol=2e-6)


def test_a_constant_image_has_order_zero_only_and_an_empty_one_nothing():
    transform = scattering(28, 28, scales=2, angles=8)
    groups = transform(torch.full((1, 28, 28), 0.7))
    torch.testing.assert_close(groups[0], torch.full((1, 1, 7, 7), 0.7))
    assert max(group.abs().max() for group in groups[1:]) < 1e-6
    assert torch.equal(normalised(transform(torch.zeros(1, 28, 28))), torch.zeros(1, 3969))


def digits(count):
    return torch.tensor(load_digits().images[:count] / 16, dtype=torch.float32)


def test_normalised_groups_have_mean_zero_and_at_most_unit_variance():
    groups = scattering(8, 8, scales=2, angles=8)(digits(5))
    features = normalised(groups)
    assert features.shape == (5, 324)
    # Order 0 is one path of 2 x 2 positions; then groups of four paths.
    pieces = [features[:, :4], *features[:, 4:].split(16, dim=1)]
    assert len(pieces) == 1 + 2 + 16 + 2
    raw = torch.cat([group.flatten(1) for group in groups], 1)
    raw_pieces = [raw[:, :4], *raw[:, 4:].split(16, dim=1)]
    for piece, before in zip(pieces, raw_pieces, strict=True):
        assert piece.mean(1).abs().max() < 1e-5
        variance = before.var(1, unbiased=False)
        torch.testing.assert_close(
            piece.var(1, unbiased=False), variance / (variance + 1e-4), atol=1e-4, rtol=1e-3
        )
