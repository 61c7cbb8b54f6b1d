"""Samples are thinned and joined with their weights.

On disk they behave alike, and are read piece by piece.
"""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from fl_dpbayes.files.run_store import RunStore
from fl_dpbayes.posterior.rules.mixture import joined
from fl_dpbayes.posterior.sample_file import write_samples
from fl_dpbayes.posterior.sample_store import PosteriorBank
from fl_dpbayes.posterior.samples import PosteriorSamples, SamplePiece, StoredSamples, concatenate


def samples_of(count, seed):
    generator = np.random.default_rng(seed)
    shapes = {"w": (count, 2, 3), "b": (count, 2)}
    arrays = {
        name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }
    return PosteriorSamples(arrays, 0.1 + generator.random(count), generator.random(count))


def assert_same(found, expected):
    assert found.arrays.keys() == expected.arrays.keys()
    for name, array in expected.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array)
    np.testing.assert_array_equal(found.weights, expected.weights)
    np.testing.assert_array_equal(found.temperatures, expected.temperatures)


@pytest.fixture
def stored(tmp_path):
    def store(*parts):
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        bank = PosteriorBank(RunStore.make(folder))
        for number, part in enumerate(parts):
            bank.add("site", number, 0, part, {})
        return bank.stored("site")

    return store


def test_what_is_written_is_read_back(stored):
    parts = [samples_of(5, 0), samples_of(1, 1), samples_of(4, 2)]
    found = stored(*parts)
    assert len(found) == 10
    assert_same(found.in_memory(), concatenate(parts))


@pytest.mark.parametrize("most", [1, 3, 7, 9, 10, 50])
def test_thinned_alike_on_disk_and_in_memory(stored, most):
    parts = [samples_of(5, 0), samples_of(1, 1), samples_of(4, 2)]
    assert_same(stored(*parts).thinned(most), concatenate(parts).thinned(most))


def test_mixture_on_disk_is_that_in_memory(stored):
    sites = {"a": [samples_of(5, 0), samples_of(3, 3)], "b": [samples_of(2, 1)]}
    weights = {"a": 3.0, "b": 1.0, "c": 5.0}
    found = joined({site: stored(*parts) for site, parts in sites.items()}, weights)
    expected = joined({site: concatenate(parts) for site, parts in sites.items()}, weights)
    assert_same(found.in_memory(), expected.in_memory())
    assert found.weights[:8].sum() == pytest.approx(0.75)


def test_streamed_file_is_one_that_safetensors_reads(stored, tmp_path):
    parts = [samples_of(5, 0), samples_of(1, 1), samples_of(4, 2)]
    whole = concatenate(parts)
    path = tmp_path / "all.safetensors"
    write_samples(path, stored(*parts), {"key": 'a "text" of two\nlines'})
    content = load_file(path)
    arrays = {name: content[f"samples/{name}"] for name in whole.arrays}
    assert_same(PosteriorSamples(arrays, content["weights"], content["temperatures"]), whole)


def test_one_piece_is_read_at_a_time_and_thinning_reads_only_what_it_keeps():
    read = []

    def piece(number):
        def rows(numbers):
            read.append((number, numbers.tolist()))
            return {"w": np.full((len(numbers), 1), number, np.float32)}

        return SamplePiece(np.ones(4), np.ones(4), rows)

    found = StoredSamples(tuple(piece(number) for number in range(5)))
    iterator = found.parts()
    next(iterator)
    assert read == [(0, [0, 1, 2, 3])]
    read.clear()
    found.thinned(2)
    assert read == [(2, [1]), (4, [3])]


def numbered(count, start=0):
    numbers = np.arange(start, start + count)
    values = numbers.astype(np.float32)[:, None].repeat(2, axis=1)
    return PosteriorSamples({"w": values}, 1.0 + numbers, 0.5 + numbers)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(count=st.integers(1, 60), kept=st.integers(1, 70))
def test_thinning_keeps_weight_of_each_block_and_even_spacing_property(count, kept):
    thinned = numbered(count).thinned(kept)
    assert len(thinned) == min(count, kept)
    places = thinned.arrays["w"][:, 0].astype(int)
    np.testing.assert_allclose(thinned.weights.cumsum(), numbered(count).weights.cumsum()[places])
    np.testing.assert_array_equal(thinned.temperatures, 0.5 + places)
    gaps = np.diff(places, prepend=-1)
    assert gaps.max() - gaps.min() <= 1
    assert places[-1] == count - 1


@pytest.mark.parametrize(
    ("weights", "temperatures", "message"),
    [
        ([1.0], [1.0, 1.0], "one entry per sample"),
        ([-1.0, 2.0], [1.0, 1.0], "weights must be finite"),
        ([1.0, 1.0], [1.0, np.inf], "temperatures must be finite"),
        ([0.0, 0.0], [1.0, 1.0], "not all be 0"),
    ],
)
def test_inconsistent_samples_are_refused(weights, temperatures, message):
    with pytest.raises(ValueError, match=message):
        PosteriorSamples(
            {"w": np.zeros((2, 3), np.float32)}, np.array(weights), np.array(temperatures)
        )
