"""Population shifts: prevalence, tilts by a feature and missing features, nested and as stated."""

from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from fl_dpbayes.config.data import DataSpec, IIDPartition, NaturalPartition, Shift, SiteSpec
from fl_dpbayes.config.sources import BuiltIn, Logistic2D
from fl_dpbayes.config.task import Task
from fl_dpbayes.data.records import Records, load_unscaled
from fl_dpbayes.data.shifts import apply
from tests.asking import refused


def table(count=500, classes=2, truth=False):
    generator = np.random.default_rng(11)
    probabilities = generator.dirichlet(np.ones(classes), count)
    return Records(
        (generator.normal(size=(count, 2)) * [1, 30] + [5, 60]).astype(np.float32),
        generator.integers(0, classes, count),
        np.arange(count),
        None,
        Task(input_shape=(2,), classes=classes),
        "patient",
        truth=probabilities if truth else None,
        groups={"sex": np.where(generator.random(count) < 0.4, "female", "male")},
        feature_names=("dose", "age"),
    )


def test_prevalence_keeps_the_stated_share_of_each_class():
    labels = np.repeat(np.arange(5), 1000)
    for severity, offset in enumerate(apply.LOGIT_OFFSETS, start=1):
        kept = apply.prevalence_indices(labels, 5, severity, np.random.default_rng(4))
        assert np.array_equal(
            np.bincount(labels[kept]), np.round(1000 * np.exp(-offset * np.arange(5) / 4))
        )


def test_prevalence_moves_the_known_log_odds_of_two_classes():
    points = load_unscaled(
        Logistic2D(records=20_000, sites=2, intercept=0.5, seed=3), "train"
    ).scaled()
    shift = Shift(kind="prevalence", severity=5)
    records = apply.apply_shift(points, shift, np.random.default_rng(5))
    before, after = (
        np.log(truth[:, 1] / truth[:, 0]) for truth in (points.truth[records.units], records.truth)
    )
    np.testing.assert_allclose(after - before, (after - before)[0], rtol=0, atol=1e-9)
    # Whole records are kept: the offset is 2.5 up to rounding.
    assert (after - before)[0] == pytest.approx(-2.5, abs=1e-3)
    # A class that the site lacks is made rarer by the planned share.
    without = points.subset(points.labels == 0)
    records = apply.apply_shift(without, shift, np.random.default_rng(5))
    np.testing.assert_array_equal(records.labels, without.labels)
    odds = without.truth[:, 1] / without.truth[:, 0]
    np.testing.assert_allclose(
        records.truth[:, 1] / records.truth[:, 0], odds * np.exp(-2.5), rtol=1e-9
    )


@pytest.mark.parametrize("severity", range(1, 6))
def test_tilt_weighs_exponentially(severity):
    generator = np.random.default_rng(100)
    values = (60 + 12 * generator.normal(size=100_000)).astype(np.float32)
    kept = apply.tilt_indices(values, severity, np.random.default_rng(0))
    score = (values.astype(np.float64) - values.mean(dtype=np.float64)) / values.std(
        dtype=np.float64
    )
    capped = np.minimum(score, apply.HIGHEST_STANDARD_SCORE)
    weights = np.exp(apply.TILT_RATES[severity - 1] * capped)
    expected = np.average(score, weights=weights)
    spread = np.sqrt(np.average(np.square(score - expected), weights=weights))
    assert abs(score[kept].mean() - expected) < 4 * spread / np.sqrt(len(kept))
    share = np.exp(apply.TILT_RATES[severity - 1] * (capped - apply.HIGHEST_STANDARD_SCORE)).mean()
    assert abs(len(kept) / len(values) - share) < 4 * np.sqrt(share * (1 - share) / len(values))


@pytest.mark.parametrize("keys", [{"kind": "prevalence"}, {"kind": "tilt", "feature": "age"}])
def test_kept_records_are_nested_in_order_and_keep_groups_and_truth(keys):
    records = table(truth=True)
    before, means = np.arange(len(records)), [records.features[:, 1].mean()]
    for severity in range(1, 6):
        shift = Shift(severity=severity, **keys)
        kept = apply.kept_indices(records, shift, np.random.default_rng(0))
        assert (np.diff(kept) > 0).all()
        assert set(kept) < set(before)
        shifted, before = apply.apply_shift(records, shift, np.random.default_rng(0)), kept
        np.testing.assert_array_equal(shifted.features, records.features[kept])
        np.testing.assert_array_equal(shifted.groups["sex"], records.groups["sex"][kept])
        np.testing.assert_array_equal(shifted.units, kept)
        assert shifted.truth.shape == (len(kept), 2)
        means.append(shifted.features[:, 1].mean())
        if "feature" in keys:
            np.testing.assert_array_equal(shifted.truth, records.truth[kept])
            assert means[-1] > means[-2]


def test_features_are_lost_at_the_stated_share_and_stay_lost():
    features = np.random.default_rng(9).normal(size=(4000, 5)).astype(np.float32)
    lost_before = np.zeros(features.shape, dtype=bool)
    for severity, share in enumerate(apply.MISSING_SHARES, start=1):
        left = apply.lose_features(features, severity, np.random.default_rng(0))
        lost = left == 0
        assert left.dtype == np.float32
        np.testing.assert_array_equal(left[~lost], features[~lost])
        assert abs(lost.mean() - share) < 4 * np.sqrt(share * (1 - share) / lost.size)
        assert (lost_before <= lost).all()
        assert lost.sum() > lost_before.sum()
        lost_before = lost


def test_feature_belongs_to_tilts():
    for keys, said in (
        ({"kind": "tilt"}, "needs the key"),
        ({"kind": "blur", "feature": "age"}, "remove it for kind"),
    ):
        with pytest.raises(ValidationError, match=said):
            Shift(**keys)


@pytest.mark.parametrize("feature", ["age", "sex", "chol"])
def test_hospitals_can_be_tilted(data_folder, tmp_path, feature, deal):
    shifts = [Shift(kind="tilt", feature=feature, severity=severity) for severity in (3, 4)]
    sites = {
        "cleveland": SiteSpec(role="train", shift=shifts[0]),
        "va": SiteSpec(role="shifted", shift=shifts[1]),
        "hungarian": SiteSpec(role="shifted", shift=Shift(kind="missing_features", severity=5)),
    }
    dealt = deal(sites, NaturalPartition(), DataSpec(source="heart"), data_folder)
    train, shifted, missing = dealt.load(tmp_path)
    # What a virtual site declares is exact.
    assert train.units == train.train.unit_count == dealt.plan.sites[0].train_units < 303 * 0.8
    assert shifted.units == shifted.test.unit_count == dealt.plan.sites[1].test_units < 130
    assert shifted.shift == f"tilt by {feature} (severity 4)"
    assert (missing.shift, missing.test.unit_count) == ("missing_features (severity 5)", 261)


@pytest.mark.parametrize(
    ("shift", "message"),
    [
        (Shift(kind="blur"), r"sites\.b\.shift\.kind 'blur' needs images"),
        (
            Shift(kind="tilt", feature="pulse"),
            r"sites\.b\.shift\.feature is 'pulse'.*choose one of age, sex",
        ),
    ],
)
def test_a_shift_that_cannot_be_is_refused_before_any_site_starts(
    data_folder, shift, message, deal
):
    sites = {"a": SiteSpec(role="train"), "b": SiteSpec(role="shifted", records=80, shift=shift)}
    refused(message, deal, sites, IIDPartition(), DataSpec(source="heart"), data_folder)


ROWS, DIGITS = (
    table(),
    load_unscaled(BuiltIn(kind="digits"), "train").scaled().subset(np.arange(10)),
)
CONSTANT = replace(ROWS, features=np.ones_like(ROWS.features))
NEEDS_TABLE = r"needs a table.*'gamma'.*'prevalence', 'label_flip'"


@pytest.mark.parametrize(
    ("records", "shift", "message"),
    [
        (
            ROWS,
            Shift(kind="tilt", feature="weight"),
            "shift.feature is 'weight'.*choose one of dose, age",
        ),
        (ROWS, Shift(kind="marker"), "'marker' needs images.*'tilt', 'missing_features'"),
        (DIGITS, Shift(kind="tilt", feature="age"), NEEDS_TABLE),
        (DIGITS, Shift(kind="missing_features"), NEEDS_TABLE),
        (CONSTANT, Shift(kind="tilt", feature="dose"), r"shift\.feature.*all have the same value"),
        (ROWS.subset(np.arange(0)), Shift(kind="tilt", feature="age"), "no records"),
    ],
)
def test_a_shift_that_the_records_do_not_allow_is_refused(records, shift, message):
    refused(message, apply.apply_shift, records, shift, np.random.default_rng(0))
