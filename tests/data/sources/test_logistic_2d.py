"""Points in the plane: their law, their truth, and how sites differ."""

import numpy as np
import pytest

from fl_dpbayes.config.sources import Logistic2D
from fl_dpbayes.data.load import load_source
from fl_dpbayes.data.sources.logistic_2d import site_laws

SOURCE = Logistic2D(records=60_000, test_records=9000, sites=3, heterogeneity=0.8, intercept=-0.5, seed=4)


@pytest.fixture(scope="module")
def records():
    return load_source(SOURCE, "train")


def logistic_regression(inputs, labels):
    """Return the maximum-likelihood estimate and its covariance, by Newton steps."""
    weights = np.zeros(inputs.shape[1])
    for _ in range(12):
        chances = 1 / (1 + np.exp(-inputs @ weights))
        information = inputs.T @ (inputs * (chances * (1 - chances))[:, None])
        weights = weights + np.linalg.solve(information, inputs.T @ (labels - chances))
    return weights, np.linalg.inv(information)


def test_logistic_regression_finds_each_sites_law(records):
    laws = site_laws(SOURCE)
    for number in range(SOURCE.sites):
        site = records.subset(records.natural_site == f"site-{number + 1}")
        inputs = np.column_stack([np.ones(len(site)), site.features])
        found, covariance = logistic_regression(inputs.astype(np.float64), site.labels)
        expected = np.array([laws.intercepts[number], *laws.slopes[number]])
        assert (np.abs(found - expected) < 4 * np.sqrt(np.diag(covariance))).all()
        mean_error = site.features.mean(axis=0) - laws.means[number]
        assert (np.abs(mean_error) < 4 / np.sqrt(len(site))).all()
        np.testing.assert_allclose(site.features.std(axis=0), 1, rtol=0, atol=4 / np.sqrt(2 * len(site)))
        correlation = np.corrcoef(site.features.T)[0, 1]
        assert abs(np.arctanh(correlation) - np.arctanh(laws.correlations[number])) < 4 / np.sqrt(len(site) - 3)


def test_truth_is_that_of_the_labels(records, check_truth):
    check_truth(records)
    for number in range(SOURCE.sites):
        check_truth(records.subset(records.natural_site == f"site-{number + 1}"))


def test_records_are_as_described(records):
    assert records.task == SOURCE.task
    assert records.unit == SOURCE.unit
    assert records.features.dtype == np.float32
    assert records.features.shape == (60_000, 2)
    assert len(np.unique(records.units)) == 60_000
    names, counts = np.unique(records.natural_site, return_counts=True)
    assert names.tolist() == ["site-1", "site-2", "site-3"]
    assert counts.tolist() == [20_000] * 3


def test_sites_differ_by_heterogeneity_only():
    alike = site_laws(SOURCE.model_copy(update={"heterogeneity": 0.0}))
    np.testing.assert_array_equal(alike.means, np.zeros((3, 2)))
    np.testing.assert_array_equal(alike.correlations, np.zeros(3))
    np.testing.assert_array_equal(alike.intercepts, np.full(3, -0.5))
    np.testing.assert_array_equal(alike.slopes, np.tile([1.5, -1.0], (3, 1)))
    apart = site_laws(SOURCE)
    further = site_laws(SOURCE.model_copy(update={"heterogeneity": 1.6}))
    np.testing.assert_allclose(further.means, 2 * apart.means, rtol=1e-12)
    assert np.ptp(apart.means, axis=0).min() > 0.1
    assert np.ptp(apart.intercepts) > 0.1
    assert np.ptp(apart.slopes, axis=0).min() > 0.1


def test_more_sites_leave_the_first_ones_as_they_are():
    more = site_laws(SOURCE.model_copy(update={"sites": 7}))
    np.testing.assert_array_equal(more.means[:3], site_laws(SOURCE).means)


def test_test_records_are_others_of_the_same_sites(records, check_truth):
    test = load_source(SOURCE, "test")
    assert len(test) == 9000
    check_truth(test)
    assert not set(records.features[:, 0].tolist()) >= set(test.features[:, 0].tolist())
    means = np.stack([test.features[test.natural_site == f"site-{number}"].mean(axis=0) for number in (1, 2, 3)])
    assert (np.abs(means - site_laws(SOURCE).means) < 4 / np.sqrt(3000)).all()
