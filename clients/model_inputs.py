"""What a model's trained layers see of a site's records: themselves, or fixed features of them."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from clients.messages import RefusedError
from clients.own_site import compute_device
from fl_dpbayes.config import BackboneFeatures, Features, FrozenBody, Model, SiteFile
from fl_dpbayes.data import SiteSplit, cached_features
from fl_dpbayes.errors import UserError
from fl_dpbayes.models import body_size, feature_shape, records_per_pass
from fl_dpbayes.models.feature_map import feature_map
from fl_dpbayes.models.frozen_body import frozen_body
from fl_dpbayes.protocol import RefusalCode


def model_inputs(site_file: SiteFile, model: Model, part: SiteSplit) -> SiteSplit:
    """Replace a part's records by the features that the model asks for.

    They are computed once and kept on the site's disk. To be called before the ledger reserves
    anything: features that the site cannot compute then cost no budget.

    Args:
        site_file: The site's own file.
        model: The model that sees the records.
        part: N records.

    Returns:
        The part, its features of shape (N, D) where the model has features or a frozen body.

    Raises:
        RefusedError: BAD_REQUEST if records of this shape have no such features; POLICY_DENIED if
            they would be computed by weights from the internet, or by a larger body, and the
            site's policy does not allow that.
        UserError: The site has not got the weights of backbone or body.
        OSError: The cache cannot be written.
    """
    if model.features is not None:
        part = _with_features(site_file, model.features, part)
    if model.frozen_body is not None:
        part = _with_body(site_file, model, model.frozen_body, part)
    return part


def _with_features(site_file: SiteFile, features: Features, part: SiteSplit) -> SiteSplit:
    downloads = isinstance(features, BackboneFeatures) and features.weights is None
    if downloads and not site_file.policy.allow_downloads:
        raise RefusedError(RefusalCode.POLICY_DENIED, "model.features.weights")
    shape = part.features.shape[1:]
    try:
        feature_shape(features, shape)
    except UserError:
        raise RefusedError(RefusalCode.BAD_REQUEST, "model.features") from None

    def compute(records: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        compute_features = feature_map(
            features,
            shape,
            backbone_folder=site_file.backbone_folder,
            device=compute_device(site_file),
        )
        return compute_features(records)

    cached = cached_features(site_file.cache_folder, features, part.features, compute)
    return replace(part, features=cached)


def _with_body(site_file: SiteFile, model: Model, body: FrozenBody, part: SiteSplit) -> SiteSplit:
    shape = part.features.shape[1:]
    try:
        size = body_size(model, shape)
    except (UserError, RuntimeError):
        # RuntimeError is how torch refuses a layer whose size does not fit its integers.
        raise RefusedError(RefusalCode.BAD_REQUEST, "model") from None
    if size > site_file.policy.max_parameters or not records_per_pass(model, shape):
        raise RefusedError(RefusalCode.POLICY_DENIED, "model.frozen_body")

    def compute(records: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        run_body = frozen_body(
            model,
            body,
            shape,
            weights_folder=site_file.backbone_folder,
            device=compute_device(site_file),
        )
        return run_body(records)

    cached = cached_features(site_file.cache_folder, model, part.features, compute)
    return replace(part, features=cached)


def capped_units(part: SiteSplit, max_records: int) -> SiteSplit:
    """Return the first `max_records` records of every unit, in their order.

    They have no truth, of which a table makes no use.
    """
    order = np.argsort(part.unit_index, kind="stable")
    sorted_units = part.unit_index[order]
    rank_in_unit = np.arange(len(order)) - np.searchsorted(sorted_units, sorted_units)
    rows = np.sort(order[rank_in_unit < max_records])
    return SiteSplit(
        part.features[rows],
        part.labels[rows],
        part.unit_index[rows],
        part.unit_count,
        groups={name: values[rows] for name, values in part.groups.items()},
    )
