"""Random streams: independent across everything that tells them apart, never handed out twice."""

import copy
import itertools
import pickle

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy.stats import kstest

from fl_dpbayes.privacy import cipher_generator
from fl_dpbayes.privacy.cipher_generator import CipherGenerator
from fl_dpbayes.privacy.streams import Streams


def _bits(streams, purpose="noise"):
    return streams.cipher(purpose).integers(0, 2**63, size=64)


def test_no_stream_is_handed_out_twice_and_entropy_differs_each_time():
    streams = Streams.from_entropy()
    assert not streams.seeded
    assert not np.array_equal(_bits(streams), _bits(Streams.from_entropy()))
    streams.cipher("batches")
    with pytest.raises(ValueError, match="'noise' was handed out before"):
        streams.generator("noise")
    with pytest.raises(ValueError, match="4 bytes"):
        Streams(b"1234", seeded=False)


def test_all_128_key_bits_vary():
    keys = []
    for seed in range(400):
        state = Streams.from_insecure_seed(seed, "x").generator("masks").bit_generator.state
        keys.append([(int(word) >> i) & 1 for word in state["state"]["key"] for i in range(64)])
    assert np.shape(keys) == (400, 128)
    assert np.abs(np.mean(keys, axis=0) - 0.5).max() < 5 * 0.5 / np.sqrt(400)


def test_streams_are_uncorrelated_within_and_across_purposes_rounds_sites_chains_and_restarts():
    size = 4096
    places = itertools.product((0, 1), (1, 2), (0, 1), (0, 50))
    contexts = [
        "site {}, run 0, round {}, chain {}, first step {}".format(*place) for place in places
    ]
    streams = [
        Streams.from_insecure_seed(seed, context) for seed in (3, 3 + 2**32) for context in contexts
    ]
    draws = np.array(
        [each.cipher(use).standard_normal(size) for each in streams for use in ("noise", "batches")]
    )
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
        assert not np.array_equal(
            drawn, _bits(Streams.from_insecure_seed(5 ^ (1 << bit), "site a, run 1, round 1"))
        )
    assert not np.array_equal(
        _bits(Streams.from_insecure_seed(1, "1x")), _bits(Streams.from_insecure_seed(11, "x"))
    )


def test_all_that_hides_a_record_comes_from_the_cipher() -> None:
    chain = Streams.from_entropy().of_chain()
    assert [type(stream) is CipherGenerator for stream in chain] == [True, True, True, False]
    # What this cipher gives for the key of 1, 2, ..., 32 and no nonce.
    drawn = CipherGenerator(bytes(range(32))).bytes(100)
    cipher = Cipher(algorithms.ChaCha20(bytes(range(32)), bytes(16)), None).encryptor()
    assert drawn == cipher.update(bytes(100))
    words = np.frombuffer(cipher.update(bytes(0)) + drawn[:96], "<u8")
    generator = CipherGenerator(bytes(range(32)))
    assert np.array_equal(generator.integers(0, 2**64, size=(2, 3)), words[:6].reshape(2, 3))
    assert np.array_equal(generator.random(6), (words[6:] >> np.uint64(11)) / 2**53)


def test_numbers_of_the_cipher_have_the_laws_that_are_asked_for() -> None:
    generator = CipherGenerator(bytes(range(32)))
    count = 200_000
    assert kstest(generator.random(count), "uniform").pvalue > 1e-3
    for shape, kind in (
        ((count,), np.float64),
        ((2, count // 2), np.float32),
        ((count + 1,), np.float64),
    ):
        drawn = generator.standard_normal(shape, dtype=kind)
        assert (drawn.shape, drawn.dtype) == (shape, kind)
        assert kstest(drawn.ravel(), "norm").pvalue > 1e-3
        # Both numbers of a pair.
        assert abs(
            np.corrcoef(drawn.ravel()[: count // 2], drawn.ravel()[count // 2 : count])[0, 1]
        ) < 5 / np.sqrt(count / 2)
    assert 0 <= generator.random() < 1
    assert generator.integers(0, 2, size=1000, dtype=np.uint8).mean() == pytest.approx(
        0.5, abs=5 * 0.5 / np.sqrt(1000)
    )


def test_what_the_cipher_cannot_draw_is_refused_and_never_another_generator_s() -> None:
    generator = CipherGenerator(bytes(32))
    refused = [
        name
        for name in dir(np.random.Generator)
        if not name.startswith("_")
        and name not in ("bytes", "random", "integers", "standard_normal")
    ]
    assert {"normal", "permutation", "bit_generator", "spawn", "uniform"} <= set(refused)
    for ask in (
        *(getattr(generator, name) for name in refused),
        lambda: generator.integers(0, 10),
        lambda: generator.random(3, dtype=np.float32),
    ):
        with pytest.raises(TypeError, match="ask a generator of numpy"):
            ask()


@pytest.mark.parametrize("make_copy", [copy.copy, copy.deepcopy, pickle.dumps])
def test_stream_is_never_copied(make_copy) -> None:
    with pytest.raises(TypeError, match="never copied"):
        make_copy(CipherGenerator(bytes(32)))


def test_stream_goes_on_with_the_next_nonce_before_the_cipher_s_count_of_blocks_ends(
    monkeypatch,
) -> None:
    monkeypatch.setattr(cipher_generator, "NONCE_BYTES", 64)
    generator = CipherGenerator(bytes(32))
    drawn = [generator.bytes(64) for _ in range(3)]
    for nonce, block in enumerate(drawn):
        start = bytes(4) + nonce.to_bytes(12, "little")
        assert block == Cipher(algorithms.ChaCha20(bytes(32), start), None).encryptor().update(
            bytes(64)
        )
    assert len(set(drawn)) == 3
