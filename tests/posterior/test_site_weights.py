"""How much each site counts."""

import pytest

from fl_dpbayes.config.aggregation import FALD, AveragingRule, Distillation, FedAvg, FedBE, Mixture
from fl_dpbayes.config.rule import SyntheticInputs
from fl_dpbayes.config.run_warning import warning
from fl_dpbayes.posterior.site_weights import capped_weights, unit_weights, weigh_sites
from fl_dpbayes.report.warnings import sentence

DISTILLATION = Distillation(rule="distillation", public=SyntheticInputs())


# Of [1, 9, 990] what the first cap frees lifts the second site over it.
@pytest.mark.parametrize(
    ("units", "share", "expected"),
    [
        ([10, 10, 20], 0.5, [0.25, 0.25, 0.5]),
        ([1, 3, 996], 0.5, [0.125, 0.375, 0.5]),
        ([1, 9, 990], 0.4, [0.2, 0.4, 0.4]),
        ([1, 3, 996], 0.3, [1 / 3, 1 / 3, 1 / 3]),
        ([5], 0.3, [1.0]),
        ([0, 0, 7], 0.5, [0.0, 0.0, 0.5]),
    ],
)
def test_no_weight_is_above_the_cap_and_the_others_keep_their_proportions(
    units, share, expected
) -> None:
    weights = unit_weights({str(number): count for number, count in enumerate(units)})
    assert list(capped_weights(weights, share).values()) == pytest.approx(expected)


def test_share_that_missing_sites_break_is_said() -> None:
    weights, found = weigh_sites(Mixture(largest_share=0.3), {"a": 1, "b": 99})
    assert weights == {"a": 0.5, "b": 0.5}
    assert found == (warning("share-not-kept", sites=2, weight=0.5, share=0.3),)


@pytest.mark.parametrize(
    "rule", [Mixture(), FALD(), FedAvg(), FedBE(), DISTILLATION], ids=lambda rule: rule.rule
)
@pytest.mark.parametrize("sites", [1, 2, 3, 4, 8])
def test_overstated_size_is_cut_and_named(rule, sites: int) -> None:
    averages = isinstance(rule, AveragingRule)
    claimed = 0.6 if averages else 0.49
    honest = dict.fromkeys("bcdefgh"[: sites - 1], 100)
    units = {"a": int(claimed / (1 - claimed) * 100 * (sites - 1)) or 100, **honest}
    weights, found = weigh_sites(rule, units)
    assert sum(weights.values()) == pytest.approx(1)
    if sites < 3:
        # Nobody can say who of two is right.
        assert found == ()
        return
    assert weights["a"] == pytest.approx(0.5 if averages else 1.2 / sites)
    assert [said.site for said in found] == ["a"]
    assert "a size is a site's own word" in sentence(found[0])
    lifted, said = weigh_sites(rule.model_copy(update={"largest_share": 1.0}), units)
    assert lifted["a"] == pytest.approx(claimed, abs=0.01)
    assert [found.kind for found in said] == ["heaviest"] * averages


def test_sites_weigh_by_a_power_of_their_size() -> None:
    assert weigh_sites(FALD(size_power=1.5), {"a": 1, "b": 4, "c": 9})[0] == pytest.approx(
        {"a": 1 / 18, "b": 8 / 18, "c": 0.5}
    )
    with pytest.raises(ValueError, match=r"size_power 1\.5 weighs by size"):
        FALD(size_power=1.5, site_weights="uniform")
