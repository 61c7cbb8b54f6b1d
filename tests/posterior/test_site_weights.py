"""How much each site counts."""

import pytest

from fl_dpbayes.config.aggregation import FALD, Mixture
from fl_dpbayes.config.errors import warning
from fl_dpbayes.posterior.site_weights import capped_weights, unit_weights, weigh_sites


# Of [1, 9, 990] what the first cap frees lifts the second site over it.
@pytest.mark.parametrize(("units", "share", "expected"), [
    ([10, 10, 20], 0.5, [0.25, 0.25, 0.5]), ([1, 3, 996], 0.5, [0.125, 0.375, 0.5]),
    ([1, 9, 990], 0.4, [0.2, 0.4, 0.4]), ([1, 3, 996], 0.3, [1 / 3, 1 / 3, 1 / 3]), ([5], 0.3, [1.0]),
    ([0, 0, 7], 0.5, [0.0, 0.0, 0.5]),
])  # fmt: skip
def test_no_weight_is_above_the_cap_and_the_others_keep_their_proportions(units, share, expected) -> None:
    weights = unit_weights({str(number): count for number, count in enumerate(units)})
    assert list(capped_weights(weights, share).values()) == pytest.approx(expected)


def test_share_that_missing_sites_break_is_said() -> None:
    weights, found = weigh_sites(Mixture(largest_share=0.3), {"a": 1, "b": 99})
    assert weights == {"a": 0.5, "b": 0.5}
    assert found == warning("share-not-kept", sites=2, weight=0.5, share=0.3)
    assert weigh_sites(Mixture(largest_share=0.5), {"a": 1, "b": 99})[1] is None


def test_sites_weigh_by_a_power_of_their_size() -> None:
    assert weigh_sites(FALD(size_power=1.5), {"a": 1, "b": 4, "c": 9})[0] == pytest.approx(
        {"a": 1 / 36, "b": 8 / 36, "c": 27 / 36}
    )
    with pytest.raises(ValueError, match=r"size_power 1\.5 weighs by size"):
        FALD(size_power=1.5, site_weights="uniform")
