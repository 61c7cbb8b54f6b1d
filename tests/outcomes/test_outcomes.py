"""What is written of an outcome, what is computed of it, and what those who take it do without."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients import received_request
from fl_dpbayes.calibration.federation.evaluation import Evaluation
from fl_dpbayes.config.outcome import Classification
from fl_dpbayes.config.task import Task
from fl_dpbayes.files import canonical_json
from fl_dpbayes.outcomes import Adjustments, outcome_of
from fl_dpbayes.posterior import Prediction
from fl_dpbayes.protocol.evaluate import EvaluateReply
from tests.asking import evaluate, refusal_of
from tests.calibration.federation.test_subgroups import REPLY, request
from tests.counted import CARD, empty

THREE = Classification(classes=3)


def test_classification_is_written_and_has_the_digest_that_it_had_before_other_outcomes() -> None:
    task = Task(input_shape=(2, 5), outcome=THREE)
    assert task.model_dump(mode="json") == {"input_shape": [2, 5], "classes": 3}
    assert Task.model_validate_json(task.model_dump_json()) == task
    assert canonical_json(task) == '{"classes":3,"input_shape":[2,5]}'


@given(st.lists(st.sampled_from([-1, 0, 0.5, 1, 2, 3, np.nan, np.inf]), max_size=5))
def test_labels_property_are_the_numbers_of_classes(labels) -> None:
    assert THREE.holds(np.array(labels)).tolist() == [label in (0, 1, 2) for label in labels]
    assert THREE.holds(THREE.made_up(np.random.default_rng(0), 50)).all()
    assert THREE.allowed == "whole numbers from 0 to 2"


def test_sums_over_no_record_change_nothing_and_are_read_back() -> None:
    form = outcome_of(THREE).sums
    third = np.full((4, 3), 1 / 3)
    one = np.ones(4)
    prediction = Prediction(third, total=one, aleatoric=one, epistemic=0 * one)
    sums = outcome_of(THREE).count(prediction, np.array([0, 1, 2, 2]), slice(1, None), None)
    read = form.read(empty(3).plus(sums).arrays())
    assert (read.count, read.of_records()) == (3, (0.0, 1.0, 2.0))
    assert sum(array.nbytes for array in read.arrays().values()) == form.nbytes


def test_a_prediction_is_adjusted_as_asked_and_no_more() -> None:
    one = np.ones(2)
    prediction = Prediction(np.full((2, 3), 1 / 3), total=one, aleatoric=one, epistemic=0 * one)
    adjusted = outcome_of(THREE).adjusted
    assert adjusted(prediction, Adjustments()) == {}
    moved = adjusted(
        prediction,
        Adjustments(trained_prevalence=(0.25, 0.25, 0.5), prevalence=(0.5, 0.25, 0.25)),
    )
    assert moved["prior_corrected"].probabilities[0] == pytest.approx(np.array([4, 2, 1]) / 7)


def test_where_an_outcome_has_no_noised_table_a_site_sends_nothing_and_a_server_takes_none(
    table_site, monkeypatch
) -> None:
    site = table_site()
    site.write([(f"p{number}", 0.1 * number, 1.0, number % 2) for number in range(40)])
    outcome = replace(outcome_of(Classification(classes=2)), count_bounded=None)
    monkeypatch.setattr(received_request, "outcome_of", lambda _: outcome)
    assert refusal_of(evaluate(site, noise_multiplier=5.0))[0] == "NOT_SENT"
    form = replace(outcome.sums, noised=None)
    reply = EvaluateReply.model_construct(**{**REPLY, "release": "noised", "noise_std": 1.0})
    card = CARD.model_copy(update={"evaluation_release": "noised"})
    with pytest.raises(ValueError, match="of which this outcome has none"):
        Evaluation(form).add(card, request(), reply, None)
