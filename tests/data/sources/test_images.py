import numpy as np
import pytest
from PIL import Image

from fl_dpbayes.config.sources import ImageFolder
from fl_dpbayes.data.records import load_unscaled
from tests.asking import refused


@pytest.fixture
def folder(tmp_path):
    for label, (name, level) in enumerate([("healthy", 0), ("sick", 255)]):
        (tmp_path / name).mkdir()
        for number in range(2 + label):
            Image.new("RGB", (20, 10), (level, level, level)).save(
                tmp_path / name / f"{number}.png"
            )
    return tmp_path


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_resized_and_labelled_by_folder(folder, channels):
    source = ImageFolder(path=folder, height=6, width=4, channels=channels)
    records = load_unscaled(source, "train").scaled()
    assert records.features.shape == (5, channels, 6, 4)
    assert records.task == source.task
    assert records.unit == source.unit == "image"
    assert records.labels.tolist() == [0, 0, 1, 1, 1]
    assert records.features.dtype == np.float32
    assert (records.features == records.labels[:, None, None, None]).all()
    assert records.units.tolist()[:3] == ["healthy/0.png", "healthy/1.png", "sick/0.png"]


def test_an_empty_class_counts_and_a_damaged_image_is_named(folder):
    (folder / "unseen").mkdir()
    source = ImageFolder(path=folder, height=6, width=4)
    assert source.task == load_unscaled(source, "train").scaled().task
    assert source.task.outcome.classes == 3
    (folder / "sick" / "9.png").write_bytes(b"no image")
    refused(r"image .*9\.png cannot be read", load_unscaled, source, "train")


def patients(folder, pattern=None):
    return ImageFolder(path=folder, height=6, width=4, patient_pattern=pattern)


def test_a_folder_without_classes_or_images_is_refused(tmp_path):
    refused("does not exist", load_unscaled, patients(tmp_path / "none"), "train")
    for name, said in (("only", "has 1 sub-folders"), ("other", "has no images")):
        (tmp_path / name).mkdir()
        refused(said, load_unscaled, patients(tmp_path), "train")


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (("P1_a.png", "P1_b.png", "P2_a.png"), "^(P[0-9]+)_"),
        (("P1/a.png", "P1/b.png", "P2/a.png"), "^([^/]+)/"),
    ],
)
def test_images_of_one_patient_are_one_unit_in_every_class(tmp_path, names, pattern):
    for name in ("healthy", "sick"):
        for image in names:
            path = tmp_path / name / image
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (8, 8)).save(path)
    records = load_unscaled(patients(tmp_path, pattern), "train").scaled()
    assert records.units.tolist() == ["P1", "P1", "P2"] * 2
    assert records.unit == patients(tmp_path, pattern).unit == "patient"


def test_a_pattern_has_one_group_and_finds_a_patient_in_every_path(folder):
    said = r"image .*healthy/0\.png names no patient.* rename or remove"
    refused(said, load_unscaled, patients(folder, "^(P[0-9]+)_"), "train")
    refused("names no patient", load_unscaled, patients(folder, "^([A-Z]*)"), "train")
    for pattern, said in (("P[0-9]+", "has 0 groups"), ("(a)(b)", "has 2"), ("(", "no regular")):
        with pytest.raises(ValueError, match=said):
            patients(folder, pattern)
