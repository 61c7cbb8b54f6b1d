"""Arrays of a message: exactly the expected one, or an error before anything is allocated."""

import io
import tracemalloc
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from fl_dpbayes.protocol.arrays import MAGIC, STYPE, read_sent_arrays


@dataclass(frozen=True)
class Sent:
    dtype: str
    shape: tuple[int, ...]
    stype: str
    data: bytes


def saved(values: np.ndarray, version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, values, version=version, allow_pickle=True)
    return file.getvalue()


def sent(values: np.ndarray) -> Sent:
    return Sent(str(values.dtype), values.shape, STYPE, saved(values))


def read(one: Sent, shape=(2, 3), dtype=np.float32) -> np.ndarray:
    return read_sent_arrays({"w": one}, {"w": (shape, np.dtype(dtype))})["w"]


@given(
    shape=array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5),
    dtype=st.sampled_from([np.float32, np.float64, np.uint16, np.int8]),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_array_that_numpy_writes_is_read_back(shape, dtype, seed) -> None:
    values = np.random.default_rng(seed).integers(-100, 100, shape).astype(dtype)
    back = read(sent(values), shape, dtype)
    assert back.dtype == values.dtype
    assert back.flags.writeable
    np.testing.assert_array_equal(back, values)


HONEST = sent(np.arange(6, dtype=np.float32).reshape(2, 3))


def declares(length: int) -> Sent:
    header = (
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({length},), }}".encode().ljust(117)
        + b"\n"
    )
    return replace(HONEST, data=MAGIC + len(header).to_bytes(2, "little") + header + b"\0" * 24)


FAULTS = {
    "pickle": replace(HONEST, stype="pickle"),
    "no data": replace(HONEST, data=b""),
    "a million million entries": declares(10**12),
    "entries that are none": declares(-6),
    "one byte less": replace(HONEST, data=HONEST.data[:-1]),
    "one byte more": replace(HONEST, data=HONEST.data + b"\0"),
    "header only": replace(HONEST, data=HONEST.data[:-24]),
    "no magic": replace(HONEST, data=b"\0" + HONEST.data[1:]),
    "header not of its length": replace(
        HONEST, data=HONEST.data[:8] + b"\xff\xff" + HONEST.data[10:]
    ),
    "another version": replace(
        HONEST, data=saved(np.arange(6, dtype=np.float32).reshape(2, 3), (2, 0))
    ),
    "columns first": replace(HONEST, data=saved(np.asfortranarray(np.zeros((2, 3), np.float32)))),
    "the other end first": replace(HONEST, data=saved(np.zeros((2, 3), ">f4"))),
    "integers": replace(HONEST, data=saved(np.zeros((2, 3), np.int32))),
    "objects": replace(HONEST, data=saved(np.array([[1, "a", None]], object))),
    "another shape": replace(HONEST, data=saved(np.zeros((3, 2), np.float32))),
    "says another shape": replace(HONEST, shape=(3, 2)),
    "says another type": replace(HONEST, dtype="object"),
    "not a number": sent(np.full((2, 3), np.nan, np.float32)),
    "infinite": sent(np.full((2, 3), np.inf, np.float32)),
    "an archive": replace(HONEST, data=b"PK\x03\x04" + HONEST.data[4:]),
}


@pytest.mark.parametrize("name", FAULTS)
def test_array_that_is_not_the_expected_one_is_refused_without_memory(name: str) -> None:
    tracemalloc.start()
    with pytest.raises(ValueError, match="array 'w'"):
        read(FAULTS[name])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


@given(st.data())
def test_no_bytes_bring_out_anything_but_a_refusal(data) -> None:
    body = bytearray(HONEST.data)
    for place in data.draw(st.lists(st.integers(0, len(body) - 25), min_size=1, max_size=4)):
        body[place] = data.draw(st.integers(0, 255))
    try:
        np.testing.assert_array_equal(
            read(replace(HONEST, data=bytes(body))), np.arange(6).reshape(2, 3)
        )
    except ValueError:
        assert bytes(body) != HONEST.data


def test_names_are_exactly_the_expected_ones() -> None:
    layout = {"w": ((2, 3), np.dtype(np.float32))}
    for names in ((), ("v",), ("w", "v"), ("\x1b[2J" * 100,)):
        with pytest.raises(ValueError, match="array names differ") as refused:
            read_sent_arrays(dict.fromkeys(names, HONEST), layout)
        assert len(str(refused.value)) < 100
        assert str(refused.value).isprintable()
