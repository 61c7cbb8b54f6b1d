"""What a model sees of a site's records: the records themselves, or fixed features of them."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from clients.device import compute_device
from clients.refused import RefusedError
from fl_dpbayes.data.feature_cache import cached_features
from fl_dpbayes.data.site import Part
from fl_dpbayes.data.site_file import SiteFile
from fl_dpbayes.errors import UserError
from fl_dpbayes.models.feature_map import feature_map, feature_shape
from fl_dpbayes.protocol.features import BackboneFeatures
from fl_dpbayes.protocol.refusal import RefusalCode
from fl_dpbayes.protocol.task import Model


def model_inputs(site_file: SiteFile, model: Model, part: Part) -> Part:
    """Replace a part's records by the features that the model asks for, computed once and kept on the site's disk.

    To be called before the ledger reserves anything: features that the site cannot compute then cost no budget.

    Args:
        site_file: the site; it says where the cache and the backbones' weights lie.
        model: its features are public constants of the federation.
        part: records for one purpose.

    Returns:
        The part, its features of shape (N, D) where the model has features of its own.

    Raises:
        RefusedError: BAD_REQUEST if records of this shape have no such features; POLICY_DENIED if they would be
            computed by weights from the internet and the site's policy does not allow that.
        UserError: if the site has not got the backbone's weights.
        OSError: if the cache cannot be written.
    """
    features = model.features
    if features is None:
        return part
    downloads = isinstance(features, BackboneFeatures) and features.weights is None
    if downloads and not site_file.policy.allow_downloads:
        raise RefusedError(RefusalCode.POLICY_DENIED, "model.features.weights")
    shape = part.features.shape[1:]
    try:
        feature_shape(features, shape)
    except UserError:
        raise RefusedError(RefusalCode.BAD_REQUEST, "model.features") from None

    def computed(records: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        device = compute_device(site_file)
        return feature_map(features, shape, backbone_folder=site_file.backbone_folder, device=device)(records)

    return replace(part, features=cached_features(site_file.cache_folder, features, part.features, computed))
