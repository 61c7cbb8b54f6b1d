"""A linear map of features that keeps what tells made-up characters apart and shrinks what varies within one.

A private head pays for every dimension with noise. Fewer and better dimensions help it more than any setting, and a map
that is fitted to made-up pictures costs no privacy.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.linalg
import torch
from torch import Tensor

from fl_dpbayes.config.task import StrokeProjection
from fl_dpbayes.models.strokes import draw_strokes

Array = npt.NDArray[np.float64]

# The map lives in the span of this many principal components of the made-up features.
PRINCIPAL_COMPONENTS = 600
# Added to the variance within a character, against dividing by directions in which made-up characters do not vary.
WITHIN_FLOOR = 1e-4
IMAGES_PER_PASS = 64


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
        centred = torch.nn.functional.normalize(features, dim=1) - self.mean
        return torch.nn.functional.normalize(centred @ self.matrix, dim=1) * self.matrix.shape[1] ** 0.5


def fit_projection(
    settings: StrokeProjection, side: int, features_of: Callable[[Tensor], Tensor], device: torch.device
) -> Projection:
    """Fit the projection to made-up characters.

    V holds the leading solutions of  S_t v = b (S_w + 1e-4 I) v  within the first 600 principal components of S_t, with
    S_t the covariance of all made-up features and S_w that within a character's copies, each v of length 1 in the
    metric S_w + 1e-4 I. The sign of each is fixed, so that every site computes one map (to rounding).

    Args:
        settings: how many characters, copies and dimensions, and the seed.
        side: height and width of the pictures in pixels.
        features_of: pictures (N, 1, side, side) -> features (N, D).
        device: where features are computed.

    Returns:
        The projection.

    Source:
        Fisher's linear discriminants (Rao 1948), with a class for each made-up character.
    """
    pictures = draw_strokes(settings.characters, settings.copies, side, np.random.default_rng(settings.seed))
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
    return Projection(torch.from_numpy(mean).to(device), torch.from_numpy(matrix.astype(np.float32)).to(device))
