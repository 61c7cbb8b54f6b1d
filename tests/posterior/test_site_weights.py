"""How much each site counts."""

import pytest

from fl_dpbayes.config.aggregation import FALD, Distillation, FedAvg, FedBE, Mixture
from fl_dpbayes.config.errors import warning
from fl_dpbayes.config.rule import SyntheticInputs
from fl_dpbayes.posterior.site_weights import capped_weights, unit_weights, weigh_sites
from fl_dpbayes.report.warnings import sentence

DISTILLATION = Distillation(rule="distillation", public=SyntheticInputs())


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
    assert found == (warning("share-not-kept", sites=2, weight=0.5, share=0.3),)


@pytest.mark.parametrize("rule", [Mixture(), FALD(), FedAvg(), FedBE(), DISTILLATION], ids=lambda rule: rule.rule)
@pytest.mark.parametrize(("sites", "bound"), [(1, 1.0), (2, 1.0), (3, 0.5), (4, 0.375), (5, 0.3), (8, 0.3)])
def test_size_overstated_below_half_of_the_weight_is_cut_and_named(rule, sites: int, bound: float) -> None:
    honest = dict.fromkeys("bcdefgh"[: sites - 1], 100)
    units = {"a": int(0.49 / 0.51 * 100 * (sites - 1)) or 100, **honest}
    weights, found = weigh_sites(rule, units)
    assert sum(weights.values()) == pytest.approx(1)
    assert weights["a"] <= bound + 1e-12
    cut = units["a"] / sum(units.values()) > bound
    assert [said.site for said in found] == ["a"] * cut
    assert not cut or "a size is a site's own word" in sentence(found[0])
    assert weigh_sites(rule.model_copy(update={"largest_share": 1.0}), units)[1] == ()


def test_sites_weigh_by_a_power_of_their_size() -> None:
    assert weigh_sites(FALD(size_power=1.5), {"a": 1, "b": 4, "c": 9, "d": 9, "e": 9})[0] == pytest.approx(
        {"a": 1 / 90, "b": 8 / 90, "c": 0.3, "d": 0.3, "e": 0.3}
    )
    with pytest.raises(ValueError, match=r"size_power 1\.5 weighs by size"):
        FALD(size_power=1.5, site_weights="uniform")
