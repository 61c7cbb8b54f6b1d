"""A run that is cut off and taken up again ends as the unbroken one, and charges no site twice."""

import csv
import json
from pathlib import Path

import pytest

from fl_dpbayes.data.site_file import read_site_file
from fl_dpbayes.errors import UserError
from fl_dpbayes.privacy.ledger import Ledger
from server.checkpoint import CHECKPOINT_FILE, read_checkpoint

TABLES = ("privacy.csv", "calibration.csv")
NOISED = ["evaluation.release=noised", "evaluation.noise_multiplier=4.0"]
RECALIBRATED = ["recalibration={epsilon=2.0, rounds=2, steps=4, fraction=0.2}"]


class Cut(BaseException):
    """Ends a run as a kill does: no handler of the apps catches it."""


def cut_after(run, messages: int) -> None:
    """Run until the reply to that many messages is ready, and lose it."""
    seen = 0

    def change(request, reply):
        nonlocal seen
        seen += 1
        if seen == messages:
            raise Cut
        return reply

    run.grid.change = change
    try:
        with pytest.raises(Cut):
            run.run()
    finally:
        run.grid.change = lambda request, reply: reply


def spent(folder: Path) -> dict[tuple[str, str], tuple[int, float, str]]:
    found = {}
    for path in sorted((folder / "sites").glob("*.toml")):
        settings = read_site_file(path).ledger
        assert settings is not None
        if settings.path.is_file():
            with Ledger.open_existing(settings.path, settings.cohort) as ledger:
                assert ledger.verify() == []
                for part in ("train", "test", "recalibration"):
                    sums = ledger.spent(part)
                    found[path.stem, part] = (sums.steps, sums.epsilon, sums.method)
    assert found
    return found


def assert_same_run(folder: Path, unbroken: Path) -> None:
    for name in ("posterior.safetensors", *TABLES):
        assert (folder / name).read_bytes() == (unbroken / name).read_bytes(), name
    assert spent(folder) == spent(unbroken)
    with (folder / "rounds.csv").open(newline="") as file, (unbroken / "rounds.csv").open(newline="") as other:
        rows, expected = list(csv.DictReader(file)), list(csv.DictReader(other))
    for row in [*rows, *expected]:
        del row["seconds"]
    assert rows == expected


@pytest.mark.parametrize(
    "overrides",
    [
        ["aggregation.rule=fald"],
        pytest.param(["aggregation.rule=fedpa"], marks=pytest.mark.slow),
        ["aggregation.rule=mixture", *NOISED, *RECALIBRATED],
    ],
    ids=["fald", "fedpa", "mixture, recalibrated, noised"],
)
def test_run_that_loses_replies_ends_as_the_unbroken_one(federation, overrides: list[str]) -> None:
    unbroken = federation(*overrides, name="unbroken")
    unbroken.run()
    run = federation(*overrides)
    roster = len(run.scenario.sites)
    # The first round's third reply and its last, the second round's first and last, and three of what follows it.
    for messages in (3, 4, 5, 4, 6, 3, 7):
        cut_after(run, roster + messages)
    run.run()
    assert_same_run(run.folder, unbroken.folder)


def test_work_cut_off_inside_a_site_is_done_again_at_no_cost(federation, monkeypatch: pytest.MonkeyPatch) -> None:
    from clients import train

    unbroken = federation(name="unbroken")
    unbroken.run()
    run, run_chain, calls = federation(), train.run_chain, 0

    def cut_every_third(*arguments, **settings):
        nonlocal calls
        calls += 1
        result = run_chain(*arguments, **settings)
        if calls % 3 == 0:
            raise Cut
        return result

    # The process that was cut off is this one, which goes on to play its successor.
    monkeypatch.setattr("fl_dpbayes.privacy.ledger.is_running", lambda name: False)
    with monkeypatch.context() as patch:
        patch.setattr(train, "run_chain", cut_every_third)
        cuts = 0
        while True:
            try:
                run.run()
                break
            except Cut:
                cuts += 1
    assert cuts == 3
    assert_same_run(run.folder, unbroken.folder)


def test_times_add_up_and_the_run_keeps_its_name(federation) -> None:
    run = federation("simulation.insecure_seed=")
    cut_after(run, len(run.scenario.sites) + 6)
    before, _ = read_checkpoint(run.folder)
    cut_after(run, len(run.scenario.sites) + 6)
    after, _ = read_checkpoint(run.folder)
    assert (before.round, after.round) == (1, 2)
    assert before.run == after.run
    assert after.record.seconds["train"] > before.record.seconds["train"]
    assert after.record.round_rows[0] == before.record.round_rows[0]
    run.run()
    assert json.loads((run.folder / "summary.json").read_text())["resumed_after"] == [1, 2]


def test_stopped_run_goes_on_when_its_cause_is_gone(federation) -> None:
    run = federation("resources.min_sites=4", "resources.round_timeout=0.2")
    run.grid.change = lambda request, reply: None if run.site_of(request) == "west" and asked(request) else reply
    with pytest.raises(UserError, match="west: FAILED no reply in time"):
        run.run()
    run.grid.change = lambda request, reply: reply
    run.run()
    unbroken = federation("resources.min_sites=4", "resources.round_timeout=0.2", name="unbroken")
    unbroken.run()
    assert_same_run(run.folder, unbroken.folder)


def asked(request) -> bool:
    return request.metadata.message_type == "train"


def test_site_that_is_gone_or_another_is_named(federation) -> None:
    run = federation("resources.round_timeout=0.2")
    cut_after(run, len(run.scenario.sites) + 5)
    run.grid.change = lambda request, reply: None if run.site_of(request) == "west" else reply
    with pytest.raises(UserError, match="site 'west' of this run does not answer"):
        run.run()
    run.grid.change = lambda request, reply: reply
    (path,) = (run.folder / "sites").glob("*-west.toml")
    path.write_text(path.read_text().replace("units = ", "units = 1"))
    with pytest.raises(UserError, match="site 'west' declares something else"):
        run.run()


def test_checkpoint_of_another_scenario_or_a_damaged_one_is_refused(federation) -> None:
    run = federation()
    cut_after(run, len(run.scenario.sites) + 5)
    other = federation("seed=9")
    with pytest.raises(UserError, match="another scenario"):
        other.run()
    path = run.folder / CHECKPOINT_FILE
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(UserError, match="cannot be read"):
        run.run()
