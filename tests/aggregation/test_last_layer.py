import numpy as np
import pytest

from fl_dpbayes.aggregation.last_layer import feature_warnings, last_layer_names, restored, selected
from fl_dpbayes.aggregation.product import combine_full
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.parameters import parameter_shapes
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.protocol.task import MLPModel, Task

SHAPES = {"0.weight": (3, 2), "0.bias": (3,), "2.weight": (2, 3), "2.bias": (2,)}


def whole_samples(count, seed):
    generator = np.random.default_rng(seed)
    features = {name: np.full(SHAPES[name], 0.5, np.float32) for name in ("0.weight", "0.bias")}
    arrays = {name: np.broadcast_to(value, (count, *value.shape)) for name, value in features.items()}
    arrays |= {n: generator.normal(size=(count, *SHAPES[n])).astype(np.float32) for n in ("2.weight", "2.bias")}
    return PosteriorSamples(arrays, np.ones(count), np.ones(count)), features


def test_last_layer_of_a_built_model():
    module = build_model(MLPModel(hidden=(5, 4)), Task(input_shape=(3,), classes=2), seed=0)
    names = last_layer_names(parameter_shapes(module))
    assert [tuple(module.get_parameter(name).shape) for name in names] == [(2, 4), (2,)]
    nested = {"net.0.weight": (4, 3), "net.2.weight": (2, 4), "net.2.bias": (2,)}
    assert last_layer_names(nested) == ("net.2.weight", "net.2.bias")
    with pytest.raises(ValueError, match="no parameter"):
        last_layer_names({})


def test_selected_and_restored_are_inverse():
    samples, features = whole_samples(4, 0)
    names = last_layer_names(SHAPES)
    assert names == ("2.weight", "2.bias")
    back = restored(selected(samples, names), features, SHAPES)
    assert list(back.arrays) == list(SHAPES)
    for name, array in samples.arrays.items():
        np.testing.assert_array_equal(back.arrays[name], array)


def test_a_rule_runs_on_the_last_layer_alone():
    names = last_layer_names(SHAPES)
    sites = {name: whole_samples(60, seed) for seed, name in enumerate("ab")}
    features = sites["a"][1]
    assert feature_warnings({name: samples for name, (samples, _) in sites.items()}, features) == ()
    chosen = {name: selected(samples, names) for name, (samples, _) in sites.items()}
    aggregate = combine_full(chosen, prior_scale=3.0, prior_share=0.5, draws=7, generator=np.random.default_rng(0))
    whole = restored(aggregate.samples, features, SHAPES)
    assert {name: array.shape for name, array in whole.arrays.items()} == {n: (7, *s) for n, s in SHAPES.items()}


def test_moved_features_are_said():
    samples, features = whole_samples(3, 0)
    arrays = dict(samples.arrays)
    arrays["0.bias"] = arrays["0.bias"] + np.float32(1e-3)
    moved = PosteriorSamples(arrays, samples.weights, samples.temperatures)
    (text,) = feature_warnings({"good": samples, "moved": moved}, features)
    assert "'moved'" in text
    assert "'0.bias'" in text


def test_missing_features_are_refused():
    samples, features = whole_samples(3, 0)
    with pytest.raises(ValueError, match=r"0\.bias"):
        restored(selected(samples, ("2.weight", "2.bias")), {"0.weight": features["0.weight"]}, SHAPES)
