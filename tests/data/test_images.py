import numpy as np
import pytest
from PIL import Image

from fl_dpbayes.data.load import load_source, source_task, source_unit
from fl_dpbayes.data.specs import ImageFolder
from fl_dpbayes.errors import UserError


@pytest.fixture
def folder(tmp_path):
    for label, (name, level) in enumerate([("healthy", 0), ("sick", 255)]):
        (tmp_path / name).mkdir()
        for number in range(2 + label):
            Image.new("RGB", (20, 10), (level, level, level)).save(tmp_path / name / f"{number}.png")
    return tmp_path


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_resized_and_labelled_by_folder(folder, channels):
    source = ImageFolder(path=folder, height=6, width=4, channels=channels)
    records = load_source(source, "train")
    assert records.features.shape == (5, channels, 6, 4)
    assert records.task == source_task(source)
    assert records.unit == source_unit(source) == "image"
    assert records.labels.tolist() == [0, 0, 1, 1, 1]
    assert records.features.dtype == np.float32
    assert (records.features == records.labels[:, None, None, None]).all()
    assert records.units.tolist()[:3] == ["healthy/0.png", "healthy/1.png", "sick/0.png"]


def test_an_empty_class_counts(folder):
    (folder / "unseen").mkdir()
    source = ImageFolder(path=folder, height=6, width=4)
    assert source_task(source).classes == 3
    assert load_source(source, "train").task.classes == 3


def test_a_damaged_image_is_named(folder):
    (folder / "sick" / "9.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"image .*9\.png cannot be read"):
        load_source(ImageFolder(path=folder, height=6, width=4), "train")


def test_a_folder_without_classes_or_images_is_refused(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        source_task(ImageFolder(path=tmp_path / "none", height=6, width=4))
    (tmp_path / "only").mkdir()
    with pytest.raises(UserError, match="has 1 sub-folders"):
        source_task(ImageFolder(path=tmp_path, height=6, width=4))
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError, match="has no images"):
        load_source(ImageFolder(path=tmp_path, height=6, width=4), "train")
