"""MNIST: 60,000 + 10,000 handwritten digits of 28x28 pixels, from the data folder."""

import hashlib
from pathlib import Path

import numpy as np

from fl_dpbayes.config import BuiltIn, OfficialPart, damaged, data_file
from fl_dpbayes.data.records import Records

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


def load(source: BuiltIn, part: OfficialPart) -> Records:
    """Load 60,000 records for training or 10,000 for testing, grey levels not yet scaled.

    Each is its own privacy unit.

    Args:
        source: MNIST; its folder is the data folder.
        part: `train` or `test`.

    Raises:
        UserError: If a file is missing or another one.

    Source:
        LeCun et al., Proceedings of the IEEE 86, 1998.
    """
    (images_name, images_md5), (labels_name, labels_md5) = FILES[part]
    images = _content(data_file(source.folder, images_name, ORIGIN), images_md5)
    labels = _content(data_file(source.folder, labels_name, ORIGIN), labels_md5)
    targets = np.frombuffer(labels, np.uint8, offset=8).astype(np.int64)
    return Records(
        features=np.frombuffer(images, np.uint8, offset=16).reshape(len(targets), 1, 28, 28),
        labels=targets,
        units=np.arange(len(targets)),
        natural_site=None,
        task=source.task,
        unit="record",
    )


def _content(path: Path, md5: str) -> bytes:
    content = path.read_bytes()
    actual = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if actual != md5:
        raise damaged(path, f"MD5 {actual}, not {md5}", ORIGIN)
    return content
