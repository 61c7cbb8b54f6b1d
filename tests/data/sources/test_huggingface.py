import datasets
import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet
from pydantic import ValidationError

from fl_dpbayes.config.sources import HuggingFace
from fl_dpbayes.config.task import Task
from fl_dpbayes.data.records import load_unscaled
from fl_dpbayes.data.sources import huggingface
from tests.asking import refused

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Keep the library offline, and its cache out of the user's home."""
    folder = tmp_path / "huggingface"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    return folder


def pictures(count, seed=0):
    levels = np.random.default_rng(seed).integers(0, 256, (count, 10, 12), dtype=np.uint8)
    return levels, [Image.fromarray(one) for one in levels]


def image_folder(folder):
    """Write 40 and 9 pictures in two classes, as the hub lays them out."""
    folder.mkdir(parents=True)
    names = datasets.ClassLabel(names=["no", "yes"])
    for split, count in (("train", 40), ("test", 9)):
        rows = {"scan": pictures(count, seed=count)[1], "sick": np.arange(count) % 2}
        types = datasets.Features({"scan": datasets.Image(), "sick": names})
        datasets.Dataset.from_dict(rows, features=types).to_parquet(
            folder / f"{split}-00000-of-00001.parquet"
        )
    return folder


def images(folder, **changes):
    keys = {
        "path": folder,
        "features": "scan",
        "label": "sick",
        "classes": 2,
        "height": 10,
        "width": 12,
    }
    return HuggingFace(**(keys | changes))


def table_folder(folder, **changes):
    folder.mkdir(parents=True)
    columns = {
        "age": [20.0, 60.0, 50.0],
        "sex": [0, 1, 1],
        "sick": [0, 1, 0],
        "patient": ["p", "q", "q"],
        "site": ["rome", "oslo", "rome"],
    }
    datasets.Dataset.from_dict(columns | changes).to_parquet(folder / "train.parquet")
    return folder


def table(folder, **changes):
    keys = {"path": folder, "features": ["age", "sex"], "label": "sick", "classes": 2}
    return HuggingFace(**(keys | changes))


def test_images_of_a_local_folder(tmp_path, cache):
    source = images(image_folder(tmp_path / "scans"), splits={"train": "train", "test": "test"})
    for part, count in (("train", 40), ("test", 9)):
        records = load_unscaled(source, part).scaled()
        levels, _ = pictures(count, seed=count)
        np.testing.assert_array_equal(records.features, levels[:, None] / np.float32(255))
        assert records.labels.tolist() == [number % 2 for number in range(count)]
        assert records.units.tolist() == list(range(count))
        assert records.task == source.task == Task(input_shape=(1, 10, 12), classes=2)
        assert records.unit == source.unit == "image"
    small = (
        load_unscaled(images(tmp_path / "scans", height=5, width=4, channels=3), "train")
        .scaled()
        .features
    )
    assert small.shape == (40, 3, 5, 4)
    assert 0 <= small.min() < small.max() <= 1
    # A hospital's records are not copied into its user's home.
    assert not list(cache.rglob("*.arrow"))


def test_numeric_columns_are_centred_and_scaled_by_constants(tmp_path):
    source = table(
        table_folder(tmp_path / "t"),
        centers=[50, 0],
        scales=[10, 1],
        unit_column="patient",
        site_column="site",
    )
    records = load_unscaled(source, "train").scaled()
    assert records.features.tolist() == [[-3, 0], [1, 1], [0, 1]]
    found = zip(records.labels, records.units, records.natural_site, strict=True)
    assert list(found) == [(0, "p", "rome"), (1, "q", "oslo"), (0, "q", "rome")]
    assert records.feature_names == ("age", "sex")
    assert (records.unit, source.unit) == ("patient", "patient")
    assert records.task == source.task


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label": "ill"}, "has no column 'ill': its columns are scan, sick"),
        ({"classes": 3}, "column 'sick' has 2 classes, source.classes is 3"),
        ({"features": "sick", "label": "scan"}, "column 'sick' holds no images"),
        ({"site_column": "hospital"}, "has no column 'hospital'"),
        (
            {"splits": {"train": "training"}},
            "has no split 'training': set source.splits to some of train, test",
        ),
        ({"config": "small"}, "cannot be had.*check source.config"),
        ({"splits": {"test": "test"}}, "no part 'train': choose test"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, changes, message):
    refused(message, load_unscaled, images(image_folder(tmp_path / "scans"), **changes), "train")


def test_a_bad_value_is_named(tmp_path):
    for column, values, message in (
        ("age", [1.0, None, 2.0], "row 2, column 'age'"),
        ("site", ["rome", None, "rome"], "'site' has missing values"),
    ):
        source = table(table_folder(tmp_path / column, **{column: values}), site_column="site")
        refused(message, load_unscaled, source, "train")


def test_too_many_records_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface, "MAX_GREY_LEVELS", 39 * 120)
    refused(
        "has more than 39 records", load_unscaled, images(image_folder(tmp_path / "scans")), "train"
    )
    monkeypatch.setattr(huggingface, "MAX_NUMBERS", 5)
    refused("has more than 2 records", load_unscaled, table(table_folder(tmp_path / "t")), "train")


def test_a_folder_without_data_in_parquet_is_refused(tmp_path):
    for name in ("empty", "csv"):
        (tmp_path / name).mkdir()
    (tmp_path / "csv" / "train.csv").write_text("age,sex,sick\n1,1,0\n")
    reasons = {
        "nowhere": "no such folder",
        "empty": "cannot be had",
        "csv": "not in Parquet, the only format",
    }
    for name, message in reasons.items():
        refused(message, load_unscaled, table(tmp_path / name), "train")


def test_a_data_set_of_the_hub_is_used_offline_if_it_is_here_and_of_that_commit(tmp_path, cache):
    source = images(None, path=None, name="owner/scans", revision=COMMIT)
    refused(
        r"owner/scans: it cannot be had .*download it beforehand.*source.path",
        load_unscaled,
        source,
        "train",
    )
    builder = datasets.load_dataset_builder(str(image_folder(tmp_path / "scans")))
    builder.download_and_prepare(str(cache / "owner___scans" / "default" / "0.0.0" / COMMIT))
    records = load_unscaled(source, "train").scaled()
    np.testing.assert_array_equal(
        records.features, pictures(40, seed=40)[0][:, None] / np.float32(255)
    )
    other = source.model_copy(update={"revision": COMMIT[::-1]})
    refused(f"of commit {COMMIT}, not of revision {COMMIT[::-1]}", load_unscaled, other, "train")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": None}, "either name"),
        ({"path": None, "name": "owner/scans"}, "revision is the commit"),
        ({"path": None, "name": "owner/scans", "revision": "main"}, "revision"),
        ({"revision": COMMIT}, "revision is the commit"),
        ({"height": None}, "height and width"),
        ({"path": None, "name": "../scans/x", "revision": COMMIT}, "name"),
        ({"splits": {"train": "train[:10]"}}, "splits"),
        ({"centers": [1.0]}, "centers has 1 values for 0 numeric features"),
    ],
)
def test_keys_must_fit(changes, message):
    with pytest.raises(ValidationError, match=message):
        images("scans", **changes)


def write_rows(folder, rows):
    """Write rows as they are: the library itself would read the files that they name."""
    folder.mkdir()
    types = datasets.Features({"scan": datasets.Image(), "sick": datasets.Value("int64")})
    values = pyarrow.table({"scan": rows, "sick": [0] * len(rows)}, schema=types.arrow_schema)
    parquet.write_table(values, folder / "train.parquet")
    return images(folder)


def test_a_row_that_names_a_file_of_this_machine_and_a_broken_or_a_huge_picture_are_refused(
    tmp_path, monkeypatch
):
    Image.new("L", (12, 10)).save(tmp_path / "secret.png")
    named = write_rows(tmp_path / "named", [{"bytes": None, "path": str(tmp_path / "secret.png")}])
    refused("image in row 1 is not inside the Parquet file", load_unscaled, named, "train")
    good = {"bytes": (tmp_path / "secret.png").read_bytes(), "path": None}
    broken = write_rows(tmp_path / "broken", [good, {"bytes": b"no picture", "path": None}])
    refused("image in row 2 cannot be read", load_unscaled, broken, "train")
    monkeypatch.setattr("fl_dpbayes.data.sources.images.MAX_PICTURE_PIXELS", 119)
    refused(
        "image in row 1 cannot be read: it has 120 pixels, allowed are 119",
        load_unscaled,
        broken,
        "train",
    )
