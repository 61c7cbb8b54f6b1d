import math

import numpy as np
import pytest

from fl_dpbayes.calibration.intervals import NORMAL_QUANTILE, wilson_interval
from fl_dpbayes.calibration.metrics import scores as loss_intervals
from fl_dpbayes.calibration.metrics.scores import brier_interval, nll_interval
from fl_dpbayes.calibration.statistics import empty, from_batch, merge

INTERVALS = {"nll": nll_interval, "brier": brier_interval}


def two_classes(confidence, right):
    return from_batch(np.stack([confidence, 1 - confidence], axis=1), np.where(right, 0, 1))


def share_held(score, draw, truth, count, replicates, seed):
    generator = np.random.default_rng(seed)
    found = [INTERVALS[score](draw(generator, count)) for _ in range(replicates)]
    return np.mean([low <= truth <= high for low, high in found])


@pytest.mark.parametrize("score", INTERVALS)
def test_covers_confident_models_of_few_records(score):
    # The central-limit interval covers 80 to 85 % here. Truth: means over p uniform on [.9, .99] of p's entropy (nats)
    # and of 2 p (1 - p).
    p = np.linspace(0.9, 0.99, 100_001)
    truth = {"nll": np.mean(-p * np.log(p) - (1 - p) * np.log(1 - p)), "brier": np.mean(2 * p * (1 - p))}[score]

    def draw(generator, count):
        p = generator.uniform(0.9, 0.99, count)
        return two_classes(p, generator.random(count) < p)

    assert share_held(score, draw, truth, 100, 600, 21) > 0.93 - 3 * math.sqrt(0.93 * 0.07 / 600)


@pytest.mark.slow
@pytest.mark.parametrize("score", INTERVALS)
def test_covers_ten_classes(score):
    def draw(generator, count):
        p = generator.dirichlet(np.full(10, 0.6), count)
        labels = (generator.random((count, 1)) > p.cumsum(axis=1)).sum(axis=1).clip(0, 9)
        return from_batch(p, labels)

    p = np.random.default_rng(22).dirichlet(np.full(10, 0.6), 400_000)
    truth = {"nll": float(-(p * np.log(p)).sum(axis=1).mean()), "brier": float(1 - (p**2).sum(axis=1).mean())}[score]
    assert share_held(score, draw, truth, 400, 400, 23) > 0.93 - 3 * math.sqrt(0.93 * 0.07 / 400)


def test_equal_confidences_give_the_interval_of_a_proportion(monkeypatch):
    # Of records all as confident the loss is one of two values. Wilson's variance bends down away from the mean, which
    # makes his interval shorter by a share of z^2 / n.
    monkeypatch.setattr(loss_intervals, "QUANTILE", NORMAL_QUANTILE)
    monkeypatch.setattr(loss_intervals, "PSEUDO_RECORDS", 0.0)
    n, wrong, p = 10_000, 2_000, 0.7
    found = brier_interval(two_classes(np.full(n, p), np.arange(n) >= wrong))
    of_right, of_wrong = 2 * (1 - p) ** 2, 2 * p**2
    expected = [of_right + (of_wrong - of_right) * end for end in wilson_interval(wrong, n)]
    half = (expected[1] - expected[0]) / 2
    assert found == pytest.approx(expected, abs=half * NORMAL_QUANTILE**2 / n)


def test_without_a_wrong_answer_the_upper_end_allows_for_one():
    n, p = 200, 0.97
    low, high = nll_interval(two_classes(np.full(n, p), np.ones(n, bool)))
    mean = -math.log(p)
    assert 0 <= low <= mean
    assert high > mean + -math.log(1 - p) / n


def test_no_nll_interval_where_one_answer_could_change_too_much_limit():
    generator = np.random.default_rng(24)
    certain = np.where(generator.random(200) < 0.8, 1.0, generator.uniform(0.6, 1, 200))
    statistics = two_classes(certain, generator.random(200) < certain)
    assert nll_interval(statistics) is None
    assert brier_interval(statistics) is not None


def test_labels_do_not_decide_whether_it_is_shown():
    generator = np.random.default_rng(25)
    for count in (40, 60, 80, 120, 200):
        p = generator.uniform(0.5, 1, count)
        shown = {nll_interval(two_classes(p, np.full(count, right))) is None for right in (True, False)}
        assert len(shown) == 1


@pytest.mark.parametrize("score", INTERVALS)
def test_sites_add_up_to_their_pool(score):
    generator = np.random.default_rng(26)
    p = generator.uniform(0.5, 0.98, 300)
    right = generator.random(300) < p
    parts = merge(two_classes(p[:100], right[:100]), two_classes(p[100:], right[100:]))
    assert INTERVALS[score](parts) == pytest.approx(INTERVALS[score](two_classes(p, right)))


@pytest.mark.parametrize("score", INTERVALS)
def test_fewer_than_two_records_limit(score):
    assert INTERVALS[score](empty(2)) is None
    assert INTERVALS[score](from_batch([[0.7, 0.3]], [0])) is None


def test_a_certain_and_right_model_limit():
    certain = two_classes(np.ones(30), np.ones(30, bool))
    assert nll_interval(certain) is None
    assert brier_interval(certain) == (0.0, 0.0)
