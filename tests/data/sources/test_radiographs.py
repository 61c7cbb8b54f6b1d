"""Made-up radiographs: pixels, truth, a label that a model can learn, and sites that differ."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from fl_dpbayes.config.sources import Radiographs
from fl_dpbayes.data.load import load_source, load_unscaled
from fl_dpbayes.data.sources import radiographs
from fl_dpbayes.data.sources.radiographs import acquisition, draw_patients, draw_pictures

SOURCE = Radiographs(records=6000, test_records=1500, sites=3, heterogeneity=0.8, seed=2)
ALIKE = SOURCE.model_copy(update={"heterogeneity": 0.0})


@pytest.fixture(scope="module")
def records():
    return load_source(SOURCE, "train")


@pytest.fixture(scope="module")
def alike():
    return load_source(ALIKE, "train")


def of_site(records, number):
    return records.subset(records.natural_site == f"site-{number}")


def test_pictures_are_as_described(records):
    assert records.task == SOURCE.task
    assert records.unit == SOURCE.unit
    assert records.features.shape == (6000, 1, 28, 28)
    assert records.features.dtype == np.float32
    assert 0 <= records.features.min() < 0.1
    assert 0.9 < records.features.max() <= 1
    assert [len(of_site(records, number)) for number in (1, 2, 3)] == [2000] * 3
    assert len(np.unique(records.units)) == 6000


def test_truth_is_that_of_the_labels(records, alike, check_truth):
    for part in (records, alike, load_source(SOURCE, "test"), *(of_site(records, number) for number in (1, 2, 3))):
        check_truth(part)


def test_truth_follows_the_contrast_of_the_opacity():
    patients = draw_patients(400, np.random.default_rng(0))
    pictures = draw_pictures(patients, np.arange(400), 32)
    unaffected = draw_pictures(
        type(patients)(**{**vars(patients), "contrast": np.zeros_like(patients.contrast)}), np.arange(400), 32
    )
    added = (pictures - unaffected).max(axis=(1, 2))
    assert np.corrcoef(added, patients.contrast)[0, 1] > 0.99
    # The opacity lies in a lung: where it is strongest the chest without it is dark.
    brightest = (pictures - unaffected).reshape(400, -1).argmax(axis=1)
    assert (unaffected.reshape(400, -1)[np.arange(400), brightest] < 0.6).mean() > 0.95


def test_a_small_model_learns_the_label(alike):
    inputs = alike.features.reshape(len(alike), -1).astype(np.float64)
    inputs = np.column_stack([np.ones(len(inputs)), inputs - inputs.mean(axis=0)])
    train, test = inputs[:4500], inputs[4500:]
    weights = np.linalg.solve(train.T @ train + 10 * np.eye(train.shape[1]), train.T @ alike.labels[:4500])
    learnt = roc_auc_score(alike.labels[4500:], test @ weights)
    best = roc_auc_score(alike.labels[4500:], alike.truth[4500:, 1])
    assert 0.8 < learnt < best


def test_sites_differ_by_heterogeneity_only(records, alike):
    levels = [of_site(records, number).features.mean() for number in (1, 2, 3)]
    noise = [np.diff(of_site(records, number).features[:, 0, 0], axis=1).std() for number in (1, 2, 3)]
    # The average picture as each scanner takes it; few pixels reach the ends of the scale.
    taken = acquisition(SOURCE)
    expected_levels = 0.5 + taken.gains * (alike.features.mean() - 0.5) + taken.offsets
    np.testing.assert_allclose(levels, expected_levels, rtol=0, atol=0.01)
    assert np.ptp(taken.offsets) > 0.05
    assert max(noise) > 1.2 * min(noise)
    assert np.ptp([of_site(records, number).truth[:, 1].mean() for number in (1, 2, 3)]) > 0.03
    scanners = acquisition(ALIKE)
    for values, expected in (
        (scanners.gains, 1.0),
        (scanners.offsets, 0.0),
        (scanners.noises, 0.04),
        (scanners.intercepts, 0.0),
    ):
        np.testing.assert_array_equal(values, np.full(3, expected))
    means = np.array([of_site(alike, number).features.mean(axis=(1, 2, 3)).mean() for number in (1, 2, 3)])
    error = alike.features.mean(axis=(1, 2, 3)).std() / np.sqrt(2000)
    assert np.ptp(means) < 5 * error


def test_the_side_changes_the_resolution_and_not_the_patients(records):
    larger = load_source(SOURCE.model_copy(update={"side": 56, "records": 600}), "train")
    smaller = load_source(SOURCE.model_copy(update={"records": 600}), "train")
    np.testing.assert_array_equal(larger.labels, smaller.labels)
    np.testing.assert_array_equal(larger.truth, smaller.truth)
    halved = larger.features.reshape(600, 28, 2, 28, 2).mean(axis=(2, 4))
    # Grain apart, which half the side averages over four pixels.
    assert np.abs(halved - smaller.features[:, 0]).mean() < 0.06


@pytest.mark.parametrize("side", [8, 224])
def test_smallest_and_largest_side(side):
    records = load_unscaled(Radiographs(side=side, records=20, test_records=20), "test")
    assert records.features.shape == (20, 1, side, side)
    assert records.features.dtype == np.uint8
    assert records.task == Radiographs(side=side).task


def test_pictures_do_not_depend_on_how_many_are_drawn_at_once(monkeypatch):
    source = Radiographs(records=50, test_records=50)
    whole = load_unscaled(source, "train").features
    radiographs.load.cache_clear()
    monkeypatch.setattr("fl_dpbayes.data.sources.radiographs.PIXELS_AT_ONCE", 7 * 28 * 28)
    np.testing.assert_array_equal(load_unscaled(source, "train").features, whole)
