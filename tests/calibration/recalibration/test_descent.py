from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import approx_fprime
from sklearn.linear_model import LogisticRegression

from fl_dpbayes.calibration.recalibration.descent import (
    Stretch,
    log_probabilities,
    private_fit,
    record_gradients,
)
from fl_dpbayes.calibration.recalibration.maps import describe, recalibrate
from fl_dpbayes.config.outcome import Classification
from fl_dpbayes.config.recalibration import (
    PARAMETER_BOUND,
    RecalibrationMap,
    RecalibrationPlan,
    parameter_count,
)
from fl_dpbayes.privacy.planned_noise import solve_multiplier
from tests.counted import best_fit, map_loss, overconfident

METHODS = pytest.mark.parametrize(
    ("method", "classes"), [("temperature", 3), ("vector", 3), ("platt", 2)]
)


@pytest.mark.parametrize("method", ["vector", "platt"])
def test_scaling_of_two_classes_is_logistic_regression_golden(method):
    probabilities, labels = overconfident(800, 2, 2.0)
    logs = log_probabilities(probabilities)
    inputs = logs if method == "vector" else logs[:, 1:] - logs[:, :1]
    reference = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(inputs, labels)
    mapping = best_fit(method, probabilities, labels)
    assert (
        np.abs(recalibrate(probabilities, mapping) - reference.predict_proba(inputs)).max() < 2e-4
    )
    if method == "platt":
        expected = np.log(reference.coef_.item()), reference.intercept_.item()
        assert mapping.parameters == pytest.approx(expected, abs=2e-3)


def test_platt_scaling_without_a_bias_is_temperature_scaling_golden():
    probabilities, _ = overconfident(50, 2, 2.0)
    platt = RecalibrationMap(method="platt", parameters=(-np.log(2.5), 0.0))
    temperature = RecalibrationMap(method="temperature", parameters=(np.log(2.5),))
    assert (
        np.abs(recalibrate(probabilities, platt) - recalibrate(probabilities, temperature)).max()
        < 1e-12
    )
    # sigmoid(exp(s) logit p + b) by hand: p = .8, s = log .5, b = .3.
    by_hand = 1 / (1 + np.exp(-(0.5 * np.log(4) + 0.3)))
    mapping = RecalibrationMap(method="platt", parameters=(np.log(0.5), 0.3))
    assert recalibrate(np.array([[0.2, 0.8]]), mapping)[0, 1] == pytest.approx(by_hand, abs=1e-14)
    assert describe(mapping) == "Platt scaling with scale 0.5 and bias 0.3"


@given(seed=st.integers(0, 10**6), log_temperature=st.floats(-2, 3))
def test_temperature_keeps_the_top_label_and_rows_that_sum_to_one_property(seed, log_temperature):
    probabilities = np.random.default_rng(seed).dirichlet(np.full(5, 0.7), size=20)
    mapped = recalibrate(
        probabilities, RecalibrationMap(method="temperature", parameters=(log_temperature,))
    )
    assert np.array_equal(mapped.argmax(axis=1), probabilities.argmax(axis=1))
    assert np.allclose(mapped.sum(axis=1), 1.0, atol=1e-12)


@METHODS
def test_gradients_are_those_of_the_loss_and_zero_changes_nothing(method, classes):
    probabilities, labels = overconfident(7, classes, 2.0)
    logs = log_probabilities(probabilities)
    size = parameter_count(method, Classification(classes=classes))
    at = np.random.default_rng(1).normal(0, 0.5, size)
    numeric = approx_fprime(at, lambda parameters: map_loss(method, parameters, logs, labels), 1e-7)
    assert np.abs(record_gradients(method, at, logs, labels).mean(axis=0) - numeric).max() < 1e-5
    identity = RecalibrationMap(method=method, parameters=(0.0,) * size)
    for p in (probabilities, np.eye(classes), np.zeros((0, classes))):
        assert np.allclose(recalibrate(p, identity), p, atol=1e-12)


def plan(**changes) -> RecalibrationPlan:
    keys = {
        "method": "temperature",
        "epsilon": 1.0,
        "delta": 1e-5,
        "adjacency": "add_or_remove_one",
        "clip_norm": 5.0,
        "steps": 40,
        "rounds": 1,
        "step_size": 1.0,
    }
    return RecalibrationPlan(**(keys | changes))


def descend(
    probabilities,
    labels,
    the_plan,
    *,
    sigma,
    unit_index=None,
    units=None,
    first_step=0,
    steps=None,
    **more,
):
    index = np.arange(len(labels)) if unit_index is None else unit_index
    size = parameter_count(the_plan.method, Classification(classes=probabilities.shape[1]))
    stretch = Stretch(the_plan, sigma, units or len(labels), first_step, steps or the_plan.steps)
    generator = np.random.default_rng(more.pop("seed", 0))
    return private_fit(
        probabilities, labels, index, stretch, more.pop("start", np.zeros(size)), generator
    )


@pytest.mark.slow
@METHODS
def test_without_noise_and_clip_it_is_the_best_fit_limit(method, classes):
    probabilities, labels = overconfident(500, classes)
    free = plan(method=method, clip_norm=1e6, steps=1500, step_size=2.0)
    found = descend(probabilities, labels, free, sigma=0.0)
    best = np.array(best_fit(method, probabilities, labels).parameters)
    logs = log_probabilities(probabilities)
    assert map_loss(method, found, logs, labels) == pytest.approx(
        map_loss(method, best, logs, labels), abs=1e-6
    )
    if method == "temperature":
        assert found == pytest.approx(best, abs=1e-5)


def test_two_stretches_are_the_whole_descent_and_steps_fall_linearly_over_the_plan():
    def part(**options):
        return descend(*overconfident(50, 3), plan(), sigma=0.0, **options)

    half = part(steps=15)
    assert part(start=half, first_step=15, steps=25) == pytest.approx(part(), abs=1e-12)
    for step in (0, 10, 39):
        assert part(first_step=step, steps=1) == pytest.approx(
            part(steps=1) * (1 - step / 40), rel=1e-12
        )


def test_the_gradients_of_a_unit_are_summed_before_the_clip_and_move_a_step_by_at_most_its_norm():
    # A patient with a hundred wrong records counts as one unit.
    probabilities, labels = overconfident(60, 3)
    wrong = np.tile([[1.0, 0.0, 0.0]], (100, 1))
    wrong_labels = np.ones(100, np.int64)
    one_step = plan(method="vector", clip_norm=0.5, steps=1)
    alone = descend(probabilities, labels, one_step, sigma=0.0, units=1)
    together = descend(
        np.concatenate([probabilities, wrong]),
        np.concatenate([labels, wrong_labels]),
        one_step,
        sigma=0.0,
        units=1,
        unit_index=np.concatenate([np.arange(60), np.full(100, 60)]),
    )
    assert np.linalg.norm(together - alone) == pytest.approx(0.5, rel=1e-9)
    probabilities, labels = overconfident(4, 3)
    free = plan(clip_norm=1e6, steps=1)
    units = np.repeat(np.arange(2), 2)
    step = descend(probabilities, labels, free, sigma=0.0, units=1, unit_index=units)
    total = record_gradients(
        "temperature", np.zeros(1), log_probabilities(probabilities), labels
    ).sum(axis=0)
    assert step == pytest.approx(-total, rel=1e-12)


def test_noise_on_the_sum_has_the_stated_deviation():
    # Without records a step is pure noise: a sigma C / n.
    none = np.zeros((0, 200))
    labels = np.zeros(0, np.int64)
    moved = descend(
        none, labels, plan(method="vector", steps=1, clip_norm=2.0), sigma=3.0, units=600
    )
    assert abs(moved.std() / (3.0 * 2.0 / 600) - 1) < 4 / np.sqrt(2 * len(moved))
    assert descend(none, labels, plan(method="vector"), sigma=0.0, units=1) == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("records", "epsilon", "most"),
    [(300, 8.0, 0.02), (1000, 1.0, 0.02), pytest.param(6000, 0.5, 0.004, marks=pytest.mark.slow)],
)
def test_private_temperature_is_near_the_best(records, epsilon, most):
    # Excess loss on fresh records, mean of 12 fits, against 0.3 nats that are to be gained.
    fresh, fresh_labels = overconfident(20_000, 10, seed=99)
    loss = partial(map_loss, "temperature", logs=log_probabilities(fresh), labels=fresh_labels)
    best = np.array(best_fit("temperature", fresh, fresh_labels).parameters)
    sigma = solve_multiplier(epsilon, 1e-5, 1.0, plan().steps)
    excess = []
    for seed in range(12):
        probabilities, labels = overconfident(records, 10, seed=seed)
        found = descend(probabilities, labels, plan(), sigma=sigma, seed=seed)
        excess.append(loss(found) - loss(best))
    assert loss(np.zeros(1)) - loss(best) > 0.2
    assert np.mean(excess) < most


def test_parameters_stay_within_their_bound():
    probabilities, labels = overconfident(5, 3)
    found = descend(probabilities, labels, plan(method="vector"), sigma=1e6)
    assert np.abs(found).max() == PARAMETER_BOUND


PREDICTED = st.one_of(
    st.floats(width=64), st.sampled_from([0.0, 5e-324, 1e-300, 1.0, np.inf, -np.inf, np.nan])
)
STARTS = st.sampled_from([-PARAMETER_BOUND, 0.0, PARAMETER_BOUND])


@given(
    arrays(np.float64, st.tuples(st.integers(1, 4), st.just(2)), elements=PREDICTED),
    st.sampled_from([("temperature", 1), ("vector", 4), ("platt", 2)]),
    STARTS,
    st.sampled_from([1e-6, 0.5, 1e6]),
)
def test_a_unit_moves_a_step_by_the_clip_norm_whatever_is_predicted(
    probabilities, kind, start, clip_norm
) -> None:
    method, size = kind
    labels = np.arange(len(probabilities)) % 2
    # So short a step that no parameter meets its bound.
    plan = RecalibrationPlan(
        method=method,
        epsilon=None,
        delta=1e-3,
        adjacency="add_or_remove_one",
        clip_norm=clip_norm,
        steps=1,
        rounds=1,
        step_size=1e-6 / clip_norm,
    )
    stretch = Stretch(plan, noise_multiplier=0.0, units=10.0, first_step=0, steps=1)

    def stepped(kept: np.ndarray) -> np.ndarray:
        own = probabilities[kept], labels[kept], np.arange(len(kept))
        return private_fit(*own, stretch, np.full(size, 0.9 * start), np.random.default_rng(0))

    everyone = np.arange(len(labels))
    whole = stepped(everyone)
    assert np.isfinite(whole).all()
    for unit in everyone:
        move = np.linalg.norm(whole - stepped(np.delete(everyone, unit)))
        # A parameter near 10 is rounded to 2^-50.
        assert move <= 1e-6 / 10 * (1 + 1e-9) + 1e-14
