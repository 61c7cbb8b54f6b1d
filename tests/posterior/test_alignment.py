"""Permuting one site's hidden units: predictions of the site stay, averages of weights do not."""

import numpy as np
import pytest

from fl_dpbayes.config.run_warning import warning
from fl_dpbayes.config.task import CNNModel, MLPModel, Task
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.parameters import to_vector, vector_to_arrays
from fl_dpbayes.posterior.alignment import state_warnings, unaligned_units
from fl_dpbayes.posterior.predictive import predict
from fl_dpbayes.posterior.rules.fedpa import server_step
from fl_dpbayes.posterior.rules.mixture import joined
from fl_dpbayes.posterior.rules.predbayes import between, product_and_mixture
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.protocol.arrays import prefixed, without_prefix
from tests.analytic_targets import combined

HIDDEN = 12
MODULE = build_model(MLPModel(hidden=(HIDDEN,)), Task(input_shape=(5,), classes=3), seed=0)
START = vector_to_arrays(to_vector(MODULE), MODULE)
NAMES = list(START)
FEATURES = np.random.default_rng(9).normal(size=(40, 5)).astype(np.float32)
REORDERED = warning("units-reordered", array=NAMES[0], other="b", first="a")
WEIGHTS = {"a": 0.2, "b": 0.3, "c": 0.5}


def site_samples(seed, spread=0.1):
    generator = np.random.default_rng(seed)
    drawn = {
        name: value + generator.normal(scale=spread, size=(12, *value.shape))
        for name, value in START.items()
    }
    arrays = {name: array.astype(np.float32) for name, array in drawn.items()}
    return PosteriorSamples(arrays, np.ones(12), np.ones(12))


def permuted(samples):
    order = np.random.default_rng(7).permutation(HIDDEN)
    first, bias, second, last = NAMES
    arrays = {name: samples.arrays[name][:, order] for name in (first, bias)}
    arrays |= {second: samples.arrays[second][:, :, order], last: samples.arrays[last]}
    return PosteriorSamples(arrays, samples.weights, samples.temperatures)


@pytest.fixture(scope="module")
def sites():
    return {name: site_samples(seed) for seed, name in enumerate("abc")}


@pytest.fixture(scope="module")
def swapped(sites):
    return sites | {"b": permuted(sites["b"])}


def predictions(samples):
    return np.stack(
        [predict(MODULE, s.arrays, s.weights, FEATURES).probabilities for s in samples.values()]
    )


WEIGHT_SPACE = {
    "fedavg": {"move_bound": "none"},
    "fedbe": {"draws": 2},
    "consensus-diagonal": {"draws": 12},
    "consensus-uniform": {"draws": 12},
    "product-diagonal": {"draws": 12},
}


def test_mixture_and_predbayes_predictions_do_not_change(sites, swapped):
    one, other = (joined(given, WEIGHTS).in_memory() for given in (sites, swapped))
    np.testing.assert_allclose(*predictions({"other": other, "one": one}), atol=1e-6)
    ends = [product_and_mixture(predictions(given)) for given in (swapped, sites)]
    for beta in (0.0, 0.5, 1.0):
        np.testing.assert_allclose(*(between(each, beta) for each in ends), atol=1e-6)


@pytest.mark.parametrize("rule", WEIGHT_SPACE)
def test_weight_space_rules_change_and_warn(sites, swapped, rule):
    settings = {"weights": WEIGHTS, "scale": 1.0, **WEIGHT_SPACE[rule]}
    aligned = combined(rule, sites, **settings)
    mixed = combined(rule, swapped, **settings)
    assert not [said for said in aligned.warnings if said.kind == "units-reordered"]
    assert [said for said in mixed.warnings if said.kind == "units-reordered"] == [REORDERED]
    assert (
        np.abs(
            np.diff(predictions({"mixed": mixed.samples, "aligned": aligned.samples}), axis=0)
        ).max()
        > 1e-3
    )


def test_fedpa_warns(sites, swapped):
    for given, expected in ((sites, 0), (swapped, 1)):
        _, moved = server_step(
            START, given, WEIGHTS, shrinkage=1.0, prior_scale=1.0, learning_rate=0.1
        )
        assert sum(said == REORDERED for said in moved) == expected


def test_filters_of_a_convolution_are_units():
    module = build_model(CNNModel(), Task(input_shape=(1, 12, 12), classes=2), seed=1)
    arrays = vector_to_arrays(to_vector(module), module)
    shapes = {name: array.shape for name, array in arrays.items()}
    name = next(name for name, shape in shapes.items() if len(shape) == 4)
    rolled = arrays | {name: np.roll(arrays[name], 1, axis=0)}
    first, second = (
        np.concatenate([a.reshape(-1) for a in given.values()]) for given in (arrays, rolled)
    )
    assert unaligned_units(first, second, shapes) == (name,)
    assert unaligned_units(first, first, shapes) == ()


def test_independent_starts_in_a_wide_layer_need_not_match():
    # In many dimensions no other order of independent units is much better: nothing is claimed.
    generator = np.random.default_rng(3)
    shapes = {"0.weight": (20, 200), "2.weight": (2, 20)}
    assert unaligned_units(generator.normal(size=4040), generator.normal(size=4040), shapes) == ()


@pytest.mark.parametrize(
    "names", [("0.weight", "9.weight", "12.weight"), ("0.weight", "12.weight", "9.weight")]
)
def test_outputs_are_classes_whose_order_is_fixed(names):
    shapes = dict.fromkeys(names, (2, 2))
    first = np.array([1.0, 1, -1, -1] * 3)
    assert set(unaligned_units(first, -first, shapes)) == {"0.weight", "9.weight"}


def test_states_of_a_round_are_compared_with_the_first_site():
    start = prefixed("parameters", START) | {
        "momentum/" + name: np.zeros_like(value) for name, value in START.items()
    }
    order = np.random.default_rng(7).permutation(HIDDEN)
    swapped = start | {f"parameters/{name}": START[name][order] for name in NAMES[:2]}
    swapped |= {"momentum/" + NAMES[0]: np.random.default_rng(1).normal(size=START[NAMES[0]].shape)}
    assert state_warnings({"a": start, "b": start}) == ()
    assert state_warnings({"b": swapped, "c": start, "a": start}) == (REORDERED,)
    states = {"a": start, "b": swapped}
    plain = {site: without_prefix("parameters", state) for site, state in states.items()}
    assert state_warnings(plain) == (REORDERED,)
