import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fl_dpbayes.config.plan import (
    AutomaticClipping,
    GlobalClipping,
    NoPrivacyPlan,
    PerLayerClipping,
    PrivacyPlan,
)
from fl_dpbayes.config.task import LogisticModel, MLPModel, Task
from fl_dpbayes.files.kept import Kept
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.dropout import DropoutModule
from fl_dpbayes.models.parameters import to_vector, vector_loader
from fl_dpbayes.models.rows import PassShape
from fl_dpbayes.models.variational import VariationalModule
from fl_dpbayes.samplers import minibatch
from fl_dpbayes.samplers.gradients.loss import (
    mean_over_draws,
    summed_cross_entropy,
    summed_gaussian_negative_log_likelihood,
)
from fl_dpbayes.samplers.minibatch import BatchGradient, TrainingRecords, poisson_units
from tests.chains import streams_of
from tests.samplers.gradients.one_by_one import gradient_of

TASK = Task(input_shape=(4,), classes=3)


def site(count):
    generator = np.random.default_rng(0)
    return generator.standard_normal((count, 4)).astype(np.float32), generator.integers(0, 3, count)


def batch_gradient(
    features, labels, unit_index, *, module=None, loss=summed_cross_entropy, **changes
):
    model = build_model(LogisticModel(), TASK, seed=0) if module is None else module
    settings = {"sampling_rate": 1.0, "clip_norm": 0.5} | changes
    plan = NoPrivacyPlan if settings["clip_norm"] is None else PrivacyPlan
    kind = {} if plan is NoPrivacyPlan else {"epsilon": 1.0, "delta": 1e-5}
    records = TrainingRecords(features, labels, unit_index, loss)
    return BatchGradient(
        model, records, plan(**kind, **settings), len(labels), streams_of(1, 4, 2, 7)
    )


PATIENTS = np.array([2, 0, 1, 0, 2, 0, 1, 2, 0, 0, 2, 1])
BY_RECORD_OR_PATIENT = pytest.mark.parametrize(
    "unit_index", [np.arange(12), PATIENTS], ids=["records", "patients"]
)


def units_alone(features, labels, unit_index, **more):
    """The clipped sum of each unit's records without the others'."""
    masks = [unit_index == unit for unit in range(unit_index.max() + 1)]
    return [
        batch_gradient(features[own], labels[own], np.zeros(own.sum(), np.int64), **more)()
        for own in masks
    ]


# Of 6, 3, 1 and 0 bits; the last two are powers of two, of which the bits alone decide nothing.
RATES = [0.001, 0.013, 0.1, 0.3, 0.7, 0.25, 0.5]
ERRORS = 4


def joined_units(rate, units, draws):
    generator = np.random.Generator(np.random.Philox(key=5))
    joined = np.zeros((draws, units), bool)
    for row in joined:
        row[poisson_units(generator, units, rate)] = True
    return joined


@pytest.mark.parametrize("rate", RATES)
def test_each_unit_joins_with_its_own_coin(rate):
    # Three whole words of 64 bits, and one that is cut.
    units = 200
    draws = 3000
    joined = joined_units(rate, units, draws)
    variance = rate * (1 - rate)
    assert abs(joined.mean() - rate) <= ERRORS * math.sqrt(variance / joined.size)
    # Of every unit: the sum of squares over units is chi-square, whichever of them were favoured.
    squares = ((joined.mean(axis=0) - rate) ** 2 * draws / variance).sum()
    excess = 1 / (draws * variance) - 6 / draws
    assert abs(squares - units) <= ERRORS * math.sqrt(units * (2 + excess))
    # The batch size varies as a binomial does: shuffled or fixed-size batches would not.
    sizes = joined.sum(axis=1)
    excess = (1 - 6 * variance) / (units * variance)
    assert abs(sizes.var() / (units * variance) - 1) <= ERRORS * math.sqrt((2 + excess) / draws)


@pytest.mark.slow
@pytest.mark.parametrize("rate", RATES[1:])
@pytest.mark.parametrize("lag", [1, 7, 8, 63, 64, 128, 200, 264])
def test_no_units_and_no_steps_join_together(rate, lag):
    # Neighbours in a byte and in a word, of two words, and of two steps: every pair at once.
    units = 200
    joined = joined_units(rate, units, 3000).ravel()
    pairs = len(joined) - lag
    together = (joined[lag:] & joined[:-lag]).sum()
    deviation = math.sqrt(pairs * rate**2 * (1 - rate**2) + 2 * pairs * rate**3 * (1 - rate))
    assert abs(together - pairs * rate**2) <= ERRORS * deviation


@pytest.mark.parametrize("rate", RATES)
def test_gaps_between_those_who_join_are_geometric(rate):
    # Over all steps, as if they were one: the law that has no memory, held against up to 20 cells.
    joined = np.flatnonzero(joined_units(rate, 200, 3000))
    gaps = np.diff(joined)
    cells = np.unique(np.floor(np.linspace(0, 3 / rate, 20)).astype(int))
    counts = np.array([(gaps > start).sum() for start in cells])
    expected = len(gaps) * (1 - rate) ** cells
    deviation = np.sqrt(expected * (1 - expected / len(gaps)))
    # Shares of one sample: 20 of them at once, hence one error more.
    assert (np.abs(counts - expected) <= (ERRORS + 1) * deviation + 1e-9).all()


def scripted(bits, uniform):
    """A generator whose words are all ones or all zeros, and whose uniforms are one number."""
    words = {True: np.uint64(2**64 - 1), False: np.uint64(0)}

    def integers(low, high, size, dtype):
        assert (low, high, dtype) == (0, 2**64, np.uint64)
        rows = [[words[bit]] * size[1] for bit in bits[: size[0]]]
        return np.array(rows, np.uint64).reshape(size)

    return SimpleNamespace(integers=integers, random=lambda count: np.full(count, uniform))


# A uniform of numpy is 0 with probability 2^-53, eleven times a rate of 1e-17.
@pytest.mark.parametrize(
    ("rate", "bits", "uniform", "joins"),
    [
        (1e-19, 6, 0.0, False),
        (2.0**-59, 6, 0.0, True),
        (2.0**-59, 6, 2.0**-53, False),
        (0.5, 0, 0.5, False),
        (0.5, 0, 0.5 - 2.0**-53, True),
        (0.25, 1, 0.5, False),
        (0.25, 1, 0.5 - 2.0**-53, True),
        (0.375, 1, 0.75 - 2.0**-53, True),
        (0.375, 1, 0.75, False),
        (1.0, 0, 1 - 2.0**-53, True),
    ],
)
def test_a_coin_shows_heads_at_the_rate_rounded_down(rate, bits, uniform, joins):
    for count in (1, 64, 65):
        everyone = list(range(count)) if joins else []
        assert poisson_units(scripted([True] * 6, uniform), count, rate).tolist() == everyone
        for zero in range(bits):
            flipped = [place != zero for place in range(6)]
            assert not len(poisson_units(scripted(flipped, uniform), count, rate))


@pytest.mark.parametrize("rate", [1e-6, 0.01, 0.3, 1.0])
def test_draws_are_few_and_bounded(rate):
    asked = []
    generator = np.random.default_rng(0)

    def random(count):
        asked.append(count)
        return generator.random(count)

    def integers(*given, size, dtype):
        asked.append(math.prod(size))
        return generator.integers(*given, size=size, dtype=dtype)

    units = 100_000
    joined = poisson_units(SimpleNamespace(random=random, integers=integers), units, rate)
    assert sum(asked) <= units * (1 + 6 / 64)
    if rate <= 0.01:
        assert sum(asked) <= units / 8
    assert (np.diff(joined) > 0).all()
    assert joined.dtype == np.int64


def test_nobody_and_everybody_join():
    generator = np.random.default_rng(0)
    assert len(poisson_units(generator, 0, 0.01)) == 0
    assert poisson_units(generator, 50, 1.0).tolist() == list(range(50))


def test_empty_batch_and_empty_site_give_zero():
    features, labels = site(5)
    for count, changes in ((5, {"sampling_rate": 1e-9}), (0, {}), (0, {"pre_noise": 1.0})):
        found = batch_gradient(features[:count], labels[:count], np.arange(count), **changes)()
        assert found.total.shape == (15,)
        assert not found.total.any()
        assert (found.clipped, found.units) == (0, 0)


def test_patients_join_whole_and_are_clipped_whole():
    features, labels = site(12)
    alone = [found.total for found in units_alone(features, labels, PATIENTS)]
    assert max(value.norm().item() for value in alone) <= 0.5 * (1 + 1e-6)
    sampled = batch_gradient(features, labels, PATIENTS, sampling_rate=0.5)
    coins = np.random.default_rng(1)
    for _ in range(10):
        joined = poisson_units(coins, 3, 0.5)
        expected = sum((alone[unit] for unit in joined), start=torch.zeros(15, dtype=torch.float64))
        torch.testing.assert_close(sampled().total, expected)


def test_groups_of_patients_add_up_and_patients_with_one_record_each_equal_records(monkeypatch):
    features, labels = site(12)
    order = np.random.default_rng(3).permutation(12)
    records = np.arange(12)
    by_patient, by_record = (
        batch_gradient(features, labels, index)().total for index in (order, records)
    )
    torch.testing.assert_close(by_patient, by_record)
    unit_index = np.repeat(np.arange(6), 2)
    whole = batch_gradient(features, labels, unit_index)().total
    monkeypatch.setattr(minibatch, "KEPT", Kept())
    monkeypatch.setattr(minibatch, "wanted_rows", lambda *_, **__: 4)
    torch.testing.assert_close(
        batch_gradient(features, labels, unit_index)().total, whole, rtol=1e-5, atol=1e-6
    )


def test_what_was_found_for_a_module_and_its_records_is_found_once(monkeypatch):
    features, labels = site(12)
    features.flags.writeable = False
    monkeypatch.setattr(minibatch, "KEPT", Kept())

    def total(records=features, **changes):
        return batch_gradient(records, labels, np.arange(12), **changes)().total

    first = total()
    # Called with arguments, both fail.
    monkeypatch.setattr(minibatch, "gradient_engine", lambda: None)
    monkeypatch.setattr(minibatch.DenseChain, "input_lengths", lambda: None)
    assert torch.equal(total(), first)
    mlp = build_model(MLPModel(hidden=(3,)), TASK, seed=0)
    others = features.copy()
    others.flags.writeable = False
    for other in ({"records": others}, {"module": mlp}, {"sampling_rate": 0.5}, {"pre_noise": 1.0}):
        with pytest.raises(TypeError, match="positional argument"):
            total(**other)


@pytest.mark.parametrize(
    "kind", ["written", "a view of what is written", "written between two steps"]
)
def test_records_that_were_written_are_measured_again(kind):
    features, labels = site(12)
    shown = features.view() if "view" in kind else features
    shown.flags.writeable = "view" not in kind
    asked = (shown, labels, np.arange(12))
    gradient = batch_gradient(*asked, clip_norm=1e-3)
    before = gradient().total
    features *= 100
    after = (gradient if "between" in kind else batch_gradient(*asked, clip_norm=1e-3))().total
    assert torch.equal(after, batch_gradient(features.copy(), *asked[1:], clip_norm=1e-3)().total)
    assert not torch.equal(before, after)


def test_pre_noise_keeps_each_contribution_within_the_bound():
    features, labels = site(1)
    noisy = batch_gradient(features, labels, np.arange(1), pre_noise=2.0)
    norms = [noisy().total.double().norm().item() for _ in range(50)]
    assert min(norms) >= 0.49
    assert max(norms) <= 0.5 * (1 + 1e-6)


def test_misuse_is_refused():
    features, labels = site(4)
    with pytest.raises(ValueError, match="without a gap"):
        batch_gradient(features, labels, np.array([0, 0, 2, 3]))
    with pytest.raises(ValueError, match="3 labels"):
        batch_gradient(features, labels[:3], np.arange(4))


def hidden_layers():
    module = build_model(MLPModel(hidden=(6, 5)), TASK, seed=0)
    vector_loader(module)(
        torch.randn(len(to_vector(module)), generator=torch.Generator().manual_seed(3))
    )
    return module


@pytest.mark.parametrize(
    "clipping", [GlobalClipping(bound=50.0), AutomaticClipping(), PerLayerClipping()]
)
@BY_RECORD_OR_PATIENT
def test_rule_bounds_each_unit_and_counts(clipping, unit_index):
    features, labels = site(12)
    alone = units_alone(features, labels, unit_index, module=hidden_layers(), clipping=clipping)
    assert 0.01 < max(found.total.double().norm().item() for found in alone) <= 0.5
    together = batch_gradient(
        features, labels, unit_index, module=hidden_layers(), clipping=clipping
    )()
    torch.testing.assert_close(
        together.total, sum(found.total for found in alone), rtol=1e-4, atol=1e-6
    )
    assert (together.clipped, together.units) == (sum(found.clipped for found in alone), len(alone))


@BY_RECORD_OR_PATIENT
def test_regression_without_a_bound_gives_the_plain_gradient_limit(unit_index):
    features, _ = site(12)
    targets = np.linspace(-1, 2, 12, dtype=np.float32)
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    vector_loader(module)(torch.randn(23, generator=torch.Generator().manual_seed(3)))
    loss = summed_gaussian_negative_log_likelihood
    found = batch_gradient(
        features, targets, unit_index, module=module, clip_norm=None, loss=loss
    )()
    expected = gradient_of(module, torch.from_numpy(features), torch.from_numpy(targets), loss)
    torch.testing.assert_close(found.total, expected, rtol=1e-4, atol=1e-5)
    assert found.clipped == 0


STOCHASTIC = pytest.mark.parametrize(
    ("stochastic", "loss"),
    [
        (lambda: DropoutModule(hidden_layers(), 0.4), summed_cross_entropy),
        (lambda: VariationalModule(hidden_layers(), 3, 0.3), mean_over_draws(summed_cross_entropy)),
    ],
    ids=["masks", "weight_draws"],
)


@pytest.mark.slow
@STOCHASTIC
@BY_RECORD_OR_PATIENT
def test_draws_stay_with_their_records_however_the_batch_is_cut(
    monkeypatch, stochastic, loss, unit_index
):
    features, labels = site(12)

    def totals():
        gradient = batch_gradient(features, labels, unit_index, module=stochastic(), loss=loss)
        return torch.stack([gradient().total for _ in range(3)])

    whole = totals()
    assert not torch.equal(whole[0], whole[1])
    monkeypatch.setattr(minibatch, "KEPT", Kept())
    monkeypatch.setattr(minibatch, "wanted_rows", lambda *_, **__: 5)
    monkeypatch.setattr(
        minibatch,
        "checked_gradient_shape",
        lambda *_, **__: PassShape("gradients", wanted=5, rows=5),
    )
    torch.testing.assert_close(totals(), whole, rtol=1e-4, atol=1e-6)


@STOCHASTIC
def test_last_record_more_or_less_moves_the_sum_by_at_most_the_bound(stochastic, loss):
    features, labels = site(12)
    with_it, without_it = (
        batch_gradient(
            features[:count], labels[:count], np.arange(count), module=stochastic(), loss=loss
        )().total
        for count in (12, 11)
    )
    assert 0 < (with_it - without_it).double().norm().item() <= 0.5 * (1 + 1e-5)


class Level(torch.nn.Embedding):
    def forward(self, features):
        return super().forward(features[:, 0].long().clamp(min=0))


@BY_RECORD_OR_PATIENT
def test_unit_with_a_record_that_raises_an_error_contributes_nothing(unit_index):
    features, labels = site(12)
    module = Level(5, 3)
    whole = units_alone(features, labels, unit_index, module=module)
    expected = sum(each.total for unit, each in enumerate(whole) if unit != unit_index[4])
    features[4] = 7
    found = batch_gradient(features, labels, unit_index, module=module)()
    torch.testing.assert_close(found.total, expected)
