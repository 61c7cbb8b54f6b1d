from collections.abc import Mapping

import numpy as np
import pytest

from fl_dpbayes.posterior.chains import chains, flatten_state, sample_shapes, unflatten
from fl_dpbayes.posterior.samples import PosteriorSamples
from tests.analytic_targets import combined


def samples(count, seed=0, shapes=None):
    generator = np.random.default_rng(seed)
    shapes = shapes or {"b": (2, 3), "a": (2,)}
    arrays = {
        name: generator.normal(size=(count, *shape)).astype(np.float32)
        for name, shape in shapes.items()
    }
    return PosteriorSamples(arrays, generator.uniform(0.5, 1, size=count), np.ones(count))


def test_sites_come_by_name_with_normalised_weights_and_the_empty_are_left_out():
    found = list(chains({"z": samples(3), "b": samples(4, 1), "m": samples(0)}))
    assert [chain.site for chain in found] == ["b", "z"]
    assert found[0].draws.shape == (4, 8)
    assert found[0].draws.dtype == np.float64
    assert found[0].weights.sum() == pytest.approx(1)
    np.testing.assert_allclose(
        found[0].mean, np.average(found[0].draws, axis=0, weights=found[0].weights)
    )


def test_flattening_is_inverted_and_follows_names_not_their_order():
    given = samples(4)
    shapes = sample_shapes({"a": given})
    assert list(shapes) == ["b", "a"]
    (chain,) = chains({"a": given})
    for name, array in unflatten(chain.draws, shapes).items():
        np.testing.assert_array_equal(array, given.arrays[name])
        assert array.dtype == np.float32
    turned = PosteriorSamples(
        dict(reversed(given.arrays.items())), given.weights, given.temperatures
    )
    one, other = chains({"a": given, "b": turned})
    np.testing.assert_array_equal(one.draws, other.draws)
    state = {name: array[2] for name, array in turned.arrays.items()}
    np.testing.assert_array_equal(flatten_state(state, shapes), chain.draws[2])


@pytest.mark.parametrize(
    "shapes", [{"b": (3, 2), "a": (2,)}, {"b": (2, 3)}, {"b": (2, 3), "a": (2,), "c": (1,)}]
)
def test_other_models_are_refused(shapes):
    with pytest.raises(ValueError, match="the arrays of 'y' have other names or shapes"):
        list(chains({"x": samples(3), "y": samples(3, shapes=shapes)}))


def test_no_sample_is_refused():
    for nothing in ({}, {"a": samples(0)}):
        with pytest.raises(ValueError, match="no site sent a sample"):
            list(chains(nothing))


class ReadOnDemand(Mapping):
    """Makes a site's samples when they are asked for, and holds none."""

    def __iter__(self):
        return iter(["a", "b", "c"])

    def __len__(self):
        return 3

    def __getitem__(self, site):
        return samples(20, seed=ord(site))


def test_samples_may_be_read_from_disk_one_site_at_a_time():
    lazy = combined("product-diagonal", ReadOnDemand(), scale=1.0, draws=5)
    held = combined("product-diagonal", dict(ReadOnDemand()), scale=1.0, draws=5)
    for name, array in held.samples.arrays.items():
        np.testing.assert_array_equal(lazy.samples.arrays[name], array)
