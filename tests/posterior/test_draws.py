"""Class probabilities per posterior sample and their histograms."""

import numpy as np
import pytest
from torch import nn

from fl_dpbayes.posterior.draws import class_histogram, class_probability_draws
from fl_dpbayes.posterior.predictive import predict


def test_the_mean_over_draws_is_the_prediction() -> None:
    generator = np.random.default_rng(0)
    module = nn.Linear(3, 4)
    samples = {
        "weight": generator.normal(size=(6, 4, 3)).astype(np.float32),
        "bias": generator.normal(size=(6, 4)).astype(np.float32),
    }
    features = generator.normal(size=(5, 3)).astype(np.float32)
    weights = generator.uniform(size=6)
    draws = class_probability_draws(module, samples, features)
    assert draws.shape == (6, 5, 4)
    expected = predict(module, samples, weights, features).probabilities
    np.testing.assert_allclose(np.average(draws, axis=0, weights=weights), expected, atol=1e-12)


def test_histogram_of_hand_made_draws() -> None:
    draws = np.array([[[0.0, 1.0]], [[0.09, 0.91]], [[0.5, 0.5]]])
    counts = class_histogram(draws, bins=10)
    assert counts.shape == (1, 2, 10)
    assert counts[0, 0].tolist() == [2, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert counts[0, 1].tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0, 2]


def test_every_class_of_every_record_counts_each_draw_once() -> None:
    generator = np.random.default_rng(0)
    draws = generator.dirichlet(np.ones(5), size=(100, 7))
    counts = class_histogram(draws)
    assert (counts.sum(axis=2) == 100).all()
    assert counts.mean(axis=(0, 1)) @ (np.arange(10) + 0.5) / 1000 == pytest.approx(0.2, abs=0.02)
