import shutil
import zipfile

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fl_dpbayes.config.sources import BuiltIn
from fl_dpbayes.data.records import load_unscaled
from tests.asking import refused


def test_digits_are_those_of_scikit_learn():
    source, bunch = BuiltIn(kind="digits"), load_digits()
    records = load_unscaled(source, "train").scaled()
    assert np.array_equal(records.features, (bunch.images / 16.0).astype(np.float32)[:, None])
    assert (records.features.shape[1:], records.features.dtype) == (
        source.task.input_shape,
        np.float32,
    )
    assert np.array_equal(records.labels, bunch.target)
    assert len(np.unique(records.units)) == 1797
    assert records.unit == source.unit == "record"


@pytest.mark.parametrize(
    ("kind", "part", "count", "ones"),
    [
        ("mnist", "train", 60_000, 6742),
        ("mnist", "test", 10_000, 1135),
        ("pneumonia", "train", 4708, 3494),
        ("pneumonia", "validation", 524, 389),
        ("pneumonia", "test", 624, 390),
    ],
)
def test_pictures_golden(data_folder, kind, part, count, ones):
    source = BuiltIn(kind=kind, folder=data_folder)
    records = load_unscaled(source, part)
    assert records.features.shape == (count, *source.task.input_shape)
    assert (records.labels == 1).sum() == ones
    sample = records.subset(np.arange(100)).scaled()
    assert sample.features.dtype == np.float32
    assert 0 <= sample.features.min() < 0.1 < 0.9 < sample.features.max() <= 1
    assert sample.scaled() is sample


@pytest.mark.parametrize("name", ["MNIST/raw/t10k-images-idx3-ubyte", "pneumoniamnist.npz"])
def test_a_file_that_changes_between_two_reads_is_noticed(data_folder, tmp_path, name):
    for file in (
        "MNIST/raw/t10k-images-idx3-ubyte",
        "MNIST/raw/t10k-labels-idx1-ubyte",
        "pneumoniamnist.npz",
    ):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(data_folder / file, tmp_path / file)
    source = BuiltIn(kind="mnist" if "MNIST" in name else "pneumonia", folder=tmp_path)
    first = load_unscaled(source, "test")
    assert load_unscaled(source, "test") is first
    with pytest.raises(ValueError, match="read-only"):
        first.features[0] = 0
    with (tmp_path / name).open("r+b") as file:
        file.seek(-1000, 2)
        file.write(b"\x01\x02\x03" * 20)
    refused("is damaged or another file .*get it anew from", load_unscaled, source, "test")


def test_pneumonia_accepts_another_row_order_and_refuses_another_image(data_folder, tmp_path):
    with np.load(data_folder / "pneumoniamnist.npz") as archive:
        arrays = dict(archive)
    arrays["test_images"], arrays["test_labels"] = (
        arrays["test_images"][::-1].copy(),
        arrays["test_labels"][::-1],
    )
    np.savez(tmp_path / "pneumoniamnist.npz", **arrays)
    assert len(load_unscaled(BuiltIn(kind="pneumonia", folder=tmp_path), "test").scaled()) == 624
    arrays["test_images"][0, 0, 0] ^= 1
    np.savez(tmp_path / "pneumoniamnist.npz", **arrays)
    refused(
        r"damaged or another file .*zenodo",
        load_unscaled,
        BuiltIn(kind="pneumonia", folder=tmp_path),
        "test",
    )
    (tmp_path / "pneumoniamnist.npz").write_bytes(b"<html>not found</html>")
    refused(
        "damaged or another file", load_unscaled, BuiltIn(kind="pneumonia", folder=tmp_path), "test"
    )


@pytest.mark.parametrize(
    ("packing", "size", "said"),
    [
        (zipfile.ZIP_DEFLATED, 2**24 + 1, "more than 16 MiB"),
        (zipfile.ZIP_BZIP2, 9, "packed in another way"),
    ],
)
def test_pneumonia_is_not_unpacked_where_it_is_larger_than_all_records(
    tmp_path, monkeypatch, packing, size, said
):
    with zipfile.ZipFile(tmp_path / "pneumoniamnist.npz", "w", packing) as archive:
        archive.writestr("test_images.npy", bytes(size))
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("unpacked"))
    refused(said, load_unscaled, BuiltIn(kind="pneumonia", folder=tmp_path), "test")


def test_heart_golden_counts_and_prevalence(data_folder):
    source = BuiltIn(kind="heart", folder=data_folder)
    records = load_unscaled(source, "train").scaled()
    assert records.features.shape == (740, *source.task.input_shape)
    assert records.unit == source.unit == "patient"
    assert records.features.dtype == np.float32
    golden = {
        "cleveland": (303, 0.459),
        "hungarian": (261, 0.375),
        "switzerland": (46, 0.978),
        "va": (130, 0.777),
    }
    labels = {hospital: records.labels[records.natural_site == hospital] for hospital in golden}
    assert {
        hospital: (len(own), round(float(own.mean()), 3)) for hospital, own in labels.items()
    } == golden
    # Cleveland's first line: 63,1,1,145,233,1,2,150,0,2.3
    expected = [1.3, 1, 1.25, 0.33, 1, 0, 0, 1.3, 1, 0, 0, 0, 0, 0, 1]
    np.testing.assert_allclose(records.features[0], expected, rtol=0, atol=1e-6)
    male, young = records.features[:, 1] == 1, records.features[:, 0] < 0.5
    np.testing.assert_array_equal(records.groups["sex"], np.where(male, "male", "female"))
    np.testing.assert_array_equal(records.groups["age"], np.where(young, "under 55", "55 and over"))
    # Switzerland codes every cholesterol as 0.
    assert (records.features[records.natural_site == "switzerland", 3] == -2).all()


def test_heart_reads_question_marks_and_refuses_a_changed_value(data_folder, tmp_path):
    shutil.copytree(data_folder / "heart-disease", tmp_path / "heart-disease")
    va = tmp_path / "heart-disease" / "processed.va.data"
    va.chmod(0o600)
    va.write_text(va.read_text().replace("NaN", "?"))
    assert len(load_unscaled(BuiltIn(kind="heart", folder=tmp_path), "train").scaled()) == 740
    va.write_text(va.read_text().replace("63,1,4,140,260", "63,1,4,140,261"))
    damaged = BuiltIn(kind="heart", folder=tmp_path)
    refused(r"processed\.va\.data is damaged or another file", load_unscaled, damaged, "train")


@pytest.mark.parametrize("kind", ["mnist", "pneumonia", "heart"])
def test_a_missing_file_says_where_to_get_it(kind, tmp_path, monkeypatch):
    source = BuiltIn(kind=kind, folder=tmp_path)
    refused(
        r"does not exist: get it by .*data fetch  or from .*--data-dir",
        load_unscaled,
        source,
        "train",
    )
    monkeypatch.delenv("FL_DPBAYES_DATA", raising=False)
    refused(r"--data-dir DIR or set FL_DPBAYES_DATA", load_unscaled, BuiltIn(kind=kind), "train")
    monkeypatch.setenv("FL_DPBAYES_DATA", str(tmp_path))
    refused(str(tmp_path), load_unscaled, BuiltIn(kind=kind), "train")
