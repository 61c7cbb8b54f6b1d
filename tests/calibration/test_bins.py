import numpy as np
import pytest

from fl_dpbayes.calibration.bins import FINE_BINS, bin_index, equal_mass


def test_edges_open_a_bin_and_the_last_bin_is_closed_golden():
    assert bin_index([0.0, 0.2, 0.4, 1.0], 5).tolist() == [0, 1, 2, 4]
    assert (bin_index(0.3, 10), bin_index(11 / 15, 15)) == (3, 11)  # edges that float64 rounds up


@pytest.mark.parametrize("bins", [10, 12, 15, 16, 20, 24, 30, 32])
def test_coarse_bins_agree_with_direct_binning_on_edges(bins):
    for edges in (np.arange(bins + 1) / bins, np.arange(101) / 100):
        by_fine_bin = bin_index(edges, FINE_BINS) // (FINE_BINS // bins)
        assert (by_fine_bin == bin_index(edges, bins)).all()


def test_equal_mass_ranges_hold_equal_counts_and_never_split_a_bin():
    table = np.zeros((12, 5))
    table[:, 0] = 1
    assert equal_mass(table, 4)[:, 0].tolist() == [3, 3, 3, 3]
    table = np.zeros((4, 5))
    table[:, 0] = [1, 97, 1, 1]
    joined = equal_mass(table, 10)
    assert joined[:, 0].sum() == 100
    assert 97 in joined[:, 0]
