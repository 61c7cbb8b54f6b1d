"""Random streams: independent across everything that tells them apart, never handed out twice."""

import itertools

import numpy as np
import pytest

from fl_dpbayes.privacy.streams import Streams


def _bits(streams, purpose="noise"):
    return streams.generator(purpose).integers(0, 2**63, size=64)


def test_no_stream_is_handed_out_twice_and_entropy_differs_each_time():
    streams = Streams.from_entropy()
    assert not streams.seeded
    assert not np.array_equal(_bits(streams), _bits(Streams.from_entropy()))
    streams.generator("batches")
    with pytest.raises(ValueError, match="'noise' was handed out before"):
        streams.generator("noise")
    with pytest.raises(ValueError, match="4 bytes"):
        Streams(b"1234", seeded=False)


def test_all_128_key_bits_vary():
    keys = []
    for seed in range(400):
        state = Streams.from_insecure_seed(seed, "x").generator("noise").bit_generator.state
        keys.append([(int(word) >> i) & 1 for word in state["state"]["key"] for i in range(64)])
    assert np.shape(keys) == (400, 128)
    assert np.abs(np.mean(keys, axis=0) - 0.5).max() < 5 * 0.5 / np.sqrt(400)


def test_streams_are_uncorrelated_within_and_across_purposes_rounds_sites_chains_and_restarts():
    size = 4096
    places = itertools.product((0, 1), (1, 2), (0, 1), (0, 50))
    contexts = ["site {}, run 0, round {}, chain {}, first step {}".format(*place) for place in places]
    streams = [Streams.from_insecure_seed(seed, context) for seed in (3, 3 + 2**32) for context in contexts]
    draws = np.array([each.generator(use).standard_normal(size) for each in streams for use in ("noise", "batches")])
    assert len(draws) == 64
    correlations = np.corrcoef(draws)[np.triu_indices(len(draws), k=1)] * np.sqrt(size)
    assert np.abs(correlations).max() < 5
    assert abs(correlations.std() - 1) < 5 / np.sqrt(2 * len(correlations))
    lagged = np.array([row[1:] @ row[:-1] for row in draws]) / np.sqrt(size)
    assert np.abs(lagged).max() < 5


def test_equal_seed_and_context_repeat_and_every_bit_of_the_seed_counts():
    plain, again = (Streams.from_insecure_seed(5, "site a, run 1, round 1") for _ in range(2))
    assert plain.seeded
    drawn = _bits(plain)
    np.testing.assert_array_equal(drawn, _bits(again))
    for bit in (0, 1, 31, 32, 33, 63, 64, 96, 127):
        assert not np.array_equal(drawn, _bits(Streams.from_insecure_seed(5 ^ (1 << bit), "site a, run 1, round 1")))
    assert not np.array_equal(_bits(Streams.from_insecure_seed(1, "1x")), _bits(Streams.from_insecure_seed(11, "x")))
