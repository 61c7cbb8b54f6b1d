"""Noise: what it is made of, its law out to the tails, and that host and device draw the same."""

import math
from unittest import mock

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy import stats

from fl_dpbayes.models import gaussian
from fl_dpbayes.models.gaussian import PART, chacha20, normal_vectors, standard_normals
from tests.devices.pretended import pretended


def keyed(key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=key))


def test_device_cipher_is_the_library_s_bit_for_bit() -> None:
    for key in (bytes(32), bytes([255] * 32), keyed(1).bytes(32)):
        nonces = [0, 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1]
        found = chacha20(key, torch.tensor(nonces), 131)
        for nonce, words in zip(nonces, found, strict=True):
            cipher = Cipher(algorithms.ChaCha20(key, bytes(8) + nonce.to_bytes(8, "little")), None)
            assert words.numpy().tobytes() == cipher.encryptor().update(bytes(131 * 64))


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
            ],
        ),
    ],
)
@pytest.mark.parametrize("numbers", [1, 2, 31, 1000, PART, 3 * PART + 1])
def test_device_draws_what_the_host_draws(monkeypatch, device: str, numbers: int) -> None:
    monkeypatch.setattr(gaussian, "_PARTS_AT_ONCE", 2)
    on_host = gaussian._Host(bytes(range(32)), numbers)(7, numbers)
    found = gaussian.on_device(bytes(range(32)), torch.device(device), firsts=[7], numbers=numbers)[
        0
    ].cpu()
    torch.testing.assert_close(found, on_host, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("size", [7, 50_000, PART, 300_000])
def test_vectors_that_a_device_draws_together_are_those_of_the_host(monkeypatch, size: int) -> None:
    monkeypatch.setattr(gaussian, "_PARTS_AT_ONCE", 40)
    expected = torch.stack(list(normal_vectors(keyed(3), size, 12)))
    with pretended():
        vectors = list(normal_vectors(keyed(3), size, 12, torch.device("cuda")))
        found = torch.stack(vectors).cpu()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1, 7, 50_000, PART, 300_000])
def test_vectors_are_the_same_drawn_ahead_and_in_turn(monkeypatch, size: int) -> None:
    found = []
    threads = torch.get_num_threads()
    for idle in (False, True):
        monkeypatch.setattr(
            gaussian.os, "sched_getaffinity", lambda _, idle=idle: range(threads + idle)
        )
        generator = keyed(3)
        other = keyed(3)
        found.append(torch.stack(list(normal_vectors(generator, size, 20))))
        other.bytes(32)
        # The generator is left at one place, however noise is drawn.
        assert generator.random() == other.random()
    assert found[0].shape == (20, size)
    some = found[0].flatten()[:: 1 + found[0].numel() // 10**5]
    assert len(some.unique()) > 0.98 * len(some)
    assert torch.equal(*found)


def test_each_of_128_key_bits_changes_the_noise() -> None:
    keys = [0, *(2**bit for bit in range(128))]
    assert len({standard_normals(keyed(key), (9,)).numpy().tobytes() for key in keys}) == 129
    drawn = [bytes(place) + b"1" + bytes(31 - place) for place in range(32)]
    known = [mock.Mock(bytes=lambda count, key=key: key[:count]) for key in drawn]
    assert len({standard_normals(each, (9,)).numpy().tobytes() for each in known}) == 32


def test_noise_reaches_9_standard_deviations_and_is_finite_at_every_integer() -> None:
    """Noise that ends before 8 would let a release exclude a neighbour: delta does not count it."""
    integers = [0, 1, -1, 2**62, 2**63 - 1, -(2**63)]
    turns = [0, 2**31 - 1, -(2**31), 2**30, -(2**30), 1]
    words = np.concatenate(
        [np.array(integers, "<i8").view(np.uint8), np.array(turns, "<i4").view(np.uint8)]
    )
    found = np.empty(12, np.float32)
    buffers = {"square": np.empty(6), "radius": np.empty(6, "f4"), "angle": np.empty(6, "f4")}
    gaussian._box_muller(words, **buffers, out=found)
    radii = np.hypot(found[:6], found[6:])
    exact = [
        math.sqrt(2 * 64 * math.log(2)),
        *[math.sqrt(2 * (63 * math.log(2) - math.log(1.5)))] * 2,
    ]
    np.testing.assert_allclose(radii, [*exact, math.sqrt(2 * math.log(2)), 0, 0], rtol=1e-6)
    assert 9.4 < found[0] < 9.5


@pytest.mark.slow
def test_law_is_normal_in_its_middle_its_tails_and_near_zero() -> None:
    drawn = standard_normals(keyed(5), (2 * 10**6,)).double().numpy()
    assert stats.kstest(drawn, "norm").statistic < 1.95 / math.sqrt(len(drawn))
    for power, variance in ((1, 1), (2, 2), (3, 15), (4, 96)):
        error = (drawn**power).mean() - stats.norm.moment(power)
        assert abs(error) < 4.5 * math.sqrt(variance / len(drawn)), power
    for low, high in ((0, 1e-3), (3, 4), (4, 9.5)):
        expected = 2 * (stats.norm.sf(low) - stats.norm.sf(high)) * len(drawn)
        found = np.count_nonzero((np.abs(drawn) >= low) & (np.abs(drawn) < high))
        assert abs(found - expected) < 4.5 * math.sqrt(expected), low
    # The two numbers of a pair, and squares of neighbours.
    for lag in (1, PART // 2):
        for one in (drawn, drawn**2 - 1):
            assert abs((one[lag:] * one[:-lag]).mean() / one.var()) < 4.5 / math.sqrt(len(drawn)), (
                lag
            )
