import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime
from scipy.special import expit, softmax
from sklearn.linear_model import LogisticRegression

from fl_dpbayes.calibration.recalibration.descent import fit, log_probabilities, loss, record_gradients
from fl_dpbayes.calibration.recalibration.maps import describe, recalibrate
from fl_dpbayes.config.recalibration import RecalibrationMap, parameter_count


def overconfident(records: int, classes: int, factor: float, seed: int = 0):
    """Predictions whose logits are `factor` times those that the labels were drawn from."""
    generator = np.random.default_rng(seed)
    logits = 2 * generator.standard_normal((records, classes))
    true = softmax(logits, axis=1)
    labels = (generator.random((records, 1)) > true.cumsum(axis=1)).sum(axis=1)
    return softmax(factor * logits, axis=1), labels


def test_temperature_of_a_constant_margin_golden():
    # Margin z, accuracy a: T = z / logit(a).
    right = expit(3.0)
    probabilities = np.tile([right, 1 - right], (10, 1))
    labels = np.array([0] * 8 + [1] * 2)
    temperature = np.exp(fit("temperature", probabilities, labels).parameters[0])
    assert temperature == pytest.approx(2.1640425613, rel=1e-6)


def test_vector_scaling_of_two_classes_is_logistic_regression_golden():
    probabilities, labels = overconfident(800, 2, 2.0)
    reference = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(log_probabilities(probabilities), labels)
    ours = recalibrate(probabilities, fit("vector", probabilities, labels))
    assert np.abs(ours - reference.predict_proba(log_probabilities(probabilities))).max() < 2e-4


def test_platt_scaling_is_logistic_regression_on_the_log_odds_golden():
    probabilities, labels = overconfident(800, 2, 2.0)
    odds = np.log(probabilities[:, 1:] / probabilities[:, :1])
    reference = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(odds, labels)
    mapping = fit("platt", probabilities, labels)
    assert mapping.parameters[0] == pytest.approx(np.log(reference.coef_.item()), abs=2e-3)
    assert mapping.parameters[1] == pytest.approx(reference.intercept_.item(), abs=2e-3)
    assert np.abs(recalibrate(probabilities, mapping) - reference.predict_proba(odds)).max() < 2e-4
    assert (
        describe(RecalibrationMap(method="platt", parameters=(0.0, 0.3))) == "Platt scaling with scale 1 and bias 0.3"
    )


def test_platt_scaling_without_a_bias_is_temperature_scaling_golden():
    probabilities, _ = overconfident(50, 2, 2.0)
    platt = RecalibrationMap(method="platt", parameters=(-np.log(2.5), 0.0))
    temperature = RecalibrationMap(method="temperature", parameters=(np.log(2.5),))
    assert np.abs(recalibrate(probabilities, platt) - recalibrate(probabilities, temperature)).max() < 1e-12
    # sigmoid(exp(s) logit p + b) by hand: p = .8, s = log .5, b = .3.
    by_hand = 1 / (1 + np.exp(-(0.5 * np.log(4) + 0.3)))
    mapping = RecalibrationMap(method="platt", parameters=(np.log(0.5), 0.3))
    assert recalibrate(np.array([[0.2, 0.8]]), mapping)[0, 1] == pytest.approx(by_hand, abs=1e-14)


def test_platt_scaling_of_more_than_two_classes_names_its_other_form():
    with pytest.raises(ValueError, match="'platt' is for two classes, here are 3: choose 'vector'"):
        recalibrate(np.full((1, 3), 1 / 3), RecalibrationMap(method="platt", parameters=(0.0, 0.0)))


@pytest.mark.parametrize("method", ["temperature", "vector"])
def test_the_fit_finds_the_factor_of_overconfidence(method):
    probabilities, labels = overconfident(20_000, 4, 2.5)
    mapping = fit(method, probabilities, labels)
    expected = np.log(2.5) if method == "temperature" else np.repeat([-np.log(2.5), 0.0], 4)
    found = np.array(mapping.parameters)
    if method == "vector":
        found[4:] -= found[4:].mean()
    assert np.abs(found - expected).max() < 0.1


@settings(deadline=None, derandomize=True, max_examples=40)
@given(seed=st.integers(0, 10**6), log_temperature=st.floats(-2, 3))
def test_temperature_keeps_the_top_label_and_rows_that_sum_to_one_property(seed, log_temperature):
    probabilities = np.random.default_rng(seed).dirichlet(np.full(5, 0.7), size=20)
    mapped = recalibrate(probabilities, RecalibrationMap(method="temperature", parameters=(log_temperature,)))
    assert np.array_equal(mapped.argmax(axis=1), probabilities.argmax(axis=1))
    assert np.allclose(mapped.sum(axis=1), 1.0, atol=1e-12)


@pytest.mark.parametrize(("method", "classes"), [("temperature", 3), ("vector", 3), ("platt", 2)])
def test_all_parameters_zero_change_nothing_limit(method, classes):
    probabilities = np.random.default_rng(0).dirichlet(np.ones(classes), size=30)
    identity = RecalibrationMap(method=method, parameters=(0.0,) * parameter_count(method, classes))
    assert np.allclose(recalibrate(probabilities, identity), probabilities, atol=1e-12)


@pytest.mark.parametrize(("method", "classes"), [("temperature", 3), ("vector", 3), ("platt", 2)])
def test_gradients_are_those_of_the_loss_property(method, classes):
    probabilities, labels = overconfident(7, classes, 2.0)
    logs = log_probabilities(probabilities)
    at = np.random.default_rng(1).normal(0, 0.5, parameter_count(method, classes))
    numeric = approx_fprime(at, lambda parameters: loss(method, parameters, logs, labels), 1e-7)
    assert np.abs(record_gradients(method, at, logs, labels).mean(axis=0) - numeric).max() < 1e-5


def test_certain_predictions_stay_finite_limit():
    probabilities, labels = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), np.array([0, 1, 1])
    mapping = fit("temperature", probabilities, labels)
    assert np.isfinite(recalibrate(probabilities, mapping)).all()
    # Two of three are right with margin -log floor, so T = margin / logit(2/3).
    assert mapping.parameters[0] == pytest.approx(np.log(-np.log(1e-12) / np.log(2)), abs=1e-5)


def test_without_records_the_fit_is_the_identity_limit():
    none, labels = np.zeros((0, 3)), np.zeros(0, np.int64)
    assert fit("temperature", none, labels).parameters == (0.0,)
    assert fit("vector", none, labels).parameters == (0.0,) * 6
    assert recalibrate(none, fit("vector", none, labels)).shape == (0, 3)


def test_a_map_for_other_classes_is_refused():
    with pytest.raises(ValueError, match="do not fit 3 classes"):
        recalibrate(np.full((1, 3), 1 / 3), RecalibrationMap(method="vector", parameters=(0.0,) * 4))
