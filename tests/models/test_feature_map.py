from dataclasses import replace

import numpy as np
import pytest
import torch

from fl_dpbayes.config.task import BackboneFeatures, ScatteringFeatures, StandardFeatures
from fl_dpbayes.models.feature_map import feature_map, feature_shape
from tests.asking import refused


def images(*shape):
    return np.random.default_rng(0).random(shape, dtype=np.float32)


@pytest.mark.parametrize(
    ("features", "input_shape", "expected"),
    [
        (ScatteringFeatures(), (1, 28, 28), 3969),
        (ScatteringFeatures(scales=3), (1, 28, 28), 217 * 9),
        (ScatteringFeatures(angles=4), (3, 9, 12), 3 * 25 * 2 * 3),
    ],
)
def test_shape_is_announced(features, input_shape, expected):
    mapped = feature_map(features, input_shape)
    assert feature_shape(features, input_shape) == mapped.output_shape == (expected,)
    found = mapped(images(3, *input_shape))
    assert found.shape == (3, expected)
    assert found.dtype == np.float32
    assert mapped(images(0, *input_shape)).shape == (0, expected)


def test_records_are_independent_of_the_pass_they_are_in():
    mapped = feature_map(ScatteringFeatures(), (1, 28, 28))
    # More than two passes of as many rows as this processor allows.
    records = images(max(6, 2 * mapped.records_per_pass + 1), 1, 28, 28)
    together = mapped(records)
    for rows in ([0], [len(records) - 1], [5, 3], list(range(len(records)))[::-1]):
        np.testing.assert_array_equal(mapped(records[rows]), together[rows])


@pytest.mark.parametrize("count", [1, 15, 40])
def test_every_pass_has_one_number_of_rows(count):
    mapped = feature_map(ScatteringFeatures(), (1, 28, 28))
    seen = []

    def watched(batch):
        seen.append(len(batch))
        return mapped.transform(batch)

    assert len(replace(mapped, transform=watched)(images(count, 1, 28, 28))) == count
    assert set(seen) == {mapped.records_per_pass}
    # Of 16 rows, and where rows depend on each other here, of another public number.
    assert mapped.records_per_pass in {16, 32, 64, 1}


def test_each_colour_is_an_image_of_its_own():
    records = images(4, 3, 16, 16)
    in_colour = feature_map(ScatteringFeatures(), (3, 16, 16))(records).reshape(4, 3, -1)
    grey = feature_map(ScatteringFeatures(), (1, 16, 16))
    for channel in range(3):
        np.testing.assert_allclose(
            in_colour[:, channel], grey(records[:, channel : channel + 1]), atol=1e-5
        )


def test_records_may_be_read_only_and_the_global_generator_is_left_alone():
    records = images(2, 1, 8, 8)
    state = torch.get_rng_state()
    records.flags.writeable = False
    assert np.isfinite(feature_map(ScatteringFeatures(), (1, 8, 8))(records)).all()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("features", "input_shape", "message"),
    [
        (ScatteringFeatures(), (13,), "need images"),
        (BackboneFeatures(), (28, 28), "need images"),
        (ScatteringFeatures(), (2, 28, 28), "need images"),
        (ScatteringFeatures(scales=3), (1, 8, 8), "at least 16 x 16"),
        (ScatteringFeatures(scales=1, angles=16), (3, 256, 256), "allowed are 100000"),
    ],
)
def test_records_that_have_no_such_features_are_refused(features, input_shape, message):
    refused(message, feature_shape, features, input_shape)


def test_a_declared_geometry_gives_features_one_spread_and_no_correlation():
    generator = np.random.default_rng(0)
    covariance = [[4.0, 3.0], [3.0, 9.0]]
    centers = (1.0, -2.0)
    said = "made up for this test"
    records = generator.multivariate_normal(centers, covariance, 40_000).astype(np.float32)
    whitened = StandardFeatures(centers=centers, covariance=covariance, spread=0.5, source=said)
    assert np.allclose(np.cov(feature_map(whitened, (2,))(records).T), 0.25 * np.eye(2), atol=0.01)
    scaled = StandardFeatures(centers=centers, scales=(2.0, 3.0), source=said)
    assert np.allclose(
        feature_map(scaled, (2,))(records), (records - centers) / (2.0, 3.0), atol=1e-6
    )
    refused("centers has 2 values for records of shape", feature_map, scaled, (3,))
    # Of images, channel by channel.
    images = generator.random((5, 2, 3, 4)).astype(np.float32)
    standard = feature_map(scaled, (2, 3, 4))(images)
    assert standard.shape == images.shape
    for channel, (center, scale) in enumerate(zip(centers, (2.0, 3.0), strict=True)):
        assert np.allclose(standard[:, channel], (images[:, channel] - center) / scale, atol=1e-6)
    refused("give one for each channel", feature_map, scaled, (1, 3, 4))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({}, "exactly one of them"),
        ({"scales": (1.0,)}, "not of 2 values"),
        ({"covariance": ((1.0, 0.0),)}, "not of 2 values, or rows"),
        ({"covariance": ((1.0, 2.0), (2.0, 1.0))}, "positive definite"),
        ({"covariance": ((1.0, 0.5), (0.2, 1.0))}, "symmetric"),
        ({"scales": (1.0, 0.0)}, "greater than 0"),
    ],
)
def test_a_geometry_that_fits_nothing_is_refused(keys, said):
    with pytest.raises(ValueError, match=said):
        StandardFeatures(centers=(0.0, 0.0), source="made up for this test", **keys)
