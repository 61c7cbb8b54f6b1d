from typing import get_args

import numpy as np
import pytest

from fl_dpbayes.config.data import ImageShift, Shift
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.sources import BuiltIn
from fl_dpbayes.config.task import Task
from fl_dpbayes.data.load import load_source
from fl_dpbayes.data.records import Records
from fl_dpbayes.data.shifts.acquisition import shift_images
from fl_dpbayes.data.shifts.annotation import FLIP_RATES, flip_labels
from fl_dpbayes.data.shifts.apply import apply_shift
from fl_dpbayes.data.shifts.population import LOGIT_OFFSETS, prevalence_indices

IMAGE_SHIFTS = get_args(ImageShift)


@pytest.fixture(scope="module")
def digits() -> Records:
    return load_source(BuiltIn(kind="digits"), "train").subset(np.arange(300))


def shifted(records, kind, severity, seed=0):
    return apply_shift(records, Shift(kind=kind, severity=severity), np.random.default_rng(seed))


@pytest.mark.parametrize("kind", IMAGE_SHIFTS)
@pytest.mark.parametrize("shape", [(1, 3, 8, 8), (2, 3, 128, 120)])
def test_image_shifts_work_at_other_sizes_and_in_colour(kind, shape):
    images = np.random.default_rng(0).random(shape, dtype=np.float32)
    result = shift_images(images, kind, 5, np.random.default_rng(1))
    assert result.shape == shape
    assert not np.array_equal(result, images) or kind == "inversion"


def test_detector_noise_is_the_same_draw_at_every_severity():
    images = np.full((4, 1, 28, 28), 0.5, dtype=np.float32)
    weak, strong = (shift_images(images, "detector_noise", severity, np.random.default_rng(5)) for severity in (1, 5))
    # Pixels near .5 are rounded to 6e-8.
    np.testing.assert_allclose(strong - 0.5, 0.10 / 0.04 * (weak - 0.5), rtol=0, atol=3e-7)


def test_exposure_variance_is_pixel_over_dose():
    images = np.full((50, 1, 28, 28), 0.5, dtype=np.float32)
    noise = shift_images(images, "exposure", 5, np.random.default_rng(5)) - images
    # Variance .5/50 = .01 from 39,200 draws: standard error .01 sqrt(2/39200).
    assert abs(noise.var() - 0.01) < 4 * 0.01 * np.sqrt(2 / noise.size)


def test_inversion_at_full_severity_is_the_negative(digits):
    np.testing.assert_array_equal(shifted(digits, "inversion", 5).features, 1 - digits.features)


def test_films_inverted_at_one_severity_are_inverted_at_every_higher_one(digits):
    before: set[int] = set()
    for severity in range(1, 6):
        result = shifted(digits, "inversion", severity)
        inverted = set(np.flatnonzero((result.features != digits.features).any(axis=(1, 2, 3))).tolist())
        assert before < inverted
        before = inverted


def test_border_frame_of_two_pixels():
    images = np.ones((1, 1, 8, 8), dtype=np.float32)
    result = shift_images(images, "border", 5, np.random.default_rng(0))[0, 0]
    assert result[2:6, 2:6].min() == 1
    assert result.sum() == 16


def test_image_shift_needs_images():
    records = Records(np.zeros((2, 3), np.float32), np.array([0, 1]), np.arange(2), None,
                      Task(input_shape=(3,), classes=2), "record")  # fmt: skip
    with pytest.raises(UserError, match=r"'blur' needs images.*'prevalence'"):
        shifted(records, "blur", 3)


@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize("prevalence", [0.3, 0.7])
def test_prevalence_moves_by_the_logit_offset(severity, prevalence):
    labels = (np.arange(20_000) % 10 < prevalence * 10).astype(np.int64)
    kept = labels[prevalence_indices(labels, 2, severity, np.random.default_rng(0))]
    logit = np.log(kept.mean() / (1 - kept.mean()))
    expected = np.log(prevalence / (1 - prevalence)) - LOGIT_OFFSETS[severity - 1]
    # Rounding to whole records only: half a record of at least 490 positives.
    assert abs(logit - expected) < 0.5 / 490 * 1.1


def test_prevalence_tilts_many_classes():
    labels = np.repeat(np.arange(5), 1000)
    kept = labels[prevalence_indices(labels, 5, 3, np.random.default_rng(0))]
    expected = np.round(1000 * np.exp(-1.5 * np.arange(5) / 4))
    assert np.array_equal(np.bincount(kept), expected)


def test_prevalence_keeps_a_subset_in_order(digits):
    before = np.arange(len(digits))
    for severity in range(1, 6):
        kept = prevalence_indices(digits.labels, 10, severity, np.random.default_rng(4))
        assert (np.diff(kept) > 0).all()
        assert set(kept) < set(before)
        before = kept
    assert len(shifted(digits, "prevalence", 5, seed=4)) == len(before)


@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize("classes", [2, 10])
def test_labels_flip_at_the_stated_rate(severity, classes):
    labels = np.arange(20_000) % classes
    flipped = flip_labels(labels, classes, severity, np.random.default_rng(0))
    rate = FLIP_RATES[severity - 1]
    assert abs((flipped != labels).mean() - rate) < 4 * np.sqrt(rate * (1 - rate) / 20_000)
    assert flipped.min() >= 0
    assert flipped.max() < classes


def test_labels_flipped_at_one_severity_stay_flipped(digits):
    weak, strong = shifted(digits, "label_flip", 2), shifted(digits, "label_flip", 5)
    changed = weak.labels != digits.labels
    assert changed.any()
    assert np.array_equal(weak.labels[changed], strong.labels[changed])
    assert np.array_equal(weak.features, digits.features)
