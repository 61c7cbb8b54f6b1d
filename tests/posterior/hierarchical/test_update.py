"""A hospital's own patients: the exact posterior, and what one noisy sum leaves of it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pydantic import ValidationError
from scipy.special import expit

from fl_dpbayes.config.task import LogisticModel, StandardFeatures, Task
from fl_dpbayes.posterior.hierarchical.distribution import mixed
from fl_dpbayes.predict.finished_run import FinishedRun
from fl_dpbayes.predict.hospital_posterior import UpdatedHospital, checked_effect
from fl_dpbayes.predict.update import residual_sum
from tests.asking import refused
from tests.posterior.hierarchical.test_levels import LEVEL, covered, within

WEIGHTS = np.array([1.0, 2.0])
MEANS = np.array([-0.2, 0.1])
VARIANCES = np.array([0.36, 0.04])
PRIOR = mixed(WEIGHTS, MEANS, VARIANCES)


def test_at_home_it_is_the_exact_posterior() -> None:
    log_odds = np.array([0.3, -1.0, 0.8, 0.1])
    labels = np.array([1, 0, 1, 1])
    places = np.linspace(-6, 6, 100_001)
    prior = np.exp(-np.square(places[:, None] - MEANS) / VARIANCES / 2) @ (
        WEIGHTS / np.sqrt(VARIANCES)
    )
    density = prior * np.prod(expit(np.where(labels, 1, -1) * (log_odds + places[:, None])), axis=1)
    found = PRIOR.given_labels(log_odds, labels)
    mean = np.average(places, weights=density)
    assert np.isclose(found.mean, mean, atol=1e-4)
    assert np.isclose(
        found.sd, np.sqrt(np.average((places - mean) ** 2, weights=density)), rtol=1e-3
    )


def test_one_unit_moves_the_residual_sum_by_one_at_most() -> None:
    log_odds = np.array([-8.0, -8.0, 8.0])
    labels = np.array([1, 1, 0])
    units = np.array([0, 0, 1])
    assert np.isclose(residual_sum(log_odds, labels, units).sums, 1 - 1, atol=1e-3)
    assert np.isclose(residual_sum(log_odds[:2], labels[:2], units[:2]).sums, 1, atol=1e-3)
    assert np.isclose(residual_sum(log_odds, np.array([1, 0, 0]), units).sums, 1 / 2 - 1, atol=1e-3)


def test_a_value_that_overflows_stays_a_number() -> None:
    features = StandardFeatures(centers=(0.0,), scales=(0.01,), source="made up here")
    model = LogisticModel(features=features)
    task = Task(input_shape=(1,), classes=2)
    stored: Any = SimpleNamespace(metadata=SimpleNamespace(model=model, task=task))
    scenario: Any = SimpleNamespace(data=SimpleNamespace(source=None))
    run = FinishedRun(folder=Path("run"), scenario=scenario, stored=stored)
    assert np.isfinite(run.model_inputs(np.full((1, 1), 3e38, np.float32))).all()


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 6.0])
def test_intervals_after_an_update_cover_hospitals_of_the_population(noise: float) -> None:
    generator = np.random.default_rng(0)
    hits = []
    narrower = []
    public = generator.normal(0.5, 0.8, 300)
    for _ in range(250):
        which = int(generator.random() < 2 / 3)
        effect = MEANS[which] + np.sqrt(VARIANCES[which]) * generator.normal()
        log_odds = generator.choice(public, 100)
        labels = (generator.random(100) < expit(log_odds + effect)).astype(int)
        if noise:
            released = (
                residual_sum(log_odds + PRIOR.mean, labels, np.arange(100)).sums[0]
                + noise * generator.normal()
            )
            found = PRIOR.given_release(released, noise, 100, public)
        else:
            found = PRIOR.given_labels(log_odds, labels)
        hits.append(covered(found.interval(LEVEL), effect))
        narrower.append(found.sd < PRIOR.sd)
    assert within(hits, LEVEL)
    assert np.mean(narrower) > 0.9


EXTREMES = st.sampled_from(
    [0.0, 5e-324, 1.0, -700.0, 1e160, 1e307, -1e307, 1.7e308, np.inf, -np.inf, np.nan]
)


@given(arrays(np.float64, 4, elements=EXTREMES), arrays(np.float64, (5, 4), elements=EXTREMES))
def test_a_unit_moves_the_residual_sum_by_one_at_most_whatever_the_run_holds(slopes, rows) -> None:
    with np.errstate(all="ignore"):
        log_odds = rows @ slopes
    labels = np.arange(5) % 2
    units = np.array([0, 0, 1, 2, 2])
    whole = residual_sum(log_odds, labels, units)
    assert np.isfinite(whole.sums).all()
    for unit in range(3):
        kept = units != unit
        numbers = np.unique(units[kept], return_inverse=True)[1]
        without = residual_sum(log_odds[kept], labels[kept], numbers)
        assert abs(whole.sums - without.sums) <= whole.sensitivity <= 1 + 1e-9


def test_what_noise_cannot_hide_of_one_patient_more() -> None:
    # Such states of a run folder that the last patient's log odds are the difference of two
    # infinities.
    log_odds = np.append(np.zeros(299), np.nan)
    labels = np.ones(300, int)
    units = np.arange(300)
    fewer, more = (
        residual_sum(log_odds[:count], labels[:count], units[:count]).sums for count in (299, 300)
    )
    assert abs(more - fewer) <= 1


def test_an_update_with_values_that_are_none_of_a_hospital_is_refused() -> None:
    good = {"run": "ab", "mean": 0.1, "sd": 0.2, "units": 30, "epsilon": 1.0}
    assert UpdatedHospital.model_validate_json(json.dumps(good)).sd == 0.2
    wrong = [{"sd": 1e-320}, {"mean": 1e5}, {"units": 0}, {"epsilon": -1.0}, {"level": 0.9}]
    for change in [*wrong, {"level": 2, "threshold": 0}]:
        with pytest.raises(ValidationError):
            UpdatedHospital.model_validate_json(json.dumps(good | change))


def test_an_effect_that_patients_could_move_beyond_what_is_written_is_refused_before() -> None:
    far = mixed(np.ones(1), np.array([9_995.0]), np.array([100.0]))
    # A model whose intercept is as far on the other side lets patients tell of it.
    assert far.given_labels(np.full(200, -10_000.0), np.ones(200, int)).mean > 1e4
    refused("allowed is up to 10000", checked_effect, far, Path("run"))
    assert checked_effect(PRIOR, Path("run")) is PRIOR
