"""How much each site counts."""

import pytest

from fl_dpbayes.posterior.site_weights import capped_weights, unit_weights


@pytest.mark.parametrize(
    ("units", "share", "expected"),
    [
        ([10, 10, 20], 0.5, [0.25, 0.25, 0.5]),
        ([1, 3, 996], 0.5, [0.125, 0.375, 0.5]),
        # What the first cap frees lifts the second site over it.
        ([1, 9, 990], 0.4, [0.2, 0.4, 0.4]),
        ([1, 3, 996], 0.3, [1 / 3, 1 / 3, 1 / 3]),
        ([5], 0.3, [1.0]),
        ([0, 0, 7], 0.5, [0.0, 0.0, 0.5]),
    ],
)
def test_no_weight_is_above_the_cap_and_the_others_keep_their_proportions(units, share, expected) -> None:
    weights = unit_weights({str(number): count for number, count in enumerate(units)})
    assert list(capped_weights(weights, share).values()) == pytest.approx(expected)
