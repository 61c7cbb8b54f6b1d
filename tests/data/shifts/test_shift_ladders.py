"""Every image shift at every resolution: more change at every step of severity, from the same draws."""

from typing import get_args

import numpy as np
import pytest

from fl_dpbayes.config.data import ImageShift
from fl_dpbayes.config.sources import BuiltIn
from fl_dpbayes.data.load import load_source
from fl_dpbayes.data.public_records import synthetic_inputs
from fl_dpbayes.data.shifts.acquisition import SEVERITIES, shift_images

KINDS = get_args(ImageShift)
SEEDS = range(3)
RANDOM_KINDS = ("exposure", "detector_noise", "inversion", "marker", "bias_field", "rotation")


@pytest.fixture(scope="module")
def pictures():
    generator = np.random.default_rng(7)
    return {
        "digits at 8": load_source(BuiltIn(kind="digits"), "train").features[:300],
        "smooth at 28": synthetic_inputs("noise", 60, (1, 28, 28), generator),
        "strokes at 28": synthetic_inputs("strokes", 60, (1, 28, 28), generator),
        "smooth at 224": synthetic_inputs("noise", 40, (1, 224, 224), generator),
        "colour at 112": synthetic_inputs("noise", 40, (3, 112, 112), generator),
    }


def check_ladder(images, kind, seed):
    changes = []
    for severity in range(1, 6):
        result = shift_images(images, kind, severity, np.random.default_rng(seed))
        assert result.dtype == np.float32
        assert result.shape == images.shape
        assert 0 <= result.min() <= result.max() <= 1
        difference = result.astype(np.float64) - images
        changes.append((np.abs(difference).mean(), np.sqrt(np.square(difference).mean())))
    assert changes[0][0] > 0
    assert (np.diff(changes, axis=0) > 0).all(), changes


@pytest.mark.parametrize(
    ("kind", "seed"), [(kind, seed) for kind in KINDS for seed in (SEEDS if kind in RANDOM_KINDS else (0,))]
)
@pytest.mark.parametrize("name", ["digits at 8", "smooth at 28", "strokes at 28", "smooth at 224", "colour at 112"])
def test_change_grows_with_severity(pictures, name, kind, seed):
    check_ladder(pictures[name], kind, seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("source", ["mnist", "pneumonia"])
def test_change_grows_with_severity_on_real_images(data_folder, source, kind, seed):
    part = "test" if source == "mnist" else "validation"
    records = load_source(BuiltIn(kind=source, folder=data_folder), part)
    check_ladder(records.features[100 * seed : 100 * seed + 100], kind, seed)


def test_every_kind_has_a_ladder_at_every_resolution():
    assert set(SEVERITIES) == set(KINDS)
    for ladders in SEVERITIES.values():
        assert set(ladders) == {8, 28, 224}


@pytest.mark.parametrize("kind", KINDS)
def test_a_shift_follows_from_its_generator(pictures, kind):
    images = pictures["strokes at 28"]
    first, again, other = (shift_images(images, kind, 3, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.array_equal(first, other) == (kind not in RANDOM_KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_do_not_depend_on_severity(pictures, kind):
    # A generator that was used as much in the same way goes on with the same number.
    images, following = pictures["strokes at 28"], set()
    for severity in range(1, 6):
        generator = np.random.default_rng(3)
        shift_images(images, kind, severity, generator)
        following.add(generator.random())
    assert len(following) == 1


def test_films_turn_the_same_way_at_every_severity():
    # A dot above the centre goes left or right of it.
    images = np.zeros((200, 1, 28, 28), dtype=np.float32)
    images[:, 0, 2, 13:15] = 1
    sides = []
    for severity in range(1, 6):
        result = shift_images(images, "rotation", severity, np.random.default_rng(4))
        sides.append(result[..., 14:].sum(axis=(1, 2, 3)) > result[..., :14].sum(axis=(1, 2, 3)))
    assert 0 < sides[0].sum() < 200
    assert all(np.array_equal(sides[0], side) for side in sides)


def test_the_log_bias_field_is_proportional_to_severity():
    images = np.full((5, 1, 28, 28), 0.1, dtype=np.float32)
    weak, strong = (shift_images(images, "bias_field", severity, np.random.default_rng(0)) for severity in (1, 3))
    assert strong.max() < 1
    np.testing.assert_allclose(np.log(strong / 0.1), 3 * np.log(weak / 0.1), atol=1e-5)


def test_a_letter_stands_in_a_corner_on_either_side():
    images = np.zeros((100, 1, 28, 28), dtype=np.float32)
    faint, full = (shift_images(images, "marker", severity, np.random.default_rng(0)) for severity in (1, 5))
    np.testing.assert_allclose(faint, 0.2 * full, atol=1e-7)
    left = full[..., :14].any(axis=(1, 2, 3))
    right = full[..., 14:].any(axis=(1, 2, 3))
    assert (left ^ right).all()
    # A fair coin: 4 standard errors of 5.
    assert abs(left.sum() - 50) < 20
    expected_r = [[1, 1, 0], [1, 0, 1], [1, 1, 0], [1, 0, 1], [1, 0, 1]]
    np.testing.assert_array_equal(full[left][0, 0, 1:6, 1:4], expected_r)
    assert not full[:, :, 7:].any()


def test_a_letter_covers_the_same_share_at_224_as_at_28():
    small, large = (
        shift_images(np.zeros((1, 1, side, side), np.float32), "marker", 5, np.random.default_rng(0)).mean()
        for side in (28, 224)
    )
    assert small == pytest.approx(large, rel=1e-6)


@pytest.mark.parametrize("side", [1, 2, 4])
def test_tiny_images_are_shifted_too(side):
    images = np.random.default_rng(0).random((3, 1, side, side), dtype=np.float32)
    for kind in ("marker", "bias_field", "resolution", "jpeg"):
        assert shift_images(images, kind, 5, np.random.default_rng(0)).shape == images.shape


def test_jpeg_at_high_quality_is_nearly_the_image(pictures):
    from fl_dpbayes.data.shifts.acquisition import compress_as_jpeg

    # 1/255 for rounding to 256 levels, about two more for a quality of 95 on smooth pictures.
    images = pictures["smooth at 28"]
    assert np.abs(compress_as_jpeg(images, 95) - images).mean() < 3 / 255
