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

    Source: LeCun et al., Proceedings of the IEEE 86, 1998. Raises UserError if a file is missing or
    another one.
    """
    images, labels = (
        _content(data_file(source.folder, name, ORIGIN), md5) for name, md5 in FILES[part]
    )
    targets = np.frombuffer(labels, np.uint8, offset=8).astype(np.int64)
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(len(targets), 1, 28, 28)
    return Records(pixels, targets, np.arange(len(targets)), None, source.task, "record")


def _content(path: Path, md5: str) -> bytes:
    content = path.read_bytes()
    if (actual := hashlib.md5(content, usedforsecurity=False).hexdigest()) != md5:
        raise damaged(path, f"MD5 {actual}, not {md5}", ORIGIN)
    return content
