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

from fl_dpbayes.config import StrokeProjection

Array = npt.NDArray[np.float64]

POINTS_PER_STROKE = 48
MOST_STROKES = 3
# Of a character's box, as in the usual 28-pixel picture of a digit in a 20-pixel box.
BOX_SHARE = 19 / 28
PEN_WOBBLE = 0.05
ROTATION, SHEAR, LOG_ASPECT = 0.15, 0.2, 0.12
OFFSET_PIXELS = 0.3
# Half the width of the pen, in pixels of a 28-pixel picture.
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
    centre. Returns grey levels in [0, 1], shape (characters, copies, side, side).
    """
    pictures = np.zeros((characters, copies, side, side), np.float32)
    for number in range(characters):
        strokes = _strokes(generator)
        for copy in range(copies):
            points = _as_written(strokes, generator) * BOX_SHARE * side
            points += (side - 1) / 2 + generator.normal(0.0, OFFSET_PIXELS, 2) - points.mean(axis=0)
            pictures[number, copy] = _inked(
                points, generator.uniform(*PEN_RADIUS) * side / 28, side
            )
    return pictures


def _strokes(generator: np.random.Generator) -> Array:
    """Choose control points (strokes, 4, 2).

    Each stroke starts on the last one, half of them at its end.
    """
    strokes, start = [], generator.uniform(0.0, 1.0, 2)
    for _ in range(int(generator.integers(1, MOST_STROKES + 1))):
        controls = np.vstack([start, generator.uniform(-0.15, 1.15, (3, 2))])
        points = _bezier(controls)
        strokes.append(controls)
        start = points[generator.integers(len(points))] if generator.random() < 0.5 else controls[3]
    return np.stack(strokes)


def _bezier(controls: Array) -> Array:
    """Points of cubic Bezier curves: b(t) = (1-t)^3 c0 + 3 t (1-t)^2 c1 + 3 t^2 (1-t) c2 + t^3 c3."""
    t = np.linspace(0.0, 1.0, POINTS_PER_STROKE)
    basis = np.stack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], axis=1)
    return basis @ controls


def _as_written(strokes: Array, generator: np.random.Generator) -> Array:
    """Write a character once: points (P, 2) in a box whose longer side is 1."""
    points = _bezier(strokes + generator.normal(0.0, PEN_WOBBLE, strokes.shape)).reshape(-1, 2)
    angle, shear = generator.normal(0.0, ROTATION), generator.normal(0.0, SHEAR)
    stretch = np.exp(generator.normal(0.0, LOG_ASPECT))
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    points = (
        points @ rotation @ np.array([[1.0, shear], [0.0, 1.0]]) @ np.diag([stretch, 1 / stretch])
    )
    lowest, highest = points.min(axis=0), points.max(axis=0)
    return (points - lowest) / max(float((highest - lowest).max()), 1e-3)


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

    `mean`: m, shape (D,), float32. `matrix`: V, shape (D, k), float32.
    """

    mean: Tensor
    matrix: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Map features (N, D) to (N, k), each record by itself."""
        centred = torch.nn.functional.normalize(features, dim=1) - self.mean
        return (
            torch.nn.functional.normalize(centred @ self.matrix, dim=1)
            * self.matrix.shape[1] ** 0.5
        )


def fit_projection(
    settings: StrokeProjection,
    side: int,
    features_of: Callable[[Tensor], Tensor],
    device: torch.device,
) -> Projection:
    """Fit the projection to made-up characters.

    V holds the leading solutions of  S_t v = b (S_w + 1e-4 I) v  within the first 600 principal
    components of S_t, with S_t the covariance of all made-up features and S_w that within a
    character's copies, each v of length 1 in the metric S_w + 1e-4 I. The sign of each is fixed, so
    that every site computes one map (to rounding). `features_of` maps pictures (N, 1, side, side)
    on `device` to features (N, D). Source: Fisher's linear discriminants (Rao 1948).
    """
    pictures = draw_strokes(
        settings.characters, settings.copies, side, np.random.default_rng(settings.seed)
    )
    flat = torch.from_numpy(pictures).reshape(-1, 1, side, side)
    parts = [features_of(batch.to(device)).cpu() for batch in flat.split(IMAGES_PER_PASS)]
    found = torch.nn.functional.normalize(torch.cat(parts), dim=1).numpy()
    mean = found.mean(axis=0)
    centred = found - mean
    by_character = centred.reshape(settings.characters, settings.copies, -1)
    deviations = (by_character - by_character.mean(axis=1, keepdims=True)).reshape(centred.shape)
    total = (centred.T @ centred).astype(np.float64) / len(centred)
    size = len(total)
    components = min(PRINCIPAL_COMPONENTS, size)
    variances, basis = scipy.linalg.eigh(total, subset_by_index=[size - components, size - 1])
    reduced = deviations @ basis
    within = reduced.T @ reduced / (settings.characters * (settings.copies - 1))
    _, vectors = scipy.linalg.eigh(np.diag(variances), within + WITHIN_FLOOR * np.eye(components))
    matrix = basis @ vectors[:, ::-1][:, : settings.dimensions]
    matrix *= np.sign(matrix[np.abs(matrix).argmax(axis=0), np.arange(matrix.shape[1])])
    return Projection(
        torch.from_numpy(mean).to(device), torch.from_numpy(matrix.astype(np.float32)).to(device)
    )
