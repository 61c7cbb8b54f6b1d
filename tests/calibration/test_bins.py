import numpy as np
import pytest

from fl_dpbayes.calibration.bins import FINE_BINS, bin_index


def test_edges_open_a_bin_and_the_last_bin_is_closed_golden():
    assert bin_index([0.0, 0.2, 0.4, 1.0], 5).tolist() == [0, 1, 2, 4]
    assert (bin_index(0.3, 10), bin_index(11 / 15, 15)) == (3, 11)  # edges that float64 rounds up


@pytest.mark.parametrize("bins", [10, 12, 15, 16, 20, 24, 30, 32])
def test_coarse_bins_agree_with_direct_binning_on_edges(bins):
    for edges in (np.arange(bins + 1) / bins, np.arange(101) / 100):
        by_fine_bin = bin_index(edges, FINE_BINS) // (FINE_BINS // bins)
        assert (by_fine_bin == bin_index(edges, bins)).all()
