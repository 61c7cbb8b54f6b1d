"""The whole audit: what it prints, and with which status it ends."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fl_dpbayes.errors import UserError
from fl_dpbayes.privacy.events import read_history
from fl_dpbayes.privacy.filter import noise_of_steps
from fl_dpbayes.run import audit_canaries as canaries_module
from fl_dpbayes.run.audit import audit_scenario
from fl_dpbayes.run.audit_canaries import audit_canaries
from fl_dpbayes.run.audit_neighbours import audit_neighbours
from fl_dpbayes.run.audit_noise import audit_noise
from fl_dpbayes.samplers import drift
from fl_dpbayes.scenario import Scenario, load_scenario

SMALL = [
    "training={rounds=2, steps_per_round=5, burn_in=0, thinning=1}",
    "privacy.coupling=constant",
    "privacy.temperature=",
    "privacy.sampling_rate=1.0",
    "simulation.insecure_seed=1",
]
CNN = 'model={kind="cnn", channels=[2, 3], kernel_size=3, hidden=4}'
MLP = 'model={kind="mlp", hidden=[5]}'


def small(*overrides: str) -> Scenario:
    return load_scenario("quickstart", [*SMALL, *overrides])


def test_sound_scenario_passes_and_says_what_was_attacked(capsys) -> None:
    assert audit_scenario(small(), Console(width=160)) == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in (
        "clients.train", "claimed", "at least (99%)", "a proof, as every record is in every batch",
        "Membership inference", "canaries", "coupled neighbours", "noise", "passed: all 9 checks",
    ):  # fmt: skip
        assert words in text


def test_planted_fault_ends_with_status_1_and_names_its_checks(monkeypatch, capsys) -> None:
    original = drift.private_drift
    monkeypatch.setattr(
        drift, "private_drift", lambda total, **rest: original(total, **rest | {"noise": rest["noise"] / 2})
    )
    assert audit_scenario(small(), Console(width=160), as_json=True) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["passed"]
    assert {check["detector"] for check in found["checks"] if not check["passed"]} == {"canaries", "noise"}


def test_json_holds_claim_bounds_confidence_and_membership(capsys) -> None:
    assert audit_scenario(small("privacy.sampling_rate=0.5"), Console(), as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    epsilon = found["epsilon"]
    assert epsilon["confidence"] == 0.99
    assert 0 <= epsilon["gaussian_bound"] <= epsilon["claimed"] <= 4.0
    assert epsilon["certified"] is False
    assert epsilon["steps"] == epsilon["planned_steps"] == 10
    assert 0 <= found["membership"]["advantage"] <= 1
    assert found["membership"]["advantage_bound"] == pytest.approx(math.tanh(2), abs=0.01)


def test_seeded_scenario_gives_the_same_audit_twice(capsys) -> None:
    texts = []
    for _ in range(2):
        audit_scenario(small(), Console(), as_json=True)
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]


def test_scenario_without_a_seed_is_audited_with_real_entropy(tmp_path: Path) -> None:
    scenario = small("simulation.insecure_seed=")
    found = [audit_canaries(scenario, tmp_path / str(i), np.random.default_rng(0), most=100) for i in range(2)]
    assert found[0].gaussian_bound != found[1].gaussian_bound or found[0].one_run_bound != found[1].one_run_bound


@pytest.mark.parametrize("model", [CNN, MLP])
@pytest.mark.parametrize("sampling_rate", [0.3, 1.0])
def test_other_models_pass(model: str, sampling_rate: float, tmp_path: Path) -> None:
    scenario = small(model, f"privacy.sampling_rate={sampling_rate}")
    checks = audit_neighbours(scenario, tmp_path / "neighbours", np.random.default_rng(0))
    checks += audit_noise(scenario, tmp_path / "noise", np.random.default_rng(0))
    assert [check for check in checks if not check.passed] == []


def test_pre_noise_is_held_within_the_clip(tmp_path: Path) -> None:
    checks = audit_neighbours(small("privacy.pre_noise=0.5"), tmp_path, np.random.default_rng(0))
    assert [check.what for check in checks].count("one unit moves the sum by at most C") == 2
    assert all(check.passed for check in checks)


@pytest.mark.parametrize("coupling", ["langevin", "temperature", "floor"])
def test_noise_that_follows_a_falling_step_size_is_the_accounted_one(coupling: str, tmp_path: Path) -> None:
    overrides = [
        f"privacy.coupling={coupling}",
        "sampler.step_size={kind='exponential', initial=2.0, decay=0.8}",
        *(["privacy.temperature=1.0"] if coupling == "floor" else []),
    ]
    scenario = small(*overrides)
    assert all(check.passed for check in audit_noise(scenario, tmp_path / "noise", np.random.default_rng(0)))
    found = audit_canaries(scenario, tmp_path / "canaries", np.random.default_rng(0), most=600)
    assert all(check.passed for check in found.checks)


def test_long_weakly_private_plan_is_audited_in_part(tmp_path: Path) -> None:
    scenario = small("training={rounds=10, steps_per_round=100, burn_in=0, thinning=1}", "privacy.epsilon=60.0")
    found = audit_canaries(scenario, tmp_path, np.random.default_rng(0), most=600)
    assert found.steps < found.planned_steps == 1000
    assert 0 < found.gaussian_bound < found.claimed < 60


@pytest.mark.parametrize("delta", [0.2, 0.05, 1e-2, 1.6e-3, 1e-3, 1e-5])
@pytest.mark.parametrize("most", [600, 1500])
def test_sizes_keep_delta_below_one_over_n_and_the_declaration_true(delta: float, most: int) -> None:
    canaries, units, silent = canaries_module._sizes(delta, most)
    assert delta < 1 / units
    assert 2 <= canaries <= most
    if canaries > 50:
        spread = 2.5 * math.sqrt(canaries)
        assert abs(canaries / 2 + silent - units) + spread <= 0.2 * (canaries / 2 + silent)


def test_history_of_a_falling_schedule_keeps_the_order_of_the_steps(tmp_path: Path) -> None:
    from fl_dpbayes.run import audit_site

    seen = []
    original = audit_site.request_training

    def watched(*arguments, **rest):
        reply, arrays = original(*arguments, **rest)
        seen.append(noise_of_steps(read_history(reply.privacy.history))[-reply.steps :])
        return reply, arrays

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit_site, "request_training", watched)
        scenario = small(
            "privacy.coupling=temperature", "sampler.step_size={kind='exponential', initial=2.0, decay=0.8}"
        )
        audit_noise(scenario, tmp_path, np.random.default_rng(0))
    falls = np.sqrt(0.8) ** np.arange(8)
    np.testing.assert_allclose(np.concatenate(seen[:2]) / seen[0][0], falls, rtol=1e-9)


def test_refusal_is_a_users_error(tmp_path: Path) -> None:
    scenario = small("privacy.noise_multiplier=0.01")
    with pytest.raises(UserError, match="audited site 'site-1' did not train"):
        audit_canaries(scenario, tmp_path, np.random.default_rng(0), most=100)
