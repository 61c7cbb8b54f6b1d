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

    Attributes:
        output_shape: (D,); of standardised images that of the images.
        transform: A batch (N, *input_shape) -> (N, *output_shape), on `device`.
        passes: How many rows are transformed at a time, missing ones being zero, and how.
        device: Where it runs.
    """

    output_shape: tuple[int, ...]
    transform: Callable[[Tensor], Tensor]
    passes: PassShape
    device: torch.device

    @property
    def records_per_pass(self) -> int:
        """How many rows are transformed at a time."""
        return self.passes.rows

    def __call__(self, records: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Map records to features.

        Args:
            records: Of images pixels in [0, 1], shape (N, *input_shape); N may be 0.

        Returns:
            Shape (N, *output_shape).
        """
        note(self.passes)
        features = np.empty((len(records), *self.output_shape), np.float32)
        for start in range(0, len(records), self.records_per_pass):
            rows = slice(start, start + self.records_per_pass)
            uploaded = torch.tensor(records[rows], device=self.device)
            batch, is_record = padded(self.records_per_pass, uploaded)
            with computing(self.passes.products):
                transformed = self.transform(batch)
            features[rows] = transformed[is_record].cpu().numpy()
        return features


def checked_feature_map(
    key: Hashable,
    input_shape: tuple[int, ...],
    output_shape: tuple[int, ...],
    transform: Callable[[Tensor], Tensor],
    most_records: int,
    device: torch.device,
) -> FeatureMap:
    """Prepare a map whose passes have a number of rows at which each row stands alone.

    Args:
        key: What the map computes, to look for that number once.
        input_shape: Of one record.
        output_shape: As of `FeatureMap`.
        transform: As of `FeatureMap`.
        most_records: In a pass, >= 1; the largest power of 2 up to it is wanted.
        device: Where the map runs.

    Returns:
        The map.

    Raises:
        RowsDependError: A single row differs from itself.
    """

    def trials(shape: PassShape) -> list[Trial]:
        generator = torch.Generator().manual_seed(shape.rows)
        records = torch.rand((shape.rows, *input_shape), generator=generator).to(device)

        def results(part: Tensor, _targets: Tensor) -> list[Tensor]:
            with torch.no_grad(), computing(shape.products):
                return [transform(part)]

        targets = torch.zeros(shape.rows, device=device)
        return [Trial(results=results, features=records, targets=targets)]

    most = 2 ** (most_records.bit_length() - 1)
    wanted = PassShape("features", wanted=most, rows=most)
    shape_key = ("features", key, input_shape, str(device))
    return FeatureMap(
        output_shape=output_shape,
        transform=transform,
        passes=checked_shape(shape_key, wanted=wanted, trials=trials),
        device=device,
    )


def feature_shape(features: Features, input_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Say of what shape a record's features are, without computing any.

    Args:
        features: What is computed.
        input_shape: Of a record; of an image (1 or 3 channels, height, width).

    Returns:
        (D,); of standardised images that of the images.

    Raises:
        UserError: The records are no images, are too small, or would have more than 100,000
            features; or a geometry is of another number of values.
    """
    if isinstance(features, StandardFeatures):
        size = len(features.centers)
        is_image = len(input_shape) == 3
        if input_shape[0] != size or not (is_image or len(input_shape) == 1):
            remedy = "give one for each channel" if is_image else "give one each"
            raise UserError(
                f"features.centers has {size} values for records of shape {input_shape}: {remedy}"
            )
        return input_shape
    if len(input_shape) != 3 or input_shape[0] not in (1, 3):
        raise UserError(
            f"features of kind {features.kind!r} need images of shape (1 or 3, height, width), "
            f"not records of shape {input_shape}: remove features from the model"
        )
    if isinstance(features, BackboneFeatures):
        return (LAST_LAYER[features.architecture][1],)
    return _scattered_shape(features, input_shape)


def _scattered_shape(features: ScatteringFeatures, input_shape: tuple[int, ...]) -> tuple[int]:
    channels, height, width = input_shape
    smallest = 2 * 2**features.scales
    if min(height, width) < smallest:
        raise UserError(
            f"features.scales = {features.scales} needs images of at least {smallest} x "
            f"{smallest}, not {height} x {width}: lower features.scales"
        )
    count = channels * paths(features.scales, features.angles)
    count *= sampled_size(height, features.scales) * sampled_size(width, features.scales)
    if count > MAX_FEATURES:
        raise UserError(
            f"scattering gives {count} features for images of {height} x {width}, allowed "
            f"are {MAX_FEATURES}: use smaller images or fewer angles, or raise features.scales"
        )
    projection = features.projection
    if projection is None:
        return (count,)
    if channels != 1 or height != width or projection.dimensions > count:
        raise UserError(
            f"features.projection keeps {projection.dimensions} of {count} features of square grey "
            f"images, not of records of shape {input_shape}: lower dimensions, or remove projection"
        )
    synthetic_numbers = projection.characters * projection.copies * (height * width + count)
    if count > MAX_PROJECTED_FEATURES or synthetic_numbers > MAX_MADE_UP_NUMBERS:
        raise UserError(
            f"features.projection of {count} features by {projection.characters} x "
            f"{projection.copies} pictures takes too much memory, {MAX_PROJECTED_FEATURES} "
            f"features and {MAX_MADE_UP_NUMBERS:.0e} numbers are allowed: use smaller images or "
            "fewer angles or characters"
        )
    return (projection.dimensions,)


def feature_map(
    features: Features,
    input_shape: tuple[int, ...],
    *,
    backbone_folder: Path | None = None,
    device: str | torch.device = "cpu",
) -> FeatureMap:
    """Prepare the map from records to features.

    Args:
        features: What is computed.
        input_shape: Of a record; of an image (1 or 3 channels, height, width).
        backbone_folder: Where weights lie.
        device: Where the map runs.

    Returns:
        The map.

    Raises:
        UserError: The records cannot have such features, or a backbone's weights are missing or do
            not fit.
    """
    output_shape = feature_shape(features, input_shape)
    device = torch.device(device)
    transform: Callable[[Tensor], Tensor]
    if isinstance(features, BackboneFeatures):
        network = backbone(features, backbone_folder).to(device)
        transform = RowWise(network).features
        most_records = IMAGES_PER_PASS
    elif isinstance(features, StandardFeatures):
        transform = _standardised(features, device)
        most_records = ROWS_PER_PASS
    else:
        _, height, width = input_shape
        transform = _scattered(features, height=height, width=width, device=device)
        most_records = max(1, SCATTERED_PIXELS_PER_PASS // (height * width))
    return checked_feature_map(
        digest(features),
        input_shape=input_shape,
        output_shape=output_shape,
        transform=transform,
        most_records=most_records,
        device=device,
    )


def _standardised(features: StandardFeatures, device: torch.device) -> Callable[[Tensor], Tensor]:
    matrix = torch.tensor(features.matrix, dtype=torch.float32, device=device)
    centers = torch.tensor(features.centers, dtype=torch.float32, device=device)
    # Channels of an image are last while they are multiplied.
    return lambda records: ((records.movedim(1, -1) - centers) @ matrix).movedim(-1, 1)


# Fitting takes half a minute and depends on public constants only: once per process is enough.
@lru_cache(maxsize=2)
def _projection(features: ScatteringFeatures, side: int, device: torch.device) -> Projection:
    assert features.projection is not None
    unprojected = features.model_copy(update={"projection": None})
    transform = _scattered(unprojected, height=side, width=side, device=device)
    return fit_projection(features.projection, side, features_of=transform, device=device)


def _scattered(
    features: ScatteringFeatures, height: int, width: int, device: torch.device
) -> Callable[[Tensor], Tensor]:
    transform = scattering(
        height, width, scales=features.scales, angles=features.angles, device=device
    )
    project = None if features.projection is None else _projection(features, height, device)

    def of_records(records: Tensor) -> Tensor:
        # Each colour is an image of its own.
        of_images = normalised(transform(records.flatten(0, 1)))
        coefficients = of_images.unflatten(0, records.shape[:2]).flatten(1)
        return coefficients if project is None else project(coefficients)

    return of_records
