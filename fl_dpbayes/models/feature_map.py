"""From a record to the fixed features that a model's head sees."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fl_dpbayes.config import BackboneFeatures, Features, ScatteringFeatures, StandardFeatures
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import digest
from fl_dpbayes.models.backbone import LAST_LAYER, backbone
from fl_dpbayes.models.products import computing
from fl_dpbayes.models.row_wise import RowWise
from fl_dpbayes.models.rows import PassShape, Trial, checked_shape, note, padded
from fl_dpbayes.models.scattering import normalised, paths, sampled_size, scattering
from fl_dpbayes.models.strokes import Projection, fit_projection

MAX_FEATURES = 100_000
# A projection holds the covariance of its inputs and all synthetic pictures with their features:
# 300 MB and 2 GB.
MAX_PROJECTED_FEATURES = 6_000
MAX_MADE_UP_NUMBERS = 2.5e8
# Small passes keep the spectra of a scattering layer in a processor's cache: three times as fast as
# one large pass.
SCATTERED_PIXELS_PER_PASS = 16_384
IMAGES_PER_PASS = 32
ROWS_PER_PASS = 256


@dataclass(frozen=True)
class FeatureMap:
    """A fixed map from records to feature vectors, each record by itself to the last bit.

    `output_shape`: (D,). `transform`: a batch (N, *input_shape) -> (N, D), on `device`. `passes`:
    how many rows are transformed at a time, missing ones being zero, and how. `device`: where it
    runs.
    """

    output_shape: tuple[int]
    transform: Callable[[Tensor], Tensor]
    passes: PassShape
    device: torch.device

    @property
    def records_per_pass(self) -> int:
        """How many rows are transformed at a time."""
        return self.passes.rows

    def __call__(self, records: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Map records (N, *input_shape), of images pixels in [0, 1], to features (N, D).

        N may be 0.
        """
        note(self.passes)
        found = np.empty((len(records), *self.output_shape), np.float32)
        for start in range(0, len(records), self.records_per_pass):
            rows = slice(start, start + self.records_per_pass)
            batch, real = padded(
                self.records_per_pass, torch.tensor(records[rows], device=self.device)
            )
            with computing(self.passes.products):
                mapped = self.transform(batch)
            found[rows] = mapped[real].cpu().numpy()
        return found


def checked_feature_map(
    key: Hashable,
    input_shape: tuple[int, ...],
    output_shape: tuple[int],
    transform: Callable[[Tensor], Tensor],
    most_records: int,
    device: torch.device,
) -> FeatureMap:
    """Prepare a map whose passes have a number of rows at which each row stands alone.

    `most_records`: in a pass, >= 1; the largest power of 2 up to it is used; the rest as of
    `FeatureMap`. Raises RowsDependError if a single row differs from itself.
    """

    def trials(shape: PassShape) -> list[Trial]:
        generator = torch.Generator().manual_seed(shape.rows)
        records = torch.rand((shape.rows, *input_shape), generator=generator).to(device)

        def results(part: Tensor, _: Tensor) -> list[Tensor]:
            with torch.no_grad(), computing(shape.products):
                return [transform(part)]

        return [Trial(results, records, torch.zeros(shape.rows, device=device))]

    most = 2 ** (most_records.bit_length() - 1)
    wanted = PassShape("features", wanted=most, rows=most)
    passes = checked_shape(("features", key, input_shape, str(device)), wanted, trials)
    return FeatureMap(output_shape, transform, passes, device)


def feature_shape(features: Features, input_shape: tuple[int, ...]) -> tuple[int]:
    """Say how many features, (D,), a record (1 or 3 channels, height, width) has, without computing any.

    Raises UserError if the records are no images, are too small, or would have more than 100,000
    features; or if a geometry is of another number of values.
    """
    if isinstance(features, StandardFeatures):
        if input_shape != (size := len(features.centers),):
            raise UserError(
                f"features.centers has {size} values for records of shape {input_shape}: "
                "give one each"
            )
        return (size,)
    if len(input_shape) != 3 or input_shape[0] not in (1, 3):
        problem = f"features of kind {features.kind!r} need images of shape (1 or 3, height, width)"
        raise UserError(
            f"{problem}, not records of shape {input_shape}: remove features from the model"
        )
    if isinstance(features, BackboneFeatures):
        return (LAST_LAYER[features.architecture][1],)
    channels, height, width = input_shape
    smallest = 2 * 2**features.scales
    if min(height, width) < smallest:
        problem = (
            f"features.scales = {features.scales} needs images of at least {smallest} x {smallest}"
        )
        raise UserError(f"{problem}, not {height} x {width}: lower features.scales")
    count = channels * paths(features.scales, features.angles)
    count *= sampled_size(height, features.scales) * sampled_size(width, features.scales)
    if count > MAX_FEATURES:
        problem = (
            f"scattering gives {count} features for images of {height} x {width}, allowed "
            f"are {MAX_FEATURES}"
        )
        raise UserError(f"{problem}: use smaller images or fewer angles, or raise features.scales")
    projection = features.projection
    if projection is None:
        return (count,)
    if channels != 1 or height != width or projection.dimensions > count:
        problem = (
            f"features.projection keeps {projection.dimensions} of {count} features of "
            "square grey images"
        )
        raise UserError(
            f"{problem}, not of records of shape {input_shape}: lower dimensions, or "
            "remove projection"
        )
    made_up = projection.characters * projection.copies * (height * width + count)
    if count > MAX_PROJECTED_FEATURES or made_up > MAX_MADE_UP_NUMBERS:
        said = (
            f"features.projection of {count} features by {projection.characters} x "
            f"{projection.copies} pictures"
        )
        allowed = (
            f"{MAX_PROJECTED_FEATURES} features and {MAX_MADE_UP_NUMBERS:.0e} numbers are allowed"
        )
        raise UserError(
            f"{said} takes too much memory, {allowed}: use smaller images or fewer angles "
            "or characters"
        )
    return (projection.dimensions,)


def feature_map(
    features: Features,
    input_shape: tuple[int, ...],
    *,
    backbone_folder: Path | None = None,
    device: str | torch.device = "cpu",
) -> FeatureMap:
    """Prepare the map from records (1 or 3 channels, height, width) to features.

    Weights lie in `backbone_folder`.

    Raises UserError if the records cannot have such features, or a backbone's weights are missing
    or do not fit.
    """
    output_shape, device = feature_shape(features, input_shape), torch.device(device)
    transform: Callable[[Tensor], Tensor]
    if isinstance(features, BackboneFeatures):
        network = backbone(features, backbone_folder).to(device)
        transform, most_records = RowWise(network).features, IMAGES_PER_PASS
    elif isinstance(features, StandardFeatures):
        geometry = features.matrix, features.centers
        matrix, centers = (
            torch.tensor(one, dtype=torch.float32, device=device) for one in geometry
        )
        transform, most_records = (lambda records: (records - centers) @ matrix), ROWS_PER_PASS
    else:
        _, height, width = input_shape
        most_records = max(1, SCATTERED_PIXELS_PER_PASS // (height * width))
        transform = _scattered(features, height, width, device)
    return checked_feature_map(
        digest(features), input_shape, output_shape, transform, most_records, device
    )


# Fitting takes half a minute and depends on public constants only: once per process is enough.
@lru_cache(maxsize=2)
def _projection(features: ScatteringFeatures, side: int, device: torch.device) -> Projection:
    assert features.projection is not None
    transform = _scattered(features.model_copy(update={"projection": None}), side, side, device)
    return fit_projection(features.projection, side, transform, device)


def _scattered(
    features: ScatteringFeatures, height: int, width: int, device: torch.device
) -> Callable[[Tensor], Tensor]:
    transform = scattering(
        height, width, scales=features.scales, angles=features.angles, device=device
    )
    project = None if features.projection is None else _projection(features, height, device)

    def of_records(records: Tensor) -> Tensor:
        # Each colour is an image of its own.
        found = (
            normalised(transform(records.flatten(0, 1))).unflatten(0, records.shape[:2]).flatten(1)
        )
        return found if project is None else project(found)

    return of_records
