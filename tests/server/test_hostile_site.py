"""One hostile site of six, by the attacks of `fl-dpbayes reproduce hostile-site`: what the rules bear, and what not."""

import numpy as np
import pytest

from fl_dpbayes.run.reproduce.experiment import Cell
from fl_dpbayes.run.reproduce.hostile_site import GROUPS, hostile_cells, measure_hostile
from fl_dpbayes.run.reproduce.hostile_site_attacks import ATTACKS, View, with_trace_of_noise


def measured(group: str, noise: str, rules: tuple[str, ...]) -> dict[str, dict[str, float | None]]:
    """Run one group's chains with some of its rules; rule -> values."""
    cell = next(cell for cell in hostile_cells(0, False) if cell.label == f"{group}, {noise}")
    chosen = Cell(cell.label, 0, {**cell.settings, "rules": {rule: GROUPS[group][rule] for rule in rules}})
    return {row.method: dict(row.values) for row in measure_hostile(chosen, None).rows}


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "loss"), [("fald, moves up to 2", 0.1), ("fald, median", 0.05)])
def test_where_noise_is_small_a_robust_average_loses_little_to_every_attack(rule: str, loss: float) -> None:
    values = measured(rule, "small noise", (rule,))[rule]
    # It is the rule that bears the attack: the server takes every reply.
    assert values["rejected"] == 0
    assert values["shortened honest"] == values["shortened skewed"] == 0
    assert values["honest"] > 0.9
    for attack in ATTACKS:
        assert values[attack] > values["honest"] - loss, attack


@pytest.mark.slow
def test_a_plain_average_is_decided_by_one_site_of_six_and_a_mixture_is_not() -> None:
    plain = measured("fald", "small noise", ("fald",))["fald"]
    assert plain["rejected"] == 0
    assert plain["relabel"] < 0.1 < 0.9 < plain["honest"]
    # The second rule goes on where the first ended, with the chains that are there.
    found = measured("whole prior", "quickstart's noise", ("mixture", "predbayes"))
    assert found["mixture"]["rejected"] == found["predbayes"]["rejected"] == 0
    assert all(found["mixture"][attack] > found["mixture"]["honest"] - 0.1 for attack in ATTACKS)
    assert found["predbayes"]["relabel"] < 0.1


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_keep_to_the_bound_and_vary_in_every_parameter(attack: str) -> None:
    generator = np.random.default_rng(0)
    start, right, wrong = generator.normal(size=(3, 20))
    honest = start + generator.normal(size=(4, 20)) * np.arange(1, 5)[:, np.newaxis] / 4
    farthest = 3 * np.linalg.norm(honest - start, axis=1)
    view = View(start=start, right=right, wrong=wrong, honest=honest, farthest=farthest)
    states = with_trace_of_noise(ATTACKS[attack](view), view)
    assert states.shape == honest.shape
    assert (np.linalg.norm(states - start, axis=1) < farthest).all()
    assert (states.std(axis=0) > 0).all()
