"""What is written of an outcome, what is computed of it, and what those who take it do without."""

from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients import received_request
from fl_dpbayes.calibration import METRICS
from fl_dpbayes.calibration.federation.evaluation import Evaluation
from fl_dpbayes.config.data import Shift
from fl_dpbayes.config.outcome import Classification, Measures, OutcomeConfig
from fl_dpbayes.config.scenario import load_scenario
from fl_dpbayes.config.task import Task, check_prevalence
from fl_dpbayes.data.records import Records
from fl_dpbayes.data.shifts.apply import check_shift
from fl_dpbayes.data.virtual_sites import dealt_sites
from fl_dpbayes.engine.baselines import measured_baselines
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import canonical_json
from fl_dpbayes.outcomes import Adjustments, outcome_of
from fl_dpbayes.outcomes.outcome import no_baselines
from fl_dpbayes.posterior import Prediction
from fl_dpbayes.predict.prediction import predict_new_records
from fl_dpbayes.protocol.evaluate import EvaluateReply
from tests.asking import evaluate, refusal_of
from tests.calibration.federation.test_subgroups import REPLY, request
from tests.counted import CARD, empty

THREE = Classification(classes=3)


class Days(OutcomeConfig):
    """Another outcome, as far as what refuses it looks at it."""

    kind: Literal["days"] = "days"
    target_type: ClassVar[type] = np.float32
    measures: ClassVar[Measures] = Measures(first=("brier",))
    outputs: ClassVar[int] = 1
    allowed: ClassVar[str] = "numbers"

    def holds(self, targets):
        return np.isfinite(targets)

    def made_up(self, generator, count):
        return generator.random(count, np.float32)


def days(count: int) -> Records:
    features = np.zeros((count, 2), np.float32)
    task = Task.model_construct(input_shape=(2,), outcome=Days())
    return Records(features, np.zeros(count, np.float32), np.arange(count), None, task, "record")


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


def dealt_by_label(monkeypatch) -> None:
    monkeypatch.setattr("fl_dpbayes.data.virtual_sites.load_unscaled", lambda *_: days(1800))
    dealt_sites(load_scenario("digits"), None)


@pytest.mark.parametrize(
    ("what", "ask"),
    [
        ("partition.kind 'dirichlet'", dealt_by_label),
        ("shift.kind 'label_flip'", lambda _: check_shift(days(3), Shift(kind="label_flip"))),
        ("data.prevalence", lambda _: check_prevalence("data.prevalence", "estimated", Days())),
        (
            "predicting new records",
            lambda _: predict_new_records(SimpleNamespace(task=days(1).task), None, ""),
        ),
    ],
)
def test_what_is_about_classes_refuses_another_outcome_by_name(what, ask, monkeypatch) -> None:
    with pytest.raises(UserError, match=f"^(sites.*)?{what} is for classification, not for days: "):
        ask(monkeypatch)


def test_an_outcome_without_simple_predictors_says_so(monkeypatch) -> None:
    outcome = replace(outcome_of(THREE), baselines=no_baselines)
    monkeypatch.setattr("fl_dpbayes.engine.baselines.outcome_of", lambda _: outcome)
    part = SimpleNamespace(published=None, features=np.zeros((2, 1)), labels=np.zeros(2, int))
    monkeypatch.setattr("fl_dpbayes.engine.baselines._joined", lambda parts: parts[0])
    task = Task(input_shape=(1,), outcome=THREE)
    site = SimpleNamespace(name="a", role="train", task=task, train=part, test=part)
    found = measured_baselines([site])
    assert (found.rows, found.missing) == ((), {"all": "this outcome has none"})


def test_measures_name_metrics_and_the_first_one_is_shown_by_a_figure() -> None:
    measures = Classification.measures
    keys = (*measures.first, *measures.further)
    assert set(keys) <= set(METRICS)
    assert len(set(keys)) == len(keys)
    assert set(measures.drawn) <= set(measures.first)
