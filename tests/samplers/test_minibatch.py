import math

import numpy as np
import pytest
import torch

from fl_dpbayes.models.build import build_model
from fl_dpbayes.protocol.plan import PrivacyPlan
from fl_dpbayes.protocol.task import LogisticModel, Task
from fl_dpbayes.samplers import minibatch
from fl_dpbayes.samplers.minibatch import BatchGradient, poisson_units

TASK = Task(input_shape=(4,), classes=3)


def privacy(**changes):
    return PrivacyPlan(**({"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 1.0, "clip_norm": 0.5} | changes))


def site(count):
    generator = np.random.default_rng(0)
    return generator.standard_normal((count, 4)).astype(np.float32), generator.integers(0, 3, count)


def batch_gradient(features, labels, unit_index, plan, seed=1):
    return BatchGradient(
        build_model(LogisticModel(), TASK, seed=0),
        features,
        labels,
        unit_index,
        privacy=plan,
        sampling_generator=np.random.default_rng(seed),
        pre_noise_generator=np.random.default_rng(2),
        device="cpu",
    )


def test_each_unit_joins_with_its_own_coin():
    rate, units, draws = 0.3, 200, 2000
    generator = np.random.default_rng(0)
    joined = np.zeros((draws, units))
    for row in joined:
        row[poisson_units(generator, units, rate)] = 1
    error = math.sqrt(rate * (1 - rate) / joined.size)
    assert abs(joined.mean() - rate) <= 4 * error
    # The batch size varies as a binomial does: shuffled or fixed-size batches would not.
    expected = units * rate * (1 - rate)
    assert abs(joined.sum(axis=1).var() / expected - 1) <= 4 * math.sqrt(2 / draws)
    neighbours = np.corrcoef(joined[:, 0], joined[:, 1])[0, 1]
    assert abs(neighbours) <= 4 / math.sqrt(draws)
    steps = np.corrcoef(joined[1:].ravel(), joined[:-1].ravel())[0, 1]
    assert abs(steps) <= 4 * 1 / math.sqrt(joined[1:].size)


def test_rate_one_takes_every_unit():
    assert poisson_units(np.random.default_rng(0), 50, 1.0).tolist() == list(range(50))


def test_empty_batch_and_empty_site_give_zero():
    features, labels = site(5)
    for count, plan in ((5, privacy(sampling_rate=1e-9)), (0, privacy()), (0, privacy(pre_noise=1.0))):
        found = batch_gradient(features[:count], labels[:count], np.arange(count), plan)()
        assert found.shape == (15,)
        assert not found.any()


def test_patients_join_whole_and_are_clipped_whole():
    features, labels = site(12)
    unit_index = np.array([2, 0, 1, 0, 2, 0, 1, 2, 0, 0, 2, 1])
    alone = [
        batch_gradient(features[unit_index == unit], labels[unit_index == unit], np.zeros(own, np.int64), privacy())()
        for unit, own in enumerate(np.bincount(unit_index))
    ]
    assert max(value.norm().item() for value in alone) <= 0.5 * (1 + 1e-6)
    sampled = batch_gradient(features, labels, unit_index, privacy(sampling_rate=0.5))
    coins = np.random.default_rng(1)
    for _ in range(10):
        joined = poisson_units(coins, 3, 0.5)
        expected = sum((alone[unit] for unit in joined), start=torch.zeros(15))
        torch.testing.assert_close(sampled(), expected)


def test_groups_of_patients_add_up(monkeypatch):
    features, labels = site(12)
    unit_index = np.repeat(np.arange(6), 2)
    whole = batch_gradient(features, labels, unit_index, privacy())()
    monkeypatch.setattr(minibatch, "records_per_chunk", lambda _: 4)
    torch.testing.assert_close(batch_gradient(features, labels, unit_index, privacy())(), whole)


def test_patients_with_one_record_each_equal_records():
    features, labels = site(9)
    order = np.random.default_rng(3).permutation(9)
    torch.testing.assert_close(
        batch_gradient(features, labels, order, privacy())(),
        batch_gradient(features, labels, np.arange(9), privacy())(),
    )


def test_pre_noise_keeps_each_contribution_within_the_bound():
    features, labels = site(1)
    noisy = batch_gradient(features, labels, np.arange(1), privacy(pre_noise=2.0))
    norms = [noisy().double().norm().item() for _ in range(50)]
    assert min(norms) >= 0.49
    assert max(norms) <= 0.5 * (1 + 1e-6)


def test_misuse_is_refused():
    features, labels = site(4)
    with pytest.raises(ValueError, match="without a gap"):
        batch_gradient(features, labels, np.array([0, 0, 2, 3]), privacy())
    with pytest.raises(ValueError, match="3 labels"):
        batch_gradient(features, labels[:3], np.arange(4), privacy())
    with pytest.raises(ValueError, match="give pre_noise_generator"):
        BatchGradient(
            build_model(LogisticModel(), TASK, seed=0),
            features,
            labels,
            np.arange(4),
            privacy=privacy(pre_noise=1.0),
            sampling_generator=np.random.default_rng(0),
            pre_noise_generator=None,
            device="cpu",
        )
