"""MNIST: 60,000 + 10,000 handwritten digits of 28x28 pixels, from the data folder."""

import hashlib
from pathlib import Path

import numpy as np
from torchvision.datasets.mnist import read_image_file, read_label_file

from fl_dpbayes.data.built_in_tasks import BUILT_IN_TASKS
from fl_dpbayes.data.data_folder import damaged, data_file
from fl_dpbayes.data.records import Records
from fl_dpbayes.data.specs import OfficialPart

ORIGIN = "torchvision.datasets.MNIST(DIR, download=True)"
# MD5 of the four unpacked files.
FILES = {
    "train": (
        ("MNIST/raw/train-images-idx3-ubyte", "6bbc9ace898e44ae57da46a324031adb"),
        ("MNIST/raw/train-labels-idx1-ubyte", "a25bea736e30d166cdddb491f175f624"),
    ),
    "test": (
        ("MNIST/raw/t10k-images-idx3-ubyte", "2646ac647ad5339dbf082846283269ea"),
        ("MNIST/raw/t10k-labels-idx1-ubyte", "27ae3e4e09519cfbb04c329615203637"),
    ),
}


def mnist_records(folder: Path | None, part: OfficialPart) -> Records:
    """Load an official part of MNIST, grey levels not yet scaled.

    Args:
        folder: the data folder, which holds `MNIST/raw`; None for the environment's.
        part: `train` (60,000 records) or `test` (10,000).

    Returns:
        Records of shape (1, 28, 28), uint8; each is its own privacy unit.

    Raises:
        UserError: if a file is missing or its checksum differs.

    Source: LeCun et al., Gradient-based learning applied to document recognition, 1998.
    """
    images, labels = (_checked(folder, name, md5) for name, md5 in FILES[part])
    pixels = read_image_file(str(images)).numpy()
    targets = read_label_file(str(labels)).numpy().astype(np.int64)
    return Records(pixels[:, None], targets, np.arange(len(targets)), None, BUILT_IN_TASKS["mnist"], "record")


def _checked(folder: Path | None, name: str, md5: str) -> Path:
    path = data_file(folder, name, ORIGIN)
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if actual != md5:
        raise damaged(path, f"MD5 {actual}, not {md5}", ORIGIN)
    return path
