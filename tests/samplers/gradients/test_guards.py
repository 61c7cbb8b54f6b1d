"""Guards over a whole batch: no record moves another's gradient, prediction or likelihood."""

import numpy as np
import pytest
import torch

from fl_dpbayes.config.plan import PrivacyPlan
from fl_dpbayes.errors import UserError
from fl_dpbayes.models.module_checks import check_records_apart
from fl_dpbayes.models.parameters import to_vector
from fl_dpbayes.posterior.predictive import predict
from fl_dpbayes.samplers.local_trace import log_likelihood_estimate
from fl_dpbayes.samplers.minibatch import BatchGradient, TrainingRecords
from fl_dpbayes.schedules.planned import ChainStreams
from tests import guards

OTHERS = 32
EVERY = pytest.mark.parametrize("guard", guards.GUARDS, ids=lambda guard: guard.__name__)


def labelled(module, records):
    """Label records as the module sees them without the newcomer: most have hardly a gradient."""
    with torch.no_grad():
        logits = module(torch.from_numpy(records[1:]))
    return np.append(0, logits.nan_to_num().argmax(1).numpy())


def training_records(records, labels):
    return TrainingRecords(np.ascontiguousarray(records), labels, np.arange(len(records)))


def clipped_sum(module, records, labels):
    privacy = PrivacyPlan(epsilon=1.0, delta=1e-5, sampling_rate=1.0)
    streams = ChainStreams(*map(np.random.default_rng, range(4)))
    return BatchGradient(
        module, training_records(records, labels), privacy, OTHERS, streams
    )().total.double()


def named_samples(module, count):
    named = module.named_parameters()
    return {name: np.repeat(value.detach().numpy()[None], count, axis=0) for name, value in named}


@pytest.mark.slow
@EVERY
def test_one_more_unit_moves_the_sum_by_at_most_the_clip_norm(guard):
    module = guards.awake(guard)
    records = guards.newcomer_and_others(guard, OTHERS)
    labels = labelled(module, records)
    moved = clipped_sum(module, records, labels) - clipped_sum(module, records[1:], labels[1:])
    assert float(moved.norm()) <= 1 + 1e-6


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize("samples", [1, 3])
def test_a_prediction_is_the_same_bit_for_bit_whoever_is_beside_it(guard, samples):
    module = guards.awake(guard)
    records = guards.newcomer_and_others(guard, OTHERS)
    arrays = named_samples(module, samples)
    weights = np.ones(samples)
    whole, part = (predict(module, arrays, weights, some) for some in (records, records[1:]))
    np.testing.assert_array_equal(whole.probabilities[1:], part.probabilities)
    np.testing.assert_array_equal(whole.epistemic[1:], part.epistemic)


@EVERY
def test_a_likelihood_of_the_trace_is_the_sum_of_records_alone(guard):
    module = guards.awake(guard)
    records = guards.newcomer_and_others(guard, OTHERS)
    labels = labelled(module, records)
    vector = to_vector(module)

    def likelihood(part):
        some = training_records(records[part], labels[part])
        return log_likelihood_estimate(module, some, OTHERS + 1, np.random.default_rng(0))(vector)

    alone = [likelihood(slice(number, number + 1)) for number in range(OTHERS + 1)]
    assert likelihood(slice(None)) == pytest.approx(sum(alone), rel=1e-5)


@EVERY
def test_the_check_of_a_module_wakes_its_guard(guard):
    with pytest.raises(UserError, match="other logits"):
        check_records_apart(guards.Guarded(guard), (guards.WIDTH,))
