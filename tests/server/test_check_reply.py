"""Could a chain have got where a reply says, and does a round fit into message, ledger and disk?"""

from types import SimpleNamespace

import numpy as np
import pytest

from fl_dpbayes.config.plan import PrivacyPlan, TrainingPlan
from fl_dpbayes.config.sampler import SGLD, ConstantStepSize
from server.check_reply import check_displacement
from tests.asking import refused, rows_of
from tests.resumed import assert_same_run

MIXTURE = "aggregation={rule='mixture'}"
PLAN = TrainingPlan(
    rounds=1,
    steps_per_round=5,
    burn_in=0,
    thinning=5,
    sampler=SGLD(step_size=ConstantStepSize(initial=1e-12)),
    privacy=PrivacyPlan(epsilon=8, delta=1e-5, noise_multiplier=2.0, sampling_rate=1.0),
    chain_start="broadcast",
)


def check(moved: np.ndarray, start: np.ndarray) -> None:
    reply = SimpleNamespace(
        last_step=4,
        last={"parameters/w": moved},
        samples=SimpleNamespace(arrays={"w": moved[np.newaxis]}),
    )
    request = SimpleNamespace(plan=PLAN, first_step=0, steps=5, precision="float32")
    check_displacement(reply, request, 1000, {"parameters/w": start})  # type: ignore[arg-type]


def test_last_digits_may_move_however_short_the_steps_are() -> None:
    start = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    check(np.nextafter(start, np.float32(np.inf)), start)
    with pytest.raises(ValueError, match=r"lies .* from the start"):
        check(start + np.float32(1e-3), start)


def test_round_too_large_for_a_message_is_refused_before_anything_is_spent(federation) -> None:
    run = federation(
        MIXTURE,
        "model={kind='mlp', hidden=[1000, 1000]}",
        "training={rounds=1, steps_per_round=200, thinning=1}",
    )
    refused(r"would hold 8\d\d MiB .*raise training\.thinning", run.run)
    assert run.requests("train") == []


def test_site_refuses_a_round_too_large_for_its_ledger(federation, monkeypatch) -> None:
    monkeypatch.setattr("server.check_reply.MAX_REPLY_BYTES", 10**12)
    monkeypatch.setattr("clients.policy.MAX_REPLY_BYTES", 10_000)
    run = federation(MIXTURE, "training={rounds=1, steps_per_round=8, thinning=2}")
    refused(r"BAD_REQUEST plan\.thinning", run.run)
    assert all(rows_of(run.ledger(site)) == [] for site in run.scenario.sites)


def test_round_that_the_disk_cannot_hold_is_not_begun(
    federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = federation()
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=2**16))
    refused(r"a round writes up to \d+ KiB to .*run, whose disk has 64 KiB left: free", run.run)
    assert run.requests("train") == []


@pytest.mark.slow
def test_site_that_failed_on_the_full_disk_of_a_simulation_is_not_left_out(
    federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    unbroken = federation("resources.round_timeout=0.2", name="unbroken").run()
    run, free = federation("resources.round_timeout=0.2"), [2**30]
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=free[0]))

    run.spoil(lambda reply: free.__setitem__(0, 0), sites=("west",))
    refused("whose disk has 0 KiB left: free space on it", run.run)
    run.grid.change, free[0] = lambda request, reply: reply, 2**30
    run.run()
    assert_same_run(run.folder, unbroken.folder)
