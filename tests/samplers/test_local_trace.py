import csv
import math
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn

from fl_dpbayes.config.sampler import SGHMC, SGLD, BayesByBackprop, ConstantStepSize, GaussianPrior
from fl_dpbayes.config.task import MLPModel, Task
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.parameters import to_vector, vector_loader
from fl_dpbayes.samplers.gradients.clipping import ClippedSum
from fl_dpbayes.samplers.gradients.loss import summed_cross_entropy
from fl_dpbayes.samplers.local_trace import LocalTrace, log_likelihood_estimate
from fl_dpbayes.samplers.minibatch import TrainingRecords
from fl_dpbayes.samplers.state_vectors import ChainState
from tests import chains

SIZE = ConstantStepSize(initial=0.1)
SAMPLER = SGLD(step_size=SIZE, prior=GaussianPrior(scale=2.0))


def plan_of(prior_share, **settings):
    return chains.plan_of(SAMPLER, {"clip_norm": 1.5}, prior_share=prior_share, **settings)


def state(*values):
    return ChainState({"parameters": torch.tensor(values)}, 0)


def clipped(count, units):
    return ClippedSum(torch.zeros(2), count, units)


def traced(steps, **more):
    trace = LocalTrace(plan_of(0.5), lambda parameters: float(parameters.sum()), **more)
    for number in range(steps):
        trace(number, state(float(number), 0.0), clipped(1, 4))
    return trace


def model():
    return build_model(MLPModel(hidden=(5,)), Task(input_shape=(4,), classes=3), seed=0)


def records_of(count):
    generator = np.random.default_rng(0)
    features = generator.standard_normal((count, 4)).astype(np.float32)
    return TrainingRecords(features, generator.integers(0, 3, count), np.arange(count))


def test_row_by_hand_and_an_empty_batch_has_no_clipped_fraction():
    trace = LocalTrace(plan_of(0.5), lambda parameters: -10.0 * float(parameters[0]))
    trace(7, state(1.0, -3.0), clipped(3, 12))
    (row,) = trace.rows
    assert (row.step, row.units, row.clipped_fraction, row.log_likelihood) == (7, 12, 0.25, -10.0)
    assert row.log_posterior == pytest.approx(
        -10.0 + 0.5 * norm.logpdf([1.0, -3.0], scale=2.0).sum(), rel=1e-6
    )
    trace(8, state(0.0, 0.0), clipped(0, 0))
    assert math.isnan(trace.rows[1].clipped_fraction)


@pytest.mark.parametrize("max_rows", [2, 7, 10])
@pytest.mark.parametrize("steps", [1, 10, 11, 57, 1000])
def test_rows_are_bounded_and_even(max_rows, steps):
    numbers = [row.step for row in traced(steps, max_rows=max_rows).rows]
    assert len(numbers) <= max_rows
    assert len(numbers) >= min(steps, max_rows // 2)
    assert numbers[0] == 0
    assert len(set(np.diff(numbers))) <= 1
    if steps > 1:
        # The end of the chain is in sight.
        assert steps - numbers[-1] <= (numbers[1] if len(numbers) > 1 else steps)


def test_likelihood_is_looked_at_only_for_rows_once_full():
    trace = LocalTrace(plan_of(1.0), looked := Mock(return_value=0.0), max_rows=10)
    for number in range(10_000):
        trace(number, state(0.0), clipped(0, 1))
    assert looked.call_count < 100


def test_parameters_of_a_state_that_holds_more_are_the_plain_models():
    seen = []
    for sampler, vectors in (
        (
            SGHMC(kind="dp-sghmc", step_size=SIZE),
            {"parameters": torch.ones(2), "momentum": torch.zeros(2)},
        ),
        (
            BayesByBackprop(kind="dp-bbp", step_size=SIZE),
            {"parameters": torch.tensor([1.0, 1.0, -3.0, -3.0])},
        ),
    ):
        trace = LocalTrace(
            chains.plan_of(sampler),
            lambda parameters: float(seen.append(parameters.tolist()) or 0.0),
        )
        trace(0, ChainState(vectors, 0), clipped(0, 1))
    assert seen == [[1.0, 1.0], [1.0, 1.0]]


def test_file_holds_the_rows(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("old")
    trace = traced(3)
    trace.write_csv(path)
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [0, 1, 2]
    assert [float(row["log_posterior"]) for row in rows] == [
        row.log_posterior for row in trace.rows
    ]
    assert list(rows[0]) == ["step", "units", "clipped_fraction", "log_likelihood", "log_posterior"]
    assert list(tmp_path.iterdir()) == [path]


def test_estimate_is_exact_over_all_records_and_near_over_some():
    module = model()
    records = records_of(400)
    generator = np.random.default_rng(1)
    before = to_vector(module)
    parameters = before + 0.3
    exact = log_likelihood_estimate(module, records, 400, generator)(parameters)
    some = log_likelihood_estimate(module, records, 100, generator)
    assert torch.equal(to_vector(module), before)
    vector_loader(module)(parameters)
    features = torch.from_numpy(records.features)
    labels = torch.from_numpy(records.targets)
    with torch.no_grad():
        losses = [
            float(summed_cross_entropy(module(features[i : i + 1]), labels[i : i + 1]))
            for i in range(400)
        ]
    assert exact == pytest.approx(-sum(losses), rel=1e-5)
    spread = 400 * np.std(losses) / math.sqrt(100)
    assert abs(some(parameters) - exact) <= 4 * spread
    assert some(parameters) == some(parameters)
    assert log_likelihood_estimate(module, records_of(0), 9, generator)(parameters) == 0.0


def test_trace_of_a_chain_ends_at_its_last_state():
    plan = plan_of(1.0, steps_per_round=15, thinning=15)
    records = records_of(40)
    module = model()
    likelihood = log_likelihood_estimate(module, records, 40, np.random.default_rng(0))
    trace = LocalTrace(plan, likelihood)
    result = chains.run(module, records, plan, on_step=trace)
    assert [row.step for row in trace.rows] == list(range(15))
    assert trace.rows[-1].log_likelihood == likelihood(torch.from_numpy(result.last["parameters"]))
    assert 0 < np.mean([row.clipped_fraction for row in trace.rows]) < 1
    assert 10 < np.mean([row.units for row in trace.rows]) < 30


class FailsBeyond(nn.Embedding):
    """Raises an error for what is beyond its table, where no check of made-up values looks."""

    def forward(self, features):
        sizes = features[:, 0].abs()
        return super().forward(torch.where(sizes < 1e5, sizes, 0.0).long())


def test_record_on_which_a_module_fails_leaves_no_likelihood_and_no_error():
    records = records_of(40)
    plan = plan_of(1.0, steps_per_round=3, thinning=3)
    whole = chains.run(FailsBeyond(8, 3), records, plan)
    records.features[7] = 1e3
    module = FailsBeyond(8, 3)
    trace = LocalTrace(plan, log_likelihood_estimate(module, records, 40, np.random.default_rng(0)))
    result = chains.run(module, records, plan, on_step=trace)
    assert result.samples.shape == whole.samples.shape
    assert [math.isnan(row.log_likelihood) for row in trace.rows] == [True] * 3
