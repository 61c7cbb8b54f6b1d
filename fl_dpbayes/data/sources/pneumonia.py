"""PneumoniaMNIST: 5,856 chest radiographs of children, 28x28 pixels, from the data folder."""

import numpy as np

from fl_dpbayes.config import BuiltIn, OfficialPart, check_rows, damaged, data_file
from fl_dpbayes.data.archive_size import check_unpacked_size
from fl_dpbayes.data.records import Records

NAME = "pneumoniamnist.npz"
ORIGIN = "https://zenodo.org/records/10519652 (MedMNIST v2, 28x28)"
# Key in the archive, number of records, SHA-256 over the sorted records: copies with another row
# order are in use.
PARTS = {
    "train": ("train", 4708, "2314d45df1c1cd156f60a5d892ee62bb7e211988582185ed111e0214f4e2bcd1"),
    "validation": ("val", 524, "106be82596640d98e9b65de30213d696c0b8869fd4d7ed6ac336151e95f85da6"),
    "test": ("test", 624, "41c6f2db35a464895452dbde5daf4c71192483d09a7725805b65e76de8d0acfb"),
}
MOST_BYTES = 2**24


def load(source: BuiltIn, part: OfficialPart) -> Records:
    """Load an official part of PneumoniaMNIST, grey levels not yet scaled; label 1 is pneumonia.

    Parts are no random split: prevalence is .742 in `train` and `validation` and .625 in `test`.
    Each record is a unit, as patients have no names.

    Args:
        source: PneumoniaMNIST; its folder is the data folder.
        part: `train`, `validation` or `test`.

    Raises:
        UserError: If the file is missing or another one.

    Source:
        Kermany et al., Cell 172, 2018; Yang et al., MedMNIST v2, Sci. Data 10:41, 2023.
    """
    path = data_file(source.folder, NAME, ORIGIN)
    key, count, checksum = PARTS[part]
    try:
        check_unpacked_size(path, MOST_BYTES)
        with np.load(path, allow_pickle=False) as archive:
            pixels = archive[f"{key}_images"]
            targets = archive[f"{key}_labels"]
    except Exception as error:
        raise damaged(path, str(error), ORIGIN) from None
    if pixels.shape != (count, 28, 28) or pixels.dtype != np.uint8 or targets.shape != (count, 1):
        raise damaged(path, f"{key}_images is {pixels.dtype} {pixels.shape}", ORIGIN)
    labels = targets[:, 0].astype(np.int64)
    rows = [
        image.tobytes() + bytes([label & 255])
        for image, label in zip(pixels, labels.tolist(), strict=True)
    ]
    check_rows(rows, checksum, path, ORIGIN)
    return Records(
        features=pixels[:, None],
        labels=labels,
        units=np.arange(count),
        natural_site=None,
        task=source.task,
        unit="record",
    )
