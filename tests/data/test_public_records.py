"""A server's inputs: public records are read if they fit and never unpickled, synthetic ones fit by their making."""

import io
import zipfile
from functools import partial

import numpy as np
import pytest
from PIL import Image

from fl_dpbayes.config.task import Task
from fl_dpbayes.data.public_records import read_public_records, synthetic_inputs
from fl_dpbayes.errors import UserError
from tests.asking import refused

PIXELS = Task(input_shape=(1, 2, 2), classes=3)
NUMBERS = Task(input_shape=(2,), classes=3)
GOOD = np.array([[0.0, 1.0, 0.5, 0.25]] * 3)


def archive(folder, **arrays):
    path = folder / "public.npz"
    np.savez(path, **arrays)
    return path


def read(path, task=PIXELS, *, most=100, labelled=False):
    return read_public_records(path, task, most=most, labelled=labelled)


def test_archive_is_read_flat_or_shaped_and_cut_to_the_first_records(tmp_path):
    path = archive(tmp_path, features=GOOD, labels=np.array([0, 2, 1]))
    records = read(path, labelled=True, most=2)
    assert (records.features.shape, records.features.dtype) == ((2, 1, 2, 2), np.float32)
    assert records.labels.tolist() == [0, 2]
    shaped = read(archive(tmp_path, features=GOOD.reshape(3, 1, 2, 2)))
    np.testing.assert_array_equal(shaped.features[:2], records.features)
    assert shaped.labels is None
    # A table's values need not be pixels.
    assert len(read(archive(tmp_path, features=np.array([[-3, 200]])), NUMBERS).features) == 1


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"inputs": GOOD}, "no array 'features': the archive has inputs"),
        (
            {"features": GOOD[:, :3]},
            r"shape \(3, 3\) of type float64: give at least one row of 4 numbers",
        ),
        ({"features": GOOD[:0]}, "at least one row"),
        ({"features": GOOD[0]}, "at least one row"),
        *(
            ({"features": GOOD.astype(kind)}, words)
            for kind, words in (
                ("U4", "row of 4 numbers"),
                (complex, "row of 4 numbers"),
                (object, "cannot be read as a .npz archive of plain arrays"),
            )
        ),
        ({"features": GOOD * np.nan}, "not a finite number"),
        ({"features": GOOD * 1e300}, "not a finite number"),
        ({"features": GOOD * 16}, r"pixels from 0 to 16: .* divide by the largest grey level"),
    ],
    ids=[
        "name",
        "shape",
        "empty",
        "flat",
        "text",
        "complex",
        "pickle",
        "nan",
        "overflow",
        "unscaled",
    ],
)
def test_wrong_archive_is_refused_in_one_line(tmp_path, arrays, said):
    with pytest.raises(UserError, match=said) as caught:
        read(archive(tmp_path, **arrays))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (None, "no array 'labels'"),
        (np.array([0, 1]), r"shape \(2,\)"),
        (np.array([0.0, 1.0, 2.0]), "type float64"),
        (np.array([0, 1, 3]), "whole numbers from 0 to 2"),
        (np.array([0, 1, -1]), "whole numbers from 0 to 2"),
        (np.array([{}, {}, {}], dtype=object), "archive of plain arrays"),
    ],
    ids=["absent", "count", "type", "high", "low", "pickle"],
)
def test_labels_matter_only_where_asked_for(tmp_path, labels, said):
    path = archive(tmp_path, features=GOOD, **({} if labels is None else {"labels": labels}))
    assert read(path).labels is None
    refused(said, read, path, labelled=True)


def zipped(path, content: bytes):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("features.npy", content)
    return path


def test_archive_that_unpacks_to_too_much_is_refused_before_it_is(tmp_path, monkeypatch):
    path = archive(tmp_path, features=GOOD)
    read(path)
    monkeypatch.setattr("fl_dpbayes.data.public_records.MOST_BYTES", 2**7)
    refused("unpacks to more than 0 MiB", read, path)


def test_header_that_claims_more_than_the_archive_holds_is_refused(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (10**6, 10**6)}
    )
    path = zipped(tmp_path / "public.npz", header.getvalue())
    refused("cannot be read", read, path)


@pytest.mark.parametrize("content", [b"<html>not found</html>", b"PK\x03\x04" + bytes(40)])
def test_damaged_or_missing_archive_is_refused(tmp_path, content):
    path = tmp_path / "public.npz"
    refused("does not exist", read, path)
    path.write_bytes(content)
    refused("cannot be read", read, path)
    refused("give at least one row of 4 numbers", read, zipped(path, content))
    other = path.rename(tmp_path / "public.pkl")
    refused(r"give a \.npz file", read, other)


def test_no_crafted_archive_ends_in_another_error(tmp_path):
    path = tmp_path / "public.npz"
    np.savez_compressed(path, features=GOOD)
    content, generator = path.read_bytes(), np.random.default_rng(0)
    header = io.BytesIO()
    np.save(header, GOOD)
    count = 0
    for trial in range(400):
        damaged = bytearray(content if trial % 2 else header.getvalue())
        for place in generator.integers(len(damaged), size=3):
            damaged[place] = generator.integers(256)
        (path.write_bytes if trial % 2 else partial(zipped, path))(bytes(damaged))
        try:
            read(path)
        except UserError:
            count += 1
    assert count > 200


def folder_of_images(folder, per_class=2):
    for number, name in enumerate(("a", "b", "c")):
        (folder / name).mkdir()
        for index in range(per_class):
            Image.new("L", (4, 4), 100 * number).save(folder / name / f"{index}.png")
    return folder


def test_folder_of_images_with_and_without_labels(tmp_path):
    folder = folder_of_images(tmp_path)
    records = read(folder, labelled=True)
    assert records.labels.tolist() == [0, 0, 1, 1, 2, 2]
    np.testing.assert_allclose(
        records.features[:, 0, 0, 0] * 255, [0, 0, 100, 100, 200, 200], atol=1e-3
    )
    assert len(read(folder, most=3).features) == 3
    refused(
        "each image must lie in one of 4",
        read,
        folder,
        Task(input_shape=PIXELS.input_shape, classes=4),
        labelled=True,
    )
    refused("are no images", read, folder, NUMBERS)


def test_folder_without_an_image_or_with_a_bad_or_huge_one_is_refused(tmp_path, monkeypatch):
    refused("hold no image", read, tmp_path)
    folder_of_images(tmp_path, per_class=1)
    monkeypatch.setattr("fl_dpbayes.data.sources.images.MAX_PICTURE_PIXELS", 15)
    refused("has 16 pixels, allowed are 15", read, tmp_path)
    (tmp_path / "a" / "0.png").write_bytes(b"no picture")
    refused(r"0\.png cannot be read", read, tmp_path)


@pytest.mark.parametrize(
    ("pattern", "shape"), [("noise", (3, 7, 12)), ("noise", (1, 1, 1)), ("strokes", (1, 8, 8))]
)
def test_pictures_have_the_shape_and_range_of_pixels(pattern, shape):
    inputs = synthetic_inputs(pattern, 20, shape, np.random.default_rng(0))
    assert (inputs.shape, inputs.dtype) == ((20, *shape), np.float32)
    assert 0 <= inputs.min() <= inputs.max() <= 1
    if shape[-1] > 1:
        assert len(np.unique(inputs.reshape(20, -1), axis=0)) == 20
    if shape[0] == 3:
        assert inputs.std(axis=0).min() > 0.01
    np.testing.assert_array_equal(
        inputs, synthetic_inputs(pattern, 20, shape, np.random.default_rng(0))
    )


def test_pictures_are_smooth_table_values_normal_and_strokes_square_and_grey():
    inputs = synthetic_inputs("noise", 400, (1, 16, 16), np.random.default_rng(1))[:, 0]
    steps = np.abs(np.diff(inputs, axis=1)).mean(axis=(1, 2))
    assert np.quantile(steps, 0.9) > 2 * np.quantile(steps, 0.1)
    inputs = synthetic_inputs("noise", 4000, (5,), np.random.default_rng(2))
    assert abs(inputs.mean()) < 4 / np.sqrt(inputs.size)
    assert abs(inputs.var() - 1) < 4 * np.sqrt(2 / inputs.size)
    for shape in ((5,), (3, 8, 8), (1, 8, 9)):
        refused(
            "draws square grey pictures",
            synthetic_inputs,
            "strokes",
            2,
            shape,
            np.random.default_rng(0),
        )
