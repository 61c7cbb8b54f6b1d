from collections.abc import Callable

import numpy as np
import pytest

from fl_dpbayes.data.records import Records


@pytest.fixture(scope="session")
def check_truth() -> Callable[[Records], None]:
    return _check_truth


def _check_truth(records: Records, bins: int = 10) -> None:
    """In each bin of the truth and as a whole, labels agree with it within 4 standard errors, for every class."""
    truth = records.truth
    assert truth is not None
    assert truth.shape == (len(records), records.task.classes)
    assert truth.dtype == np.float64
    assert (truth >= 0).all()
    np.testing.assert_allclose(truth.sum(axis=1), 1, rtol=0, atol=1e-12)
    for label in range(records.task.classes):
        stated, drawn = truth[:, label], records.labels == label
        of_bin = np.minimum((stated * bins).astype(int), bins - 1)
        for chosen in [np.ones(len(records), bool), *(of_bin == number for number in range(bins))]:
            variance = (stated * (1 - stated))[chosen].sum()
            assert abs((drawn - stated)[chosen].sum()) <= 4 * np.sqrt(variance) + 1e-9
