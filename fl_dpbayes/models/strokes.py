"""Synthetic handwriting, and a linear map of features that keeps what tells its characters apart.

No record enters: what is fitted to these pictures is a public constant, like a wavelet, and costs
no privacy. A private head pays for every dimension with noise, so fewer and better dimensions help
it more than any setting.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.linalg
import torch
from torch import Tensor
from torch.nn.functional import normalize

from fl_dpbayes.config import StrokeProjection

Array = npt.NDArray[np.float64]

POINTS_PER_STROKE = 48
MOST_STROKES = 3
# Side of a character's box over that of its picture, as in the usual 28-pixel picture of a digit in
# a 20-pixel box.
BOX_SHARE = 19 / 28
# Standard deviations: of a control point (of the unit box), of the angle in radians, of the shear,
# of the logarithm of the stretch, and of the centre in pixels.
PEN_WOBBLE = 0.05
ROTATION = 0.15
SHEAR = 0.2
LOG_ASPECT = 0.12
OFFSET_PIXELS = 0.3
# Least and greatest half of the pen's width, in pixels of a 28-pixel picture.
PEN_RADIUS = (0.8, 2.0)
# The map lives in the span of this many principal components of the made-up features.
PRINCIPAL_COMPONENTS = 600
# Added to the variance within a character, against dividing by directions in which made-up
# characters do not vary.
WITHIN_FLOOR = 1e-4
IMAGES_PER_PASS = 64


def draw_strokes(
    characters: int, copies: int, side: int, generator: np.random.Generator
) -> npt.NDArray[np.float32]:
    """Draw characters of one to three connected cubic Bezier strokes, each several times.

    A copy moves every control point by N(0, .05^2), turns, shears and stretches the character, and
    draws it with a pen of its own width, its box 19/28 of the picture and its points' mean at the
    centre.

    Args:
        characters: How many characters.
        copies: How many pictures of each.
        side: Of a picture, in pixels.
        generator: Draws everything.

    Returns:
        Grey levels in [0, 1], shape (characters, copies, side, side).
    """
    pictures = np.zeros((characters, copies, side, side), np.float32)
    for number in range(characters):
        strokes = _strokes(generator)
        for copy in range(copies):
            points = _as_written(strokes, generator) * BOX_SHARE * side
            points += (side - 1) / 2 + generator.normal(0.0, OFFSET_PIXELS, 2) - points.mean(axis=0)
            radius = generator.uniform(*PEN_RADIUS) * side / 28
            pictures[number, copy] = _inked(points, radius=radius, side=side)
    return pictures


def _strokes(generator: np.random.Generator) -> Array:
    """Choose control points, shape (strokes, 4, 2).

    Each stroke starts on the last one, half of them at its end.
    """
    strokes = []
    start = generator.uniform(0.0, 1.0, 2)
    for _ in range(int(generator.integers(1, MOST_STROKES + 1))):
        controls = np.vstack([start, generator.uniform(-0.15, 1.15, (3, 2))])
        points = _bezier(controls)
        strokes.append(controls)
        start = controls[3]
        if generator.random() < 0.5:
            start = points[generator.integers(len(points))]
    return np.stack(strokes)


def _bezier(controls: Array) -> Array:
    """Return points of cubic Bezier curves, shape (..., points, 2).

    b(t) = (1-t)^3 c0 + 3 t (1-t)^2 c1 + 3 t^2 (1-t) c2 + t^3 c3
    """
    t = np.linspace(0.0, 1.0, POINTS_PER_STROKE)
    basis = np.stack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], axis=1)
    return basis @ controls


def _as_written(strokes: Array, generator: np.random.Generator) -> Array:
    """Write a character once: points (P, 2) in a box whose longer side is 1."""
    points = _bezier(strokes + generator.normal(0.0, PEN_WOBBLE, strokes.shape)).reshape(-1, 2)
    angle = generator.normal(0.0, ROTATION)
    shear = generator.normal(0.0, SHEAR)
    stretch = np.exp(generator.normal(0.0, LOG_ASPECT))
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    shearing = np.array([[1.0, shear], [0.0, 1.0]])
    stretching = np.diag([stretch, 1 / stretch])
    points = points @ rotation @ shearing @ stretching
    lowest = points.min(axis=0)
    longer_side = float((points.max(axis=0) - lowest).max())
    return (points - lowest) / max(longer_side, 1e-3)


def _inked(points: Array, radius: float, side: int) -> npt.NDArray[np.float32]:
    """Ink every pixel near a point: grey = clip(radius + 1/2 - distance, 0, 1)."""
    rows = (points[:, 0, None] - np.arange(side)) ** 2
    columns = (points[:, 1, None] - np.arange(side)) ** 2
    distance = np.sqrt((rows[:, :, None] + columns[:, None, :]).min(axis=0))
    return np.clip(radius + 0.5 - distance, 0.0, 1.0).astype(np.float32)


@dataclass(frozen=True)
class Projection:
    """A fixed affine map, then a normalisation of each record by itself.

        z = V^T (x / |x| - m),    output = sqrt(k) z / |z|

    Attributes:
        mean: m, shape (D,), float32.
        matrix: V, shape (D, k), float32.
    """

    mean: Tensor
    matrix: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Map features (N, D) to (N, k), each record by itself."""
        centred = normalize(features, dim=1) - self.mean
        return normalize(centred @ self.matrix, dim=1) * self.matrix.shape[1] ** 0.5


def fit_projection(
    settings: StrokeProjection,
    side: int,
    features_of: Callable[[Tensor], Tensor],
    device: torch.device,
) -> Projection:
    """Fit the projection to made-up characters.

    V holds the leading solutions of

        S_t v = b (S_w + 1e-4 I) v

    within the first 600 principal components of S_t, with S_t the covariance of all made-up
    features and S_w that within a character's copies, each v of length 1 in the metric
    S_w + 1e-4 I. The sign of each is fixed, so that every site computes one map (to rounding).

    Args:
        settings: How many characters, copies and dimensions, and the seed.
        side: Of a picture, in pixels.
        features_of: Pictures (N, 1, side, side) on `device` -> features (N, D).
        device: Where features are computed, and the projection lies.

    Returns:
        The projection.

    Source:
        Fisher's linear discriminants (Rao 1948).
    """
    pictures = draw_strokes(
        settings.characters,
        settings.copies,
        side=side,
        generator=np.random.default_rng(settings.seed),
    )
    images = torch.from_numpy(pictures).reshape(-1, 1, side, side)
    parts = [features_of(batch.to(device)).cpu() for batch in images.split(IMAGES_PER_PASS)]
    features = normalize(torch.cat(parts), dim=1).numpy()
    mean = features.mean(axis=0)
    centred = features - mean
    by_character = centred.reshape(settings.characters, settings.copies, -1)
    deviations = (by_character - by_character.mean(axis=1, keepdims=True)).reshape(centred.shape)
    total = (centred.T @ centred).astype(np.float64) / len(centred)
    size = len(total)
    components = min(PRINCIPAL_COMPONENTS, size)
    variances, basis = scipy.linalg.eigh(total, subset_by_index=[size - components, size - 1])
    reduced = deviations @ basis
    within = reduced.T @ reduced / (settings.characters * (settings.copies - 1))
    _, vectors = scipy.linalg.eigh(np.diag(variances), within + WITHIN_FLOOR * np.eye(components))
    leading = vectors[:, ::-1]
    matrix = basis @ leading[:, : settings.dimensions]
    largest_entries = matrix[np.abs(matrix).argmax(axis=0), np.arange(matrix.shape[1])]
    matrix *= np.sign(largest_entries)
    return Projection(
        mean=torch.from_numpy(mean).to(device),
        matrix=torch.from_numpy(matrix.astype(np.float32)).to(device),
    )
