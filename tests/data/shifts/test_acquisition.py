"""Acquisition shifts: more change at every step of severity, from the same draws, at every resolution."""

from itertools import product
from typing import get_args

import numpy as np
import pytest
import torch

from fl_dpbayes.config.data import ImageShift, Shift
from fl_dpbayes.config.sources import BuiltIn, Radiographs
from fl_dpbayes.data.public_records import synthetic_inputs
from fl_dpbayes.data.records import load_unscaled
from fl_dpbayes.data.shifts.acquisition import SEVERITIES, shift_images, turned_by
from fl_dpbayes.data.shifts.apply import apply_shift

KINDS = get_args(ImageShift)
RANDOM_KINDS = ("exposure", "detector_noise", "inversion", "marker", "bias_field", "rotation")


@pytest.fixture(scope="module")
def pictures():
    generator = np.random.default_rng(7)
    return {
        "digits at 8": load_unscaled(BuiltIn(kind="digits"), "train").scaled().features[:300],
        "smooth at 28": synthetic_inputs("noise", 60, (1, 28, 28), generator),
        "strokes at 28": synthetic_inputs("strokes", 60, (1, 28, 28), generator),
        "smooth at 224": synthetic_inputs("noise", 40, (1, 224, 224), generator),
        "colour at 112": synthetic_inputs("noise", 40, (3, 112, 112), generator),
    }


def at(images, kind, severity, seed=0):
    return shift_images(images, kind, severity, np.random.default_rng(seed))


def check_ladder(images, kind, seed):
    """Severities change more and more, stay in [0, 1], and use the generator alike."""
    changes, following = [], set()
    for severity in range(1, 6):
        generator = np.random.default_rng(seed)
        result = shift_images(images, kind, severity, generator)
        # A generator that was used as much in the same way goes on with the same number.
        following.add(generator.random())
        assert (result.dtype, result.shape) == (np.float32, images.shape)
        assert 0 <= result.min() <= result.max() <= 1
        difference = result.astype(np.float64) - images
        changes.append((np.abs(difference).mean(), np.sqrt(np.square(difference).mean())))
    assert changes[0][0] > 0
    assert (np.diff(changes, axis=0) > 0).all(), changes
    assert len(following) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_change_grows_with_severity_from_draws_that_do_not_depend_on_it(pictures, kind):
    assert set(SEVERITIES[kind]) == {8, 28, 224}
    for images in pictures.values():
        # Large pictures are many draws of their own; of inverted ones there must be enough for a
        # share.
        large = images.shape[-1] > 28
        for seed in range(3) if kind in RANDOM_KINDS and not large else (0,):
            check_ladder(images[:10] if large and kind != "inversion" else images, kind, seed)
    images = pictures["strokes at 28"]
    first, again, other = (at(images, kind, 3, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.array_equal(first, other) == (kind not in RANDOM_KINDS)
    for shape in ((1, 3, 8, 8), (2, 3, 128, 120), *((3, 1, side, side) for side in (1, 2, 4))):
        images = np.random.default_rng(0).random(shape, dtype=np.float32)
        result = at(images, kind, 5, 1)
        assert result.shape == shape
        assert not np.array_equal(result, images) or kind == "inversion" or shape[-1] < 8


def test_another_scanner_leaves_truth_and_labels():
    records = load_unscaled(Radiographs(records=200, test_records=20), "train").scaled()
    for kind in KINDS:
        after = apply_shift(records, Shift(kind=kind, severity=5), np.random.default_rng(5))
        np.testing.assert_array_equal(after.truth, records.truth)
        np.testing.assert_array_equal(after.labels, records.labels)


def test_noise_and_films_are_the_same_draw_at_every_severity():
    grey = np.full((4, 1, 28, 28), 0.5, dtype=np.float32)
    weak, strong = (at(grey, "detector_noise", severity, 5) for severity in (1, 5))
    # Pixels near .5 are rounded to 6e-8.
    np.testing.assert_allclose(strong - 0.5, 0.10 / 0.04 * (weak - 0.5), rtol=0, atol=3e-7)
    # A dot above the centre goes left or right of it.
    dot = np.zeros((200, 1, 28, 28), dtype=np.float32)
    dot[:, 0, 2, 13:15] = 1
    turned = [at(dot, "rotation", severity, 4) for severity in range(1, 6)]
    sides = [
        result[..., 14:].sum(axis=(1, 2, 3)) > result[..., :14].sum(axis=(1, 2, 3))
        for result in turned
    ]
    assert 0 < sides[0].sum() < 200
    assert all(np.array_equal(sides[0], side) for side in sides)
    # The log bias field is proportional to severity.
    dark = np.full((5, 1, 28, 28), 0.1, dtype=np.float32)
    weak, strong = (at(dark, "bias_field", severity) for severity in (1, 3))
    assert strong.max() < 1
    np.testing.assert_allclose(np.log(strong / 0.1), 3 * np.log(weak / 0.1), atol=1e-5)
    # The variance of exposure noise is pixel over dose.
    images = np.full((50, 1, 28, 28), 0.5, dtype=np.float32)
    noise = at(images, "exposure", 5, 5) - images
    # Variance .5/50 = .01 from 39,200 draws: standard error .01 sqrt(2/39200).
    assert abs(noise.var() - 0.01) < 4 * 0.01 * np.sqrt(2 / noise.size)


def test_films_inverted_at_one_severity_are_inverted_at_every_higher_one_and_a_border_is_black(
    pictures,
):
    digits, before = pictures["digits at 8"], set()
    for severity in range(1, 6):
        result = at(digits, "inversion", severity)
        inverted = set(np.flatnonzero((result != digits).any(axis=(1, 2, 3))).tolist())
        assert before < inverted
        before = inverted
    np.testing.assert_array_equal(result, 1 - digits)
    # A frame of two pixels.
    result = at(np.ones((1, 1, 8, 8), dtype=np.float32), "border", 5)[0, 0]
    assert result[2:6, 2:6].min() == 1
    assert result.sum() == 16


def test_a_letter_stands_in_a_corner_on_either_side():
    images = np.zeros((100, 1, 28, 28), dtype=np.float32)
    faint, full = (at(images, "marker", severity) for severity in (1, 5))
    np.testing.assert_allclose(faint, 0.2 * full, atol=1e-7)
    left = full[..., :14].any(axis=(1, 2, 3))
    right = full[..., 14:].any(axis=(1, 2, 3))
    assert (left ^ right).all()
    # A fair coin: 4 standard errors of 5.
    assert abs(left.sum() - 50) < 20
    expected_r = [[1, 1, 0], [1, 0, 1], [1, 1, 0], [1, 0, 1], [1, 0, 1]]
    np.testing.assert_array_equal(full[left][0, 0, 1:6, 1:4], expected_r)
    assert not full[:, :, 7:].any()
    # It covers the same share at 224 as at 28.
    small, large = (
        at(np.zeros((1, 1, side, side), np.float32), "marker", 5).mean() for side in (28, 224)
    )
    assert small == pytest.approx(large, rel=1e-6)


def test_pictures_are_turned_to_the_bit_as_torchvision_turns_them():
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional

    generator = torch.Generator().manual_seed(0)
    for shape, degrees in product(
        [(5, 1, 8, 8), (2, 3, 30, 20), (1, 1, 224, 224)], (-20.0, 4.0, 10.0)
    ):
        pictures = torch.rand(shape, generator=generator)
        expected = functional.rotate(pictures, degrees, interpolation=InterpolationMode.BILINEAR)
        assert torch.equal(turned_by(pictures, degrees), expected)
