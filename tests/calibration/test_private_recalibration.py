import numpy as np
import pytest
from scipy.special import softmax

from fl_dpbayes.calibration.recalibration.descent import (
    fit,
    log_probabilities,
    loss,
    private_fit,
    record_gradients,
)
from fl_dpbayes.config.recalibration import PARAMETER_BOUND, RecalibrationPlan, parameter_count
from fl_dpbayes.privacy.events import GaussianEvent
from fl_dpbayes.privacy.solve import solve_multiplier


def plan(**changes) -> RecalibrationPlan:
    keys = {
        "method": "temperature", "epsilon": 1.0, "delta": 1e-5, "adjacency": "add_or_remove_one", "clip_norm": 5.0,
        "steps": 40, "rounds": 1, "step_size": 1.0,
    }  # fmt: skip
    return RecalibrationPlan(**(keys | changes))


def overconfident(records: int, classes: int, seed: int = 0):
    generator = np.random.default_rng(seed)
    logits = 2 * generator.standard_normal((records, classes))
    labels = (generator.random((records, 1)) > softmax(logits, axis=1).cumsum(axis=1)).sum(axis=1)
    return softmax(2 * logits, axis=1), labels


def descend(probabilities, labels, the_plan, *, sigma, unit_index=None, units=None, first_step=0, steps=None, **more):
    index = np.arange(len(labels)) if unit_index is None else unit_index
    size = parameter_count(the_plan.method, probabilities.shape[1])
    return private_fit(
        probabilities, labels, index, plan=the_plan, noise_multiplier=sigma, units=units or len(labels),
        start=more.pop("start", np.zeros(size)), first_step=first_step, steps=steps or the_plan.steps,
        generator=np.random.default_rng(more.pop("seed", 0)),
    )  # fmt: skip


@pytest.mark.parametrize(("method", "classes"), [("temperature", 3), ("vector", 3), ("platt", 2)])
def test_without_noise_and_clip_it_is_the_best_fit_limit(method, classes):
    probabilities, labels = overconfident(500, classes)
    free = plan(method=method, clip_norm=1e6, steps=3000, step_size=2.0)
    found = descend(probabilities, labels, free, sigma=0.0).parameters
    best = np.array(fit(method, probabilities, labels).parameters)
    logs = log_probabilities(probabilities)
    assert loss(method, found, logs, labels) == pytest.approx(loss(method, best, logs, labels), abs=1e-6)
    if method == "temperature":
        assert found == pytest.approx(best, abs=1e-5)


def test_history_is_one_full_batch_event():
    probabilities, labels = overconfident(20, 3)
    assert descend(probabilities, labels, plan(), sigma=2.5, first_step=10, steps=7).history == (
        GaussianEvent(2.5, 1.0, 7),
    )


def test_two_stretches_are_the_whole_descent_limit():
    probabilities, labels = overconfident(50, 3)
    whole = descend(probabilities, labels, plan(), sigma=0.0).parameters
    half = descend(probabilities, labels, plan(), sigma=0.0, steps=15).parameters
    rest = descend(probabilities, labels, plan(), sigma=0.0, start=half, first_step=15, steps=25).parameters
    assert rest == pytest.approx(whole, abs=1e-12)


def test_one_unit_moves_a_step_by_at_most_the_clip_norm():
    # A patient with a hundred wrong records counts as one unit.
    probabilities, labels = overconfident(60, 3)
    wrong, wrong_labels = np.tile([[1.0, 0.0, 0.0]], (100, 1)), np.ones(100, np.int64)
    one_step = plan(method="vector", clip_norm=0.5, steps=1)
    alone = descend(probabilities, labels, one_step, sigma=0.0, units=1).parameters
    together = descend(
        np.concatenate([probabilities, wrong]), np.concatenate([labels, wrong_labels]), one_step, sigma=0.0, units=1,
        unit_index=np.concatenate([np.arange(60), np.full(100, 60)]),
    ).parameters  # fmt: skip
    assert np.linalg.norm(together - alone) == pytest.approx(0.5, rel=1e-9)


def test_the_gradients_of_a_unit_are_summed_before_the_clip():
    probabilities, labels = overconfident(4, 3)
    step = descend(
        probabilities, labels, plan(clip_norm=1e6, steps=1), sigma=0.0, units=1, unit_index=np.array([0, 0, 1, 1])
    )
    total = record_gradients("temperature", np.zeros(1), log_probabilities(probabilities), labels).sum(axis=0)
    assert step.parameters == pytest.approx(-total, rel=1e-12)


def test_noise_on_the_sum_has_the_stated_deviation():
    # Without records a step is pure noise: a sigma C / n.
    none, labels = np.zeros((0, 200)), np.zeros(0, np.int64)
    moved = descend(none, labels, plan(method="vector", steps=1, clip_norm=2.0), sigma=3.0, units=600).parameters
    expected = 3.0 * 2.0 / 600
    assert abs(moved.std() / expected - 1) < 4 / np.sqrt(2 * len(moved))


def test_without_records_and_noise_nothing_moves_limit():
    none, labels = np.zeros((0, 3)), np.zeros(0, np.int64)
    assert descend(none, labels, plan(), sigma=0.0, units=1).parameters == pytest.approx(0.0)


def test_parameters_stay_within_their_bound():
    probabilities, labels = overconfident(5, 3)
    found = descend(probabilities, labels, plan(method="vector"), sigma=1e6).parameters
    assert np.abs(found).max() == PARAMETER_BOUND


@pytest.mark.parametrize(("records", "epsilon", "most"), [(300, 8.0, 0.02), (1000, 1.0, 0.02), (6000, 0.5, 0.004)])
def test_private_temperature_is_near_the_best(records, epsilon, most):
    # Excess loss on fresh records, mean of 20 fits, against 0.3 nats that are to be gained.
    fresh, fresh_labels = overconfident(20_000, 10, seed=99)
    logs = log_probabilities(fresh)
    best = np.array(fit("temperature", fresh, fresh_labels).parameters)
    sigma = solve_multiplier(epsilon, 1e-5, 1.0, plan().steps)
    excess = []
    for seed in range(20):
        probabilities, labels = overconfident(records, 10, seed=seed)
        found = descend(probabilities, labels, plan(), sigma=sigma, seed=seed).parameters
        excess.append(loss("temperature", found, logs, fresh_labels) - loss("temperature", best, logs, fresh_labels))
    assert loss("temperature", np.zeros(1), logs, fresh_labels) - loss("temperature", best, logs, fresh_labels) > 0.2
    assert np.mean(excess) < most


def test_steps_beyond_the_plan_are_refused():
    probabilities, labels = overconfident(5, 3)
    with pytest.raises(ValueError, match="within the plan's 40 steps"):
        descend(probabilities, labels, plan(), sigma=1.0, first_step=30, steps=11)


@pytest.mark.parametrize("step", [0, 10, 39])
def test_the_step_size_falls_linearly_over_the_plan(step):
    probabilities, labels = overconfident(50, 3)
    first = descend(probabilities, labels, plan(), sigma=0.0, steps=1).parameters
    later = descend(probabilities, labels, plan(), sigma=0.0, first_step=step, steps=1).parameters
    assert later == pytest.approx(first * (1 - step / 40), rel=1e-12)
