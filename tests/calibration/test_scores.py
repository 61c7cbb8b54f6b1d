import json
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from fl_dpbayes.calibration.bins import coarsen
from fl_dpbayes.calibration.metrics import ranking, scores
from fl_dpbayes.calibration.statistics import empty, from_batch

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "calibration.json").read_text())


def binary(p, y):
    p = np.asarray(p, np.float64)
    return from_batch(np.stack([1 - p, p], axis=1), y)


def test_ten_points_decomposition_golden():
    case = GOLDEN["ten_points"]
    statistics = binary(case["p"], case["y"])
    terms = scores.decompose_table(coarsen(statistics.class_wise[1], case["bins"]))
    for name, value in asdict(terms).items():
        assert value == pytest.approx(float(Fraction(case[name])), abs=1e-15), name
    assert terms.brier == pytest.approx(float(Fraction(case["brier"])), abs=1e-15)
    assert scores.brier(statistics).value == pytest.approx(2 * float(Fraction(case["brier"])), abs=1e-15)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 80), st.integers(2, 5), st.sampled_from([1, 5, 15, 960]))
def test_five_terms_property_add_up(seed, count, classes, bins):
    generator = np.random.default_rng(seed)
    statistics = from_batch(generator.dirichlet(np.ones(classes), count), generator.integers(0, classes, count))
    assert scores.decompose_brier(statistics, bins).brier == pytest.approx(scores.brier(statistics).value, abs=1e-12)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.integers(0, 10_000), st.sampled_from([5, 15]))
def test_label_flip_property(seed, bins):
    generator = np.random.default_rng(seed)
    p, y = generator.uniform(0, 1, 100), generator.integers(0, 2, 100)
    one, other = (
        scores.decompose_table(coarsen(binary(*pair).class_wise[1], bins)) for pair in ((p, y), (1 - p, 1 - y))
    )
    assert asdict(one) == pytest.approx(asdict(other), abs=1e-12)
    assert ranking.auroc(binary(p, y)).value == pytest.approx(ranking.auroc(binary(1 - p, 1 - y)).value, abs=1e-12)


def test_accuracy_nll_and_brier_agree_with_records():
    generator = np.random.default_rng(1)
    probabilities, labels = generator.dirichlet(np.ones(4), 300), generator.integers(0, 4, 300)
    statistics = from_batch(probabilities, labels)
    assert scores.accuracy(statistics).value == (probabilities.argmax(axis=1) == labels).mean()
    assert scores.nll(statistics).value == pytest.approx(log_loss(labels, probabilities, labels=range(4)), abs=1e-12)
    direct = ((probabilities - np.eye(4)[labels]) ** 2).sum(axis=1).mean()
    assert scores.brier(statistics).value == pytest.approx(direct, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_auroc_lies_within_its_bounds(seed):
    generator = np.random.default_rng(seed)
    p = generator.beta(0.6, 0.6, 624)
    y = generator.random(624) < p
    area, exact = ranking.auroc(binary(p, y)), roc_auc_score(y, p)
    assert area.bounds.low <= exact <= area.bounds.high
    assert area.bounds.high - area.bounds.low < 3e-3
    assert area.value == pytest.approx(exact, abs=5e-4)


def test_multiclass_auroc_is_the_macro_average_of_one_against_the_rest():
    generator = np.random.default_rng(2)
    probabilities = generator.dirichlet(np.ones(3), 400)
    labels = np.array([generator.choice(3, p=row) for row in probabilities])
    area = ranking.auroc(from_batch(probabilities, labels))
    exact = roc_auc_score(labels, probabilities, multi_class="ovr", average="macro")
    assert area.bounds.low <= exact <= area.bounds.high


def test_auroc_averages_over_the_classes_that_occur():
    probabilities, labels = [[0.6, 0.3, 0.1], [0.3, 0.6, 0.1], [0.5, 0.4, 0.1]], [0, 1, 1]
    assert ranking.auroc(from_batch(probabilities, labels)).value == pytest.approx(1.0)


def test_auroc_of_one_label_is_undefined_limit():
    assert ranking.auroc(binary([0.2, 0.7], [1, 1])) is None
    assert ranking.auroc(from_batch([[0.2, 0.7, 0.1]], [2])) is None


def test_auroc_of_equal_scores_is_one_half_limit():
    area = ranking.auroc(binary([0.5] * 4, [0, 1, 0, 1]))
    assert (area.value, area.bounds.low, area.bounds.high) == (0.5, 0.0, 1.0)


@pytest.mark.parametrize("score", [scores.accuracy, scores.nll, scores.brier, ranking.auroc, scores.decompose_brier])
def test_without_records_undefined_limit(score):
    assert score(empty(3)) is None
