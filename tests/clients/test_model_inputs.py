import numpy as np
import pytest

from clients.messages import RefusedError
from clients.model_inputs import model_inputs
from fl_dpbayes.config.site_file import Policy, SiteFile, Split
from fl_dpbayes.config.sources import BuiltIn
from fl_dpbayes.config.task import (
    BackboneFeatures,
    CNNModel,
    FrozenBody,
    LogisticModel,
    MLPModel,
    ScatteringFeatures,
)
from fl_dpbayes.data.site import SiteSplit, load_site
from fl_dpbayes.models import feature_map as feature_map_module
from fl_dpbayes.models.feature_map import feature_map
from tests.asking import refused

MODEL = LogisticModel(features=ScatteringFeatures())


@pytest.fixture
def site_file(tmp_path) -> SiteFile:
    return SiteFile(
        name="north",
        role="train",
        source=BuiltIn(kind="digits"),
        units=1400,
        split=Split(test_fraction=0.2, key="0" * 32),
        policy=Policy(max_run_epsilon=1.0),
        cache_folder=tmp_path / "cache",
        device="cpu",
    )


@pytest.mark.slow
def test_model_sees_its_features_which_the_site_computes_once_or_the_records(
    site_file, monkeypatch
):
    part = load_site(site_file).train
    assert model_inputs(site_file, LogisticModel(), part) is part
    assert not site_file.cache_folder.exists()
    found = model_inputs(site_file, MODEL, part)
    np.testing.assert_array_equal(
        found.features, feature_map(MODEL.features, (1, 8, 8))(part.features)
    )
    assert found.features.shape == (len(part.labels), 324)
    assert found.labels is part.labels
    assert found.unit_index is part.unit_index
    monkeypatch.setattr(
        feature_map_module.FeatureMap, "__call__", lambda *_: pytest.fail("computed again")
    )
    np.testing.assert_array_equal(model_inputs(site_file, MODEL, part).features, found.features)


def test_a_backbone_is_looked_for_in_the_sites_own_folder_only(site_file, tmp_path):
    part = load_site(site_file).train
    model = LogisticModel(features=BackboneFeatures(weights="0" * 64))
    refused("set backbone_folder", model_inputs, site_file, model, part)
    site_file = site_file.model_copy(update={"backbone_folder": tmp_path})
    refused("none of the 0 weight files", model_inputs, site_file, model, part)


def test_site_computes_a_body_once_and_keeps_others_apart(site_file, monkeypatch) -> None:
    part = load_site(site_file).train
    model = MLPModel(hidden=(20,), frozen_body=FrozenBody(seed=1))
    found = model_inputs(site_file, model, part).features
    assert found.shape == (len(part.labels), 20)
    other = MLPModel(hidden=(20,), frozen_body=FrozenBody(seed=2))
    assert not np.array_equal(found, model_inputs(site_file, other, part).features)
    monkeypatch.setattr(
        "clients.model_inputs.frozen_body", lambda *_, **__: pytest.fail("computed again")
    )
    np.testing.assert_array_equal(found, model_inputs(site_file, model, part).features)


BODY = FrozenBody()


@pytest.mark.parametrize(
    ("model", "shape", "said"),
    [
        (MLPModel(hidden=(40,), frozen_body=BODY), (1, 8, 8), "POLICY_DENIED model.frozen_body"),
        (
            MLPModel(hidden=(8192,) * 8, frozen_body=BODY),
            (1, 8, 8),
            "POLICY_DENIED model.frozen_body",
        ),
        (CNNModel(channels=(4, 4, 4, 4), frozen_body=BODY), (1, 8, 8), "BAD_REQUEST model"),
        (LogisticModel(features=ScatteringFeatures()), (13,), "BAD_REQUEST model.features"),
        # Weights from the internet are fetched only where the policy says so.
        (
            LogisticModel(features=BackboneFeatures()),
            (3, 32, 32),
            "POLICY_DENIED model.features.weights",
        ),
    ],
)
def test_what_records_or_policy_do_not_allow_is_refused_by_field(
    site_file, model, shape, said: str
) -> None:
    few = site_file.model_copy(update={"policy": Policy(max_run_epsilon=1.0, max_parameters=2000)})
    part = SiteSplit(
        np.zeros((1, *shape), np.float32), np.zeros(1, np.int64), np.zeros(1, np.int64), 1
    )
    with pytest.raises(RefusedError, match=f"^{said}$"):
        model_inputs(few, model, part)
