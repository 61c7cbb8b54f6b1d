"""Records from outside a run: labels that are not asked for are not looked at, and pixels must be scaled."""

import numpy as np
import pytest
from PIL import Image

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.sources import BuiltIn, ImageFolder, Table
from fl_dpbayes.config.task import Task
from fl_dpbayes.run.new_records import read_new_records

DIGITS = BuiltIn(kind="digits")
PIXELS = Task(input_shape=(1, 2, 2), classes=3)
NUMBERS = Task(input_shape=(2,), classes=3)
BAD_LABELS = [
    np.array([0, 1, 9]),
    np.array(["a", "b", "c"]),
    np.array([0]),
    np.array([{}, {}, {}], dtype=object),  # loading it would need pickle
]


def archive(folder, features, **more):
    path = folder / "new.npz"
    np.savez(path, features=np.asarray(features), **more)
    return path


@pytest.mark.parametrize("labels", BAD_LABELS, ids=["class", "text", "count", "object"])
def test_labels_of_an_archive_matter_only_where_asked_for(tmp_path, labels):
    path = archive(tmp_path, np.full((3, 4), 0.5), labels=labels)
    assert read_new_records(path, PIXELS, DIGITS, labelled=False).labels is None
    with pytest.raises(UserError, match=r"labels must be whole numbers|plain arrays"):
        read_new_records(path, PIXELS, DIGITS, labelled=True)


@pytest.mark.parametrize(("label", "named"), [("9", "9"), ("unknown", "unknown"), ("", "nan"), ("1.5", "1.5")])
def test_labels_of_a_table_matter_only_where_asked_for(tmp_path, label, named):
    path = tmp_path / "new.csv"
    path.write_text(f"x,y,label\n1,7,0\n2,40,{label}\n")
    source = Table(path=path, label="label", classes=3, features=("x", "y"))
    records = read_new_records(path, NUMBERS, source, labelled=False)
    assert records.labels is None
    assert records.features.tolist() == [[1, 7], [2, 40]]
    with pytest.raises(UserError, match=rf"record 1 is '{named}': labels must be whole numbers from 0 to 2"):
        read_new_records(path, NUMBERS, source, labelled=True)


def test_good_labels_are_read(tmp_path):
    path = archive(tmp_path, np.full((3, 4), 0.5), labels=np.array([0, 2, 1]))
    assert read_new_records(path, PIXELS, DIGITS, labelled=True).labels.tolist() == [0, 2, 1]


@pytest.mark.parametrize(
    ("source", "brightest"),
    [(DIGITS, 16), (BuiltIn(kind="mnist"), 255), (ImageFolder(path="x", height=2, width=2), 255)],
    ids=["digits", "mnist", "images"],
)
@pytest.mark.parametrize(("low", "high"), [(0, 16), (-1, 1), (0, 1.001)])
def test_pixels_that_are_not_scaled_are_refused_with_the_remedy(tmp_path, source, brightest, low, high):
    features = np.full((3, 2, 2), 0.5)
    features[1, 0, 0], features[2, 1, 1] = low, high
    with pytest.raises(UserError, match=rf"pixels from {low:g} to {high:g}: .* \[0, 1\], so divide .* by {brightest} "):
        read_new_records(archive(tmp_path, features), PIXELS, source, labelled=False)


def test_pixels_from_0_to_1_and_unscaled_table_values_pass(tmp_path):
    path = archive(tmp_path, [[0, 1, 0.25, 1]])
    assert read_new_records(path, PIXELS, DIGITS, labelled=False).features.shape == (1, 1, 2, 2)
    path = archive(tmp_path, [[-3.0, 200.0]])
    assert len(read_new_records(path, NUMBERS, BuiltIn(kind="heart"), labelled=False).names) == 1


def test_images_of_unknown_classes_are_predicted(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        Image.new("L", (2, 2), 255).save(tmp_path / name / "1.png")
    source = ImageFolder(path=tmp_path, height=2, width=2)
    assert read_new_records(tmp_path, PIXELS, source, labelled=False).labels is None
    assert read_new_records(tmp_path, PIXELS, source, labelled=True).labels.tolist() == [0, 1, 2]
