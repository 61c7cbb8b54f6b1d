"""Made-up strokes, and the map that is fitted to them."""

import numpy as np
import pytest
import torch

from fl_dpbayes.config.task import ScatteringFeatures, StrokeProjection
from fl_dpbayes.models.feature_map import feature_map, feature_shape
from fl_dpbayes.models.strokes import draw_strokes, fit_projection
from tests.asking import refused

SIDE = 16
KEPT = 20
PLAIN = ScatteringFeatures(angles=4)
SMALL = StrokeProjection(characters=200, copies=3, dimensions=KEPT)
CPU = torch.device("cpu")


def scattered(pictures: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(
        feature_map(PLAIN, (1, SIDE, SIDE))(pictures.reshape(-1, 1, SIDE, SIDE))
    )


@pytest.fixture(scope="module")
def projection():
    return fit_projection(SMALL, SIDE, lambda pictures: scattered(pictures.numpy()), CPU)


def recognised(features: np.ndarray) -> float:
    """Share of first copies with the nearest second copy of their character, (characters, 2, k)."""
    distances = np.linalg.norm(features[:, None, 0] - features[None, :, 1], axis=2)
    return float((distances.argmin(axis=1) == np.arange(len(features))).mean())


def test_characters_are_ink_on_paper_and_no_two_copies_are_alike() -> None:
    pictures, again = (draw_strokes(6, 3, 28, np.random.default_rng(0)) for _ in range(2))
    assert pictures.shape == (6, 3, 28, 28)
    assert pictures.min() == 0
    assert pictures.max() == 1
    assert len({picture.tobytes() for picture in pictures.reshape(18, -1)}) == 18
    assert ((pictures > 0.5).mean(axis=(2, 3)) < 0.5).all()
    assert np.array_equal(pictures, again)
    assert not np.array_equal(pictures, draw_strokes(6, 3, 28, np.random.default_rng(1)))


def test_map_tells_new_characters_apart_better_than_as_many_random_directions(projection) -> None:
    fresh = scattered(draw_strokes(150, 2, SIDE, np.random.default_rng(9)))
    directions = torch.randn(fresh.shape[1], KEPT, generator=torch.Generator().manual_seed(0))
    found, random = (
        recognised(part.numpy().reshape(150, 2, -1))
        for part in (projection(fresh), fresh @ directions)
    )
    # By chance .007; a difference of .2 is four standard errors.
    assert found > random + 0.2


def test_directions_are_uncorrelated_within_a_character(projection) -> None:
    # V^T (S_w + floor) V is the identity on the pictures that V was fitted to.
    pictures = scattered(draw_strokes(200, 3, SIDE, np.random.default_rng(0)))
    mapped = (
        (torch.nn.functional.normalize(pictures, dim=1) @ projection.matrix)
        .double()
        .reshape(200, 3, -1)
    )
    deviations = (mapped - mapped.mean(dim=1, keepdim=True)).flatten(0, 1)
    floor = 1e-4 * (projection.matrix.double().T @ projection.matrix.double())
    metric = deviations.T @ deviations / 400 + floor
    np.testing.assert_allclose(metric, np.eye(KEPT), atol=2e-3)


def test_feature_map_ends_with_the_projection_of_root_mean_square_one_whatever_the_batch(
    projection,
) -> None:
    features = ScatteringFeatures(angles=4, projection=SMALL)
    assert feature_shape(features, (1, SIDE, SIDE)) == (KEPT,)
    records = draw_strokes(4, 1, SIDE, np.random.default_rng(6)).reshape(4, 1, SIDE, SIDE)
    together = projection(scattered(records))
    mapped = feature_map(features, (1, SIDE, SIDE))(records)
    np.testing.assert_allclose(mapped, together.numpy(), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(together.square().mean(dim=1), torch.ones(4))
    torch.testing.assert_close(
        projection(scattered(records[2:3]))[0], together[2], rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("shape", [(3, SIDE, SIDE), (1, SIDE, 2 * SIDE)])
def test_colour_and_oblong_pictures_are_refused(shape: tuple[int, ...]) -> None:
    refused(r"features\.projection", feature_shape, ScatteringFeatures(projection=SMALL), shape)
