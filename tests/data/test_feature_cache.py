import io
import stat
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from unittest.mock import Mock

import numpy as np
import pytest

from fl_dpbayes.config.task import BackboneFeatures, ScatteringFeatures
from fl_dpbayes.data import feature_cache
from fl_dpbayes.data.feature_cache import cached_features

FEATURES = ScatteringFeatures()


def doubling():
    """Count how often it is asked."""
    return Mock(side_effect=lambda records: 2 * records.reshape(len(records), -1))


@pytest.fixture
def records():
    return np.random.default_rng(0).random((6, 1, 4, 5), dtype=np.float32)


def only_file(folder):
    (path,) = folder.iterdir()
    return path


def test_features_are_computed_once_into_a_file_for_its_owner_only(tmp_path, records):
    compute, folder = doubling(), tmp_path / "new" / "cache"
    for _ in range(3):
        found = cached_features(folder, FEATURES, records, compute)
        np.testing.assert_array_equal(found, 2 * records.reshape(6, 20))
    assert compute.call_count == 1
    assert isinstance(found, np.memmap)
    assert not found.flags.writeable
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(only_file(folder).stat().st_mode) == 0o600


def test_another_record_or_feature_has_a_file_of_its_own(tmp_path, records, monkeypatch):
    compute, nearly = doubling(), records.copy()
    nearly[5, 0, 3, 4] = np.nextafter(nearly[5, 0, 3, 4], np.float32(2))
    for number, changed in enumerate(
        (records, nearly, records[::-1], records.reshape(6, 1, 5, 4)), start=1
    ):
        found = cached_features(tmp_path, FEATURES, changed, compute)
        np.testing.assert_array_equal(found, 2 * changed.reshape(6, 20))
        assert compute.call_count == len(list(tmp_path.iterdir())) == number
    cached_features(tmp_path, BackboneFeatures(), records, compute)
    monkeypatch.setattr(feature_cache, "VERSION", feature_cache.VERSION + 1)
    cached_features(tmp_path, FEATURES, records, compute)
    assert compute.call_count == len(list(tmp_path.iterdir())) == 6


def pickled() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}] * 6), allow_pickle=True)
    return file.getvalue()


def bit(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


DAMAGED = {
    "truncated": lambda content: content[:-40],
    "empty": lambda _: b"",
    "pickle": lambda _: pickled(),
    "no array": lambda _: b"something else entirely, longer than a checksum of thirty-two bytes",
    "bit": lambda content: bit(content, -100),
    "bit of the header": lambda content: bit(content, 20),
}


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_or_pickled_file_is_computed_again(tmp_path, records, how):
    compute = doubling()
    cached_features(tmp_path, FEATURES, records, compute)
    path = only_file(tmp_path)
    path.write_bytes(DAMAGED[how](path.read_bytes()))
    for _ in range(2):
        found = cached_features(tmp_path, FEATURES, records, compute)
        np.testing.assert_array_equal(found, 2 * records.reshape(6, 20))
    assert compute.call_count == 2
    assert len(list(tmp_path.iterdir())) == 1


def test_writers_at_the_same_time_leave_one_whole_file(tmp_path, records):
    barrier = Barrier(4)

    def compute(array):
        barrier.wait(timeout=30)
        return 2 * array.reshape(len(array), -1)

    with ThreadPoolExecutor(4) as pool:
        for array in pool.map(
            lambda _: cached_features(tmp_path, FEATURES, records, compute), range(4)
        ):
            np.testing.assert_array_equal(array, 2 * records.reshape(6, 20))
    assert len(list(tmp_path.iterdir())) == 1


def test_a_failed_computation_leaves_nothing(tmp_path, records, monkeypatch):
    monkeypatch.setattr(feature_cache.np, "save", Mock(side_effect=OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        cached_features(tmp_path, FEATURES, records, doubling())
    assert list(tmp_path.iterdir()) == []


def test_no_records_are_no_error_nor_is_a_file_that_another_process_deletes_meanwhile(
    tmp_path, records
):
    none = np.empty((0, 1, 4, 5), np.float32)
    for _ in range(2):
        assert cached_features(tmp_path, FEATURES, none, lambda _: np.empty((0, 20))).shape == (
            0,
            20,
        )
    # A dangling link is listed and cannot be looked at, as a file that is gone since it was listed.
    (tmp_path / "gone.npy").symlink_to(tmp_path / "nowhere")
    found = cached_features(tmp_path, FEATURES, records, doubling())
    np.testing.assert_array_equal(found, 2 * records.reshape(6, 20))


def test_cache_makes_room_by_deleting_its_oldest_file(tmp_path, monkeypatch):
    monkeypatch.setattr(feature_cache, "MAX_BYTES", 3000)
    records = np.zeros((10, 4), np.float32)
    for scales in (1, 2, 3, 4):
        features = ScatteringFeatures(scales=scales)
        cached_features(tmp_path, features, records, lambda rows: np.ones((10, 25), np.float32))
    sizes = [file.stat().st_size for file in tmp_path.glob("*.npy")]
    assert len(sizes) == 2
    assert sum(sizes) <= 3000
