import itertools
import math

import numpy as np
import pytest

from fl_dpbayes.calibration.bins import coarsen
from fl_dpbayes.calibration.release import SENT_COLUMNS, merge_noised, noised_table, sensitivity
from fl_dpbayes.calibration.statistics import empty, from_batch, merge


def records(classes, steps):
    grid = [row for row in itertools.product(range(steps + 1), repeat=classes) if sum(row) == steps]
    return [(np.array(row) / steps, label) for row in grid for label in range(classes)]


def sent(statistics):
    return coarsen(statistics.top_label, 15)[..., :SENT_COLUMNS].ravel()


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_sensitivity_is_the_largest_change_by_any_record(classes):
    others = from_batch(np.full((7, classes), 1 / classes), np.arange(7) % classes)
    changes = [
        np.linalg.norm(sent(merge(others, from_batch(p[None], [label]))) - sent(others))
        for p, label in records(classes, 6)
    ]
    assert max(changes) == pytest.approx(sensitivity(), abs=1e-12)
    assert sensitivity() == pytest.approx(math.sqrt(3))


def test_sensitivity_of_capped_units_is_the_largest_change_by_any_unit():
    singles = [sent(from_batch(p[None], [label])) for p, label in records(2, 6)]
    changes = [np.linalg.norm(first + second) for first, second in itertools.combinations_with_replacement(singles, 2)]
    assert max(changes) == pytest.approx(sensitivity(2), abs=1e-12)
    with pytest.raises(ValueError, match="1 or more"):
        sensitivity(0)


def test_noise_has_the_stated_scale():
    generator = np.random.default_rng(51)
    tables = [noised_table(empty(2), 960, 2.0, generator, max_records_per_unit=3) for _ in range(20)]
    noise = np.concatenate([table.sums.ravel() for table in tables])
    expected = 2 * 3 * math.sqrt(3)
    assert tables[0].noise_std == pytest.approx(expected)
    assert abs(noise.mean()) < 4 * expected / math.sqrt(noise.size)
    assert abs(noise.std() / expected - 1) < 4 / math.sqrt(2 * noise.size)


@pytest.mark.parametrize("noise_multiplier", [0.0, -1.0, math.inf, math.nan])
def test_release_without_noise_is_refused(noise_multiplier):
    with pytest.raises(ValueError, match="positive"):
        noised_table(empty(2), 15, noise_multiplier, np.random.default_rng(0))


def test_merged_noise_adds_in_variance():
    generator = np.random.default_rng(52)
    first, second = (noised_table(empty(2), 15, scale, generator) for scale in (3.0, 4.0))
    both = merge_noised(first, second)
    assert both.noise_std == pytest.approx(5 * math.sqrt(3))
    np.testing.assert_array_equal(both.sums, first.sums + second.sums)
