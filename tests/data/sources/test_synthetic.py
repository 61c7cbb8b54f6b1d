"""Synthetic sources: their law and truth, how sites differ, bounds, seeds, and a place in a simulation."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError
from sklearn.linear_model import LogisticRegression

from fl_dpbayes.config.data import DataSpec, NaturalPartition, Shift, SiteSpec
from fl_dpbayes.config.sources import GaussianClasses, Logistic2D, Radiographs
from fl_dpbayes.data.records import load_unscaled
from fl_dpbayes.data.sources.logistic_2d import site_laws
from fl_dpbayes.data.sources.radiographs import acquisition, draw_patients, draw_pictures
from fl_dpbayes.files.kept import Kept
from tests.asking import refused

SIZE = {"records": 3000, "test_records": 600, "sites": 3, "seed": 1}
SOURCES = [Logistic2D(**SIZE), GaussianClasses(**SIZE), Radiographs(side=12, **SIZE)]
SITES = {
    "site-1": SiteSpec(role="train"),
    "site-2": SiteSpec(role="held_out", part="test"),
    "site-3": SiteSpec(role="shifted", shift=Shift(kind="prevalence", severity=2)),
}


def of_site(records, number):
    return records.subset(records.natural_site == f"site-{number}")


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.kind)
def test_a_name_is_a_source_whose_equal_seeds_give_equal_records_and_parts_differ(
    source, monkeypatch
):
    first = load_unscaled(source, "train").scaled()
    monkeypatch.setattr("fl_dpbayes.data.records.KEPT", Kept())
    again = load_unscaled(source, "train").scaled()
    assert first.labels is not again.labels
    assert DataSpec(source=source.kind).source == type(source)()
    assert source.with_place(Path.resolve) == source.located(None) == source
    np.testing.assert_array_equal(first.features, again.features)
    np.testing.assert_array_equal(first.labels, again.labels)
    other = load_unscaled(source.model_copy(update={"seed": 2}), "train").scaled()
    assert not np.array_equal(first.labels, other.labels)
    assert not np.array_equal(first.labels[:600], load_unscaled(source, "test").scaled().labels)
    refused("has no part 'validation': choose train or test", load_unscaled, source, "validation")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kind": "logistic-2d", "records": 5, "sites": 6}, "records is 5 for 6 sites"),
        ({"kind": "logistic-2d", "side": 28}, "Extra inputs"),
        (
            {"kind": "radiographs", "side": 224, "records": 12_000},
            "at side 224 at most 10699 are made",
        ),
    ],
)
def test_bounds(keys, message):
    with pytest.raises(ValidationError, match=message):
        DataSpec(source=keys)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.kind)
def test_natural_sites_travel_by_site_file_with_their_truth(source, tmp_path, deal):
    dealt = deal(SITES, NaturalPartition(), DataSpec(source=source))
    assert dealt.plan.source == source
    train, held_out, shifted = dealt.load(tmp_path)
    found = np.concatenate([train.train.truth, train.test.truth])[:, 1]
    np.testing.assert_array_equal(
        np.sort(found), np.sort(of_site(load_unscaled(source, "train").scaled(), 1).truth[:, 1])
    )
    np.testing.assert_array_equal(
        held_out.test.truth, of_site(load_unscaled(source, "test").scaled(), 2).truth
    )
    assert len(shifted.test.labels) < 1000
    assert shifted.test.truth.shape == (len(shifted.test.labels), 2)


# Points in the plane.

POINTS = Logistic2D(
    records=60_000, test_records=9000, sites=3, heterogeneity=0.8, intercept=-0.5, seed=4
)


@pytest.fixture(scope="module")
def points():
    return load_unscaled(POINTS, "train").scaled()


def logistic_regression(inputs, labels):
    """Return the maximum-likelihood estimate and its covariance; the first input is 1."""
    fit = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-9).fit(inputs, labels)
    spread = fit.predict_proba(inputs).prod(axis=1)
    return fit.coef_[0], np.linalg.inv(inputs.T @ (inputs * spread[:, None]))


@pytest.mark.parametrize("part", ["train", "test"])
def test_logistic_regression_finds_each_sites_law(part):
    laws, points = site_laws(POINTS), load_unscaled(POINTS, part).scaled()
    for number in range(POINTS.sites):
        site = of_site(points, number + 1)
        inputs = np.column_stack([np.ones(len(site)), site.features])
        found, covariance = logistic_regression(inputs.astype(np.float64), site.labels)
        expected = np.array([laws.intercepts[number], *laws.slopes[number]])
        assert (np.abs(found - expected) < 4 * np.sqrt(np.diag(covariance))).all()
        mean_error = site.features.mean(axis=0) - laws.means[number]
        assert (np.abs(mean_error) < 4 / np.sqrt(len(site))).all()
        np.testing.assert_allclose(
            site.features.std(axis=0), 1, rtol=0, atol=4 / np.sqrt(2 * len(site))
        )
        correlation = np.corrcoef(site.features.T)[0, 1]
        assert abs(np.arctanh(correlation) - np.arctanh(laws.correlations[number])) < 4 / np.sqrt(
            len(site) - 3
        )


def test_laws_of_points_differ_by_heterogeneity_only_and_more_sites_leave_the_first_ones_as_they_are():
    laws = {
        size: site_laws(POINTS.model_copy(update={"heterogeneity": size}))
        for size in (0.0, 0.8, 1.6)
    }
    more = site_laws(POINTS.model_copy(update={"sites": 7}))
    for name, average in {
        "means": (0, 0),
        "correlations": 0,
        "intercepts": -0.5,
        "slopes": (1.5, -1),
    }.items():
        alike, apart = (getattr(laws[size], name) for size in (0.0, 0.8))
        np.testing.assert_array_equal(alike, np.full_like(alike, average))
        np.testing.assert_array_equal(getattr(more, name)[:3], apart)
        assert np.ptp(apart, axis=0).min() > 0.1
    np.testing.assert_allclose(laws[1.6].means, 2 * laws[0.8].means, rtol=1e-12)


# Radiographs.

FILMS = Radiographs(records=6000, test_records=1500, sites=3, heterogeneity=0.8, seed=2)
ALIKE = FILMS.model_copy(update={"heterogeneity": 0.0})


@pytest.fixture(scope="module")
def films():
    return load_unscaled(FILMS, "train").scaled()


@pytest.fixture(scope="module")
def alike():
    return load_unscaled(ALIKE, "train").scaled()


@pytest.mark.parametrize("name", ["points", "films", "alike"])
def test_records_are_as_described_and_their_truth_is_that_of_the_labels(request, name, check_truth):
    records, source = (
        request.getfixturevalue(name),
        {"points": POINTS, "films": FILMS, "alike": ALIKE}[name],
    )
    assert (records.task, records.unit) == (source.task, source.unit)
    assert records.features.shape == (source.records, *source.task.input_shape)
    assert records.features.dtype == np.float32
    assert len(np.unique(records.units)) == source.records
    sites = [of_site(records, number) for number in (1, 2, 3)]
    assert [len(site) for site in sites] == [source.records // 3] * 3
    for part in (records, load_unscaled(source, "test").scaled(), *sites):
        check_truth(part)


def test_truth_follows_the_contrast_of_the_opacity():
    patients = draw_patients(400, np.random.default_rng(0))
    pictures = draw_pictures(patients, np.arange(400), 32)
    without = replace(patients, contrast=np.zeros_like(patients.contrast))
    unaffected = draw_pictures(without, np.arange(400), 32)
    added = (pictures - unaffected).max(axis=(1, 2))
    assert np.corrcoef(added, patients.contrast)[0, 1] > 0.99
    # The opacity lies in a lung: where it is strongest the chest without it is dark.
    brightest = (pictures - unaffected).reshape(400, -1).argmax(axis=1)
    assert (unaffected.reshape(400, -1)[np.arange(400), brightest] < 0.6).mean() > 0.95


def test_sites_differ_by_heterogeneity_only(films, alike):
    levels = [of_site(films, number).features.mean() for number in (1, 2, 3)]
    noise = [
        np.diff(of_site(films, number).features[:, 0, 0], axis=1).std() for number in (1, 2, 3)
    ]
    # The average picture as each scanner takes it; few pixels reach the ends of the scale.
    taken = acquisition(FILMS)
    expected_levels = 0.5 + taken.gains * (alike.features.mean() - 0.5) + taken.offsets
    np.testing.assert_allclose(levels, expected_levels, rtol=0, atol=0.01)
    assert np.ptp(taken.offsets) > 0.05
    assert max(noise) > 1.2 * min(noise)
    assert np.ptp([of_site(films, number).truth[:, 1].mean() for number in (1, 2, 3)]) > 0.03
    scanners = acquisition(ALIKE)
    for name, expected in {"gains": 1.0, "offsets": 0.0, "noises": 0.04, "intercepts": 0.0}.items():
        np.testing.assert_array_equal(getattr(scanners, name), np.full(3, expected))


def test_the_side_changes_the_resolution_and_not_the_patients():
    larger = load_unscaled(FILMS.model_copy(update={"side": 56, "records": 600}), "train").scaled()
    smaller = load_unscaled(FILMS.model_copy(update={"records": 600}), "train").scaled()
    np.testing.assert_array_equal(larger.labels, smaller.labels)
    np.testing.assert_array_equal(larger.truth, smaller.truth)
    halved = larger.features.reshape(600, 28, 2, 28, 2).mean(axis=(2, 4))
    # Grain apart, which half the side averages over four pixels.
    assert np.abs(halved - smaller.features[:, 0]).mean() < 0.06


def test_pictures_of_any_side_do_not_depend_on_how_many_are_drawn_at_once(monkeypatch):
    for side in (8, 224):
        records = load_unscaled(Radiographs(side=side, records=20, test_records=20), "test")
        assert (records.features.shape, records.features.dtype) == ((20, 1, side, side), np.uint8)
    source = Radiographs(records=50, test_records=50)
    whole = load_unscaled(source, "train").features
    monkeypatch.setattr("fl_dpbayes.data.records.KEPT", Kept())
    monkeypatch.setattr("fl_dpbayes.data.sources.radiographs.PIXELS_AT_ONCE", 7 * 28 * 28)
    np.testing.assert_array_equal(load_unscaled(source, "train").features, whole)
