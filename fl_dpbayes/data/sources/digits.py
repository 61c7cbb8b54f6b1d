"""Handwritten digits that come with scikit-learn: 1,797 scans of 8x8 pixels, no download."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fl_dpbayes.config import BuiltIn, OfficialPart
from fl_dpbayes.data.records import Records


def load(source: BuiltIn, part: OfficialPart) -> Records:
    """Load the digits, each its own privacy unit, grey levels 0 to 16 scaled to [0, 1].

    Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI 1998 (its test
    part).
    """
    # scikit-learn's own reader takes a second to import.
    found = find_spec("sklearn")
    assert found is not None
    assert found.origin is not None
    rows = np.loadtxt(
        Path(found.origin).with_name("datasets") / "data" / "digits.csv.gz", delimiter=","
    )
    labels = rows[:, -1].astype(np.int64)
    features = (rows[:, :-1].reshape(-1, 1, 8, 8) / 16.0).astype(np.float32)
    return Records(features, labels, np.arange(len(labels)), None, source.task, "record")
