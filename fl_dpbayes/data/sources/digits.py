"""Handwritten digits that come with scikit-learn: 1,797 scans of 8x8 pixels, no download."""

import numpy as np
from sklearn.datasets import load_digits

from fl_dpbayes.config.sources import BuiltIn, OfficialPart
from fl_dpbayes.data.records import Records


def load(source: BuiltIn, part: OfficialPart) -> Records:
    """Load the digits, each its own privacy unit, grey levels 0 to 16 scaled to [0, 1].

    Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI 1998 (its test part).
    """
    bunch = load_digits()
    labels = bunch.target.astype(np.int64)
    features = (bunch.images / 16.0).astype(np.float32)[:, None]
    return Records(features, labels, np.arange(len(labels)), None, source.task, "record")
