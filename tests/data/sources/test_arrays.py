"""An archive of arrays is read as plain numbers, or refused."""

from pathlib import Path

import numpy as np
import pytest

from fl_dpbayes.config.sources import Arrays
from fl_dpbayes.data.records import load_unscaled
from tests.asking import refused


def archive(path: Path, features: object, labels: object) -> Arrays:
    np.savez(path, features=features, labels=labels)
    return Arrays(path=path, input_shape=(1, 2, 2), classes=2)


def test_grey_levels_become_shares_and_objects_are_not_unpickled(tmp_path) -> None:
    path, grey = tmp_path / "records.npz", np.full((3, 1, 2, 2), 51, np.uint8)
    assert load_unscaled(
        archive(path, grey, [0, 1, 0]), "train"
    ).scaled().features == pytest.approx(0.2)
    for features, labels in (
        (grey, np.array([{}, 1, 0], dtype=object)),
        (grey[:, :, 0], [0, 1, 0]),
        (grey, [0, 1, 2]),
    ):
        refused(str(path), load_unscaled, archive(path, features, labels), "train")
