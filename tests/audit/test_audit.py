"""The whole audit: what it prints, and with which status it ends."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fl_dpbayes.audit import (
    audit,
    canaries,
    counts,
    noise,
    one_unit,
    own_releases,
    replies,
    sums,
    within,
)
from fl_dpbayes.audit.audit import audit_scenario, run_audit
from fl_dpbayes.audit.canaries import audit_canaries
from fl_dpbayes.audit.counts import audit_counts
from fl_dpbayes.audit.noise import audit_noise, still_plan
from fl_dpbayes.audit.one_unit import audit_one_unit
from fl_dpbayes.audit.plans import own_plan
from fl_dpbayes.audit.silent import UNITS
from fl_dpbayes.audit.sums import audit_sums
from fl_dpbayes.config.scenario import Scenario, load_scenario, shipped_scenarios
from fl_dpbayes.errors import UserError
from fl_dpbayes.privacy.planned_noise import solve_plan
from fl_dpbayes.samplers import chain
from tests.audit.test_audit_is_complete import PARTS

SMALL = [
    "training={rounds=2, steps_per_round=5, burn_in=0, thinning=1}",
    "privacy.coupling=constant",
    "privacy.temperature=",
    "privacy.sampling_rate=1.0",
    "simulation.insecure_seed=1",
]
CNN = 'model={kind="cnn", channels=[2, 3], kernel_size=3, hidden=4}'
FALLING = "sampler.step_size={kind='exponential', initial=2.0, decay=0.8}"


def small(*overrides: str) -> Scenario:
    return load_scenario("digits", [*SMALL, *overrides])


@pytest.mark.slow
def test_sound_scenario_passes_has_every_part_and_says_what_it_did_not_look_at(
    monkeypatch, capsys
) -> None:
    scenario = small("privacy.sampling_rate=0.5", "privacy.pre_noise=0.1", "training.chains=2")
    results = []

    def kept(*asked):
        results.append(run_audit(*asked))
        return results[-1]

    monkeypatch.setattr(audit, "run_audit", kept)
    assert audit_scenario(scenario, Console(width=200)) == 0
    assert {check.part for check in results[0][0]} == PARTS
    text = " ".join(capsys.readouterr().out.split())
    for words in (
        "clients.app",
        "claimed",
        "at least (99.999%)",
        "units of 3 records",
        "isotonic recalibration",
        "noised evaluation",
        "finds, but for 1 in 1000",
        "Not looked at:",
        "the account itself",
        "pre-noise where sums are read",
        "passed: all ",
        "a new hospital's releases",
        "fresh noise",
    ):
        assert words in text


@pytest.mark.slow
def test_planted_fault_ends_with_status_1_and_names_its_checks(monkeypatch, capsys) -> None:
    original = chain.noisy_gradient
    halved = lambda total, **rest: original(total, **rest | {"noise": rest["noise"] / 2})  # noqa: E731
    monkeypatch.setattr(chain, "noisy_gradient", halved)
    # The noise of training and epsilon are looked at beside any attacks.
    monkeypatch.setattr(audit, "ATTACKS", {"counts": audit_counts})
    assert audit_scenario(small(), Console(width=160), as_json=True) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["passed"]
    failed = {check["part"] for check in found["checks"] if not check["passed"]}
    assert {"noise of training", "epsilon"} <= failed
    assert not failed & {"isotonic recalibration", "recalibration by descent", "noised evaluation"}
    epsilon = found["epsilon"]
    assert epsilon["gaussian_bound"] > epsilon["claimed"]
    assert epsilon["certified"] is True
    assert found["not_looked_at"]


def test_false_alarms_of_all_parts_add_up_to_at_most_one_in_ten_thousand() -> None:
    bounds = 2 * (1 - canaries.CONFIDENCE)
    parts = (one_unit, counts, noise, sums, within, own_releases, replies)
    assert sum(part.FALSE_ALARM for part in parts) + bounds <= 1e-4


@pytest.mark.slow
def test_audit_repeats_itself_where_the_scenario_has_a_seed_and_only_there(tmp_path: Path) -> None:
    for scenario, repeats in ((small(), True), (small("simulation.insecure_seed="), False)):
        first, second = (
            audit_noise(scenario, tmp_path / f"{repeats}{number}", UNITS, np.random.default_rng(0))
            for number in range(2)
        )
        assert ([check.value for check in first] == [check.value for check in second]) == repeats
        assert (first == second) == repeats


OTHERS = {
    "pictures of patients, per layer": (
        CNN,
        'privacy.clipping={kind="per-layer"}',
        "privacy.sampling_rate=0.5",
    ),
    "global": ('privacy.clipping={kind="global", bound=10.0}', "privacy.pre_noise=0.3"),
    "automatic": ('privacy.clipping={kind="automatic"}', "privacy.pre_noise=0.3"),
}


@pytest.mark.slow
@pytest.mark.parametrize("other", OTHERS)
def test_other_models_and_clipping_rules_pass(other: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sums, "RECORDS_PER_UNIT", (3,))
    # Counts read a posterior of the auditor's: no clipping enters them.
    for detector in (audit_sums, audit_one_unit, audit_counts)[: 3 if CNN in OTHERS[other] else 2]:
        checks = detector(
            small(*OTHERS[other]), tmp_path / detector.__name__, np.random.default_rng(0)
        )
        assert [check for check in checks if not check.passed] == []


def test_small_steps_keep_the_noise_of_the_scenario() -> None:
    solved = [(kind, tau) for kind in ("langevin", "temperature") for tau in ("", "1.0")]
    for coupling, temperature in (("constant", ""), *solved, ("floor", "1.0")):
        scenario = small(
            f"privacy.coupling={coupling}", f"privacy.temperature={temperature}", FALLING
        )
        own = solve_plan(own_plan(scenario), 200).noise_multipliers
        np.testing.assert_allclose(
            solve_plan(still_plan(scenario, 200), UNITS).noise_multipliers, own, rtol=1e-6
        )


@pytest.mark.slow
@pytest.mark.parametrize("coupling", ["langevin", "temperature"])
def test_noise_that_follows_a_falling_step_size_is_the_accounted_one(
    coupling: str, tmp_path: Path
) -> None:
    scenario = small(f"privacy.coupling={coupling}", FALLING)
    assert all(
        check.passed for check in audit_noise(scenario, tmp_path, 200, np.random.default_rng(0))
    )


def test_every_shipped_scenario_can_be_audited() -> None:
    for name in shipped_scenarios():
        assert np.isfinite(
            solve_plan(still_plan(load_scenario(name), 200), UNITS).noise_multipliers
        ).all()


def test_long_weakly_private_plan_is_audited_in_part(tmp_path: Path) -> None:
    scenario = small(
        "training={rounds=10, steps_per_round=100, burn_in=0, thinning=1}", "privacy.epsilon=60.0"
    )
    found = audit_canaries(scenario, tmp_path, np.random.default_rng(0), most=600)
    assert found.steps < found.planned_steps == 1000
    assert 0 < found.gaussian_bound < found.claimed < 60


@pytest.mark.parametrize("delta", [0.2, 0.05, 1e-2, 1.6e-3, 1e-3, 1e-5])
@pytest.mark.parametrize("most", [600, 1500])
def test_sizes_keep_delta_below_one_over_n_and_the_declaration_true(
    delta: float, most: int
) -> None:
    planted, units, silent = canaries.canary_sizes(delta, most)
    assert (delta < 1 / units, 2 <= planted <= most) == (True, True)
    spread = 2.5 * math.sqrt(planted)
    assert planted <= 50 or abs(planted / 2 + silent - units) + spread <= 0.2 * (
        planted / 2 + silent
    )


def test_refusal_is_a_users_error(tmp_path: Path) -> None:
    scenario = small("privacy.noise_multiplier=0.01")
    with pytest.raises(UserError, match="audited site 'canaries' did not train"):
        audit_canaries(scenario, tmp_path, np.random.default_rng(0), most=100)
