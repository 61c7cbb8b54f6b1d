import math
from fractions import Fraction

import numpy as np
import pytest
from sklearn.metrics import log_loss

from fl_dpbayes.calibration.metrics import ranking, scores
from fl_dpbayes.calibration.metrics.scores import brier_interval, nll_interval
from fl_dpbayes.calibration.statistics import from_batch
from tests.counted import GOLDEN, binary, empty, top_label


def test_accuracy_nll_and_brier_agree_with_records():
    generator = np.random.default_rng(1)
    probabilities = generator.dirichlet(np.ones(4), 300)
    labels = generator.integers(0, 4, 300)
    statistics = from_batch(probabilities, labels)
    assert scores.accuracy(statistics).value == (probabilities.argmax(axis=1) == labels).mean()
    assert scores.nll(statistics).value == pytest.approx(
        log_loss(labels, probabilities, labels=range(4)), abs=1e-12
    )
    direct = ((probabilities - np.eye(4)[labels]) ** 2).sum(axis=1).mean()
    assert scores.brier(statistics).value == pytest.approx(direct, abs=1e-12)
    case = GOLDEN["ten_points"]
    twice = 2 * float(Fraction(case["brier"]))
    assert scores.brier(binary(case["p"], case["y"])).value == pytest.approx(twice, abs=1e-15)


def test_auroc_limits():
    equal = ranking.auroc(binary([0.5] * 4, [0, 1, 0, 1]))
    assert (equal.value, equal.bounds.low, equal.bounds.high) == (0.5, 0.0, 1.0)
    # The mean is over the classes that occur.
    probabilities = [[0.6, 0.3, 0.1], [0.3, 0.6, 0.1], [0.5, 0.4, 0.1]]
    labels = [0, 1, 1]
    assert ranking.auroc(from_batch(probabilities, labels)).value == pytest.approx(1.0)


INTERVALS = {"nll": nll_interval, "brier": brier_interval}


def share_held(score, draw, truth, count, replicates, seed):
    generator = np.random.default_rng(seed)
    found = [INTERVALS[score](draw(generator, count)) for _ in range(replicates)]
    return np.mean([low <= truth <= high for low, high in found])


@pytest.mark.slow
@pytest.mark.parametrize("score", INTERVALS)
def test_covers_ten_classes(score):
    def draw(generator, count):
        p = generator.dirichlet(np.full(10, 0.6), count)
        labels = (generator.random((count, 1)) > p.cumsum(axis=1)).sum(axis=1).clip(0, 9)
        return from_batch(p, labels)

    p = np.random.default_rng(22).dirichlet(np.full(10, 0.6), 400_000)
    truth = {
        "nll": float(-(p * np.log(p)).sum(axis=1).mean()),
        "brier": float(1 - (p**2).sum(axis=1).mean()),
    }[score]
    assert share_held(score, draw, truth, 400, 400, 23) > 0.93 - 3 * math.sqrt(0.93 * 0.07 / 400)


def test_no_nll_interval_where_one_answer_could_change_too_much_limit():
    generator = np.random.default_rng(24)
    certain = np.where(generator.random(200) < 0.8, 1.0, generator.uniform(0.6, 1, 200))
    statistics = top_label(certain, generator.random(200) < certain)
    assert nll_interval(statistics) is None
    assert brier_interval(statistics) is not None


def test_labels_do_not_decide_whether_it_is_shown():
    generator = np.random.default_rng(25)
    for count in (40, 60, 80, 120, 200):
        p = generator.uniform(0.5, 1, count)
        shown = {
            nll_interval(top_label(p, np.full(count, right))) is None for right in (True, False)
        }
        assert len(shown) == 1


def test_intervals_and_scores_of_none_one_or_certain_records_limit():
    for score in (scores.accuracy, scores.nll, scores.brier, ranking.auroc):
        assert score(empty(3)) is None
    for interval in INTERVALS.values():
        assert interval(empty(2)) is interval(from_batch([[0.7, 0.3]], [0])) is None
    certain = top_label(np.ones(30), np.ones(30, bool))
    assert nll_interval(certain) is None
    assert brier_interval(certain) == (0.0, 0.0)
