"""MNIST: 60,000 + 10,000 handwritten digits of 28x28 pixels, from the data folder."""

import hashlib
from functools import lru_cache
from pathlib import Path

import numpy as np
from torchvision.datasets.mnist import read_image_file, read_label_file

from fl_dpbayes.config.data_folder import damaged, data_file, file_version
from fl_dpbayes.config.sources import BuiltIn, OfficialPart
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
    """Load 60,000 records for training or 10,000 for testing, grey levels not yet scaled; each is its own privacy unit.

    Source: LeCun et al., Gradient-based learning applied to document recognition, 1998. Raises UserError if a file is
    missing or its checksum differs.
    """
    images, labels = (data_file(source.folder, name, ORIGIN) for name, _ in FILES[part])
    return _read(part, file_version(images), file_version(labels))


# Every message to a virtual site reads its records anew; these are public, and as large as all sites together.
@lru_cache(maxsize=2)
def _read(part: OfficialPart, images: tuple[str, int, int], labels: tuple[str, int, int]) -> Records:
    for (path, _, _), (_, md5) in zip((images, labels), FILES[part], strict=True):
        with Path(path).open("rb") as file:
            actual = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if actual != md5:
            raise damaged(Path(path), f"MD5 {actual}, not {md5}", ORIGIN)
    pixels = read_image_file(images[0]).numpy()[:, None]
    targets = read_label_file(labels[0]).numpy().astype(np.int64)
    for array in (pixels, targets):
        array.flags.writeable = False
    return Records(pixels, targets, np.arange(len(targets)), None, BuiltIn(kind="mnist").task, "record")
