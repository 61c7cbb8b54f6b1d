"""A hospital's files of version 0.1.0: its ledger opens with the epsilon that was spent then.

`tests/made_before` holds them as that version left them: 4 steps of two runs, one of them failed,
and an evaluation.
"""

import json
import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

import clients.train
from fl_dpbayes.config.site_file import read_own_site_file
from fl_dpbayes.hospital.ledger import export_ledger
from fl_dpbayes.posterior.store import load_posterior
from fl_dpbayes.privacy.ledger.ledger import Ledger
from tests.asking import refusal_of
from tests.federations import TableSite

KEPT = Path(__file__).parents[2] / "made_before"
EXPECTED = json.loads((KEPT / "expected.json").read_text())
MOST_STEPS = 15
SAMPLED = {"privacy": {"sampling_rate": 0.5}}
NEXT = {"run": "cd" * 16, **SAMPLED}


@pytest.fixture
def before(table_site) -> TableSite:
    """The hospital, in a folder that a test may change."""
    site = table_site()
    shutil.copytree(KEPT, site.folder)
    return site


def spent(site: TableSite) -> list[dict]:
    parts: list[dict] = export_ledger(site.path)["parts"]
    return parts


def test_ledger_of_before_opens_with_the_same_epsilon_and_head(before, command) -> None:
    exported = export_ledger(before.path)
    assert (exported["head"], exported["problems"]) == (EXPECTED["head"], [])
    for part, expected in zip(exported["parts"], EXPECTED["parts"], strict=True):
        assert part == expected | {
            "epsilon": pytest.approx(expected["epsilon"], rel=1e-12),
            "mu": part["mu"],
        }
    assert command("site", "ledger", "verify", before.path)[0] == 0
    assert "6.16" in command("site", "ledger", "show", before.path)[1]
    status, said, _ = command("site", "audit", "verify", before.path)
    assert (status, "lines of an earlier version have no hash" in said) == (0, True), said


def test_it_is_spent_from_by_a_new_run_and_one_of_before_cannot_go_on(before, command) -> None:
    # Plans are written otherwise since, so an answer of before belongs to another request.
    assert refusal_of(before.train(**SAMPLED)) == ("PLAN_CHANGED", "plan")
    assert spent(before)[0]["epsilon"] == EXPECTED["parts"][0]["epsilon"]
    assert refusal_of(before.train(**NEXT)) is None
    train, test, _ = spent(before)
    assert train["steps"] == EXPECTED["parts"][0]["steps"] + 1
    assert train["epsilon"] > EXPECTED["parts"][0]["epsilon"]
    assert test == EXPECTED["parts"][1]
    # The budget of 8 ends where version 0.1.0 ended it.
    for run in ("01", "02"):
        before.train(run=run * 16, steps=8, **SAMPLED)
    assert refusal_of(before.train(run="03" * 16, **SAMPLED)) == ("BUDGET_EXHAUSTED", "")
    assert (spent(before)[0]["steps"], spent(before)[0]["epsilon"] <= 8) == (MOST_STEPS, True)
    for name in ("ledger", "audit"):
        assert command("site", name, "verify", before.path)[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("place", ["reserve", "run_chain", "commit"])
def test_a_kill_in_its_first_request_after_the_upgrade_loses_nothing(
    before, command, place: str
) -> None:
    def killed() -> None:
        def die(*_: object, **__: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(clients.train if place == "run_chain" else Ledger, place, die)
        before.train(**NEXT)

    process = multiprocessing.get_context("fork").Process(target=killed)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    steps = spent(before)[0]["steps"]
    assert steps == EXPECTED["parts"][0]["steps"] + (place != "reserve")
    assert refusal_of(before.train(**NEXT)) is None
    assert spent(before)[0]["steps"] == EXPECTED["parts"][0]["steps"] + 1
    assert command("site", "ledger", "verify", before.path)[0] == 0


def test_site_file_and_posterior_of_before_open() -> None:
    own = read_own_site_file(KEPT / "site.toml")
    assert own.ledger is not None
    assert (own.ledger.planned_runs, own.policy.approved_plans) == (1, None)
    stored = load_posterior(KEPT / "posterior.safetensors")
    assert all(np.isfinite(array).all() for array in stored.samples.arrays.values())
