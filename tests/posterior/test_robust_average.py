"""The average that a scenario's settings ask for."""

import numpy as np
import pytest

from fl_dpbayes.config.aggregation import FALD
from fl_dpbayes.posterior.averages import average_of_states

START = {"w": np.zeros(2, np.float32)}
STATES = {
    site: {"w": np.array(values, np.float32)}
    for site, values in {"a": (1, 0), "b": (2, 1), "c": (3, 2), "d": (4, 3), "e": (1000, -1000)}.items()
}
WEIGHTS = {"a": 0.6, "b": 0.1, "c": 0.1, "d": 0.1, "e": 0.1}


def averaged(states=STATES, **settings):
    rule = FALD(rule="fald", **{"move_bound": "none", **settings})
    average, warnings, _ = average_of_states(states, START, rule, WEIGHTS)
    return average["w"], warnings


def test_settings_choose_the_average() -> None:
    np.testing.assert_allclose(averaged()[0], [101.5, -99.4], rtol=1e-6)
    np.testing.assert_allclose(averaged(robust="median", site_weights="uniform")[0], [3, 1])
    np.testing.assert_allclose(averaged(robust="trimmed-mean", trimmed=1, site_weights="uniform")[0], [3, 1])
    np.testing.assert_allclose(averaged(robust="trimmed-mean", trimmed=2, site_weights="uniform")[0], [3, 1])


def test_a_bound_on_moves_comes_before_the_average_and_names_whom_it_shortened() -> None:
    average, warnings = averaged(move_bound=1.5)
    # The parts w_k |m_k| are .6, .1 sqrt(5), .1 sqrt(13), .5 and 100 sqrt(2): the median is .5.
    hostile = 0.75 / np.sqrt(2) * np.array([1, -1])
    np.testing.assert_allclose(average, 0.6 * np.array([1, 0]) + 0.1 * np.array([9, 6]) + hostile, rtol=1e-6)
    assert len(warnings) == 1
    assert warnings[0].startswith(
        "e moved the average more than aggregation.move_bound, 1.5, times as far as the median"
    )


@pytest.mark.parametrize(("sites", "borne"), [("abcd", 1), ("ab", 0), ("a", 0)])
def test_too_few_states_to_trim_are_said(sites: str, borne: int) -> None:
    states = {site: STATES[site] for site in sites}
    average, warnings = averaged(states, robust="trimmed-mean", trimmed=2, site_weights="uniform")
    np.testing.assert_allclose(average, np.mean([states[site]["w"] for site in sites], axis=0))
    assert len(warnings) == 1
    assert f"only {borne} bad ones could be borne, not 2" in warnings[0]
    assert "resources.min_sites to 5" in warnings[0]
