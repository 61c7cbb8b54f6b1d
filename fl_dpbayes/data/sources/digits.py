"""Handwritten digits that come with scikit-learn: 1,797 scans of 8x8 pixels, no download."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fl_dpbayes.config import BuiltIn, OfficialPart
from fl_dpbayes.data.records import Records


def load(source: BuiltIn, part: OfficialPart) -> Records:
    """Load the digits, each its own privacy unit, grey levels 0 to 16 scaled to [0, 1].

    Args:
        source: The digits.
        part: The official part; there is one only.

    Source:
        E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI 1998 (its test
        part).
    """
    # scikit-learn's own reader takes a second to import.
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).with_name("datasets") / "data" / "digits.csv.gz"
    rows = np.loadtxt(path, delimiter=",")
    return Records(
        features=(rows[:, :-1].reshape(-1, 1, 8, 8) / 16.0).astype(np.float32),
        labels=rows[:, -1].astype(np.int64),
        units=np.arange(len(rows)),
        natural_site=None,
        task=source.task,
        unit="record",
    )
