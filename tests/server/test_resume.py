"""A run that is cut off and taken up again ends as the unbroken one, and charges no site twice."""

import time
from pathlib import Path

import pytest

from fl_dpbayes.files.run_store import STORE_FILE, RunStore
from server.checkpoint import read_rounds
from server.run_record import RunRecord
from server.strategies.strategy import PosteriorStrategy
from tests.asking import refused
from tests.resumed import assert_same_run
from tests.server.conftest import Cut

# Every test here is a whole run or several.
pytestmark = pytest.mark.slow

ROUNDS = 12
# Bytes.
PAGE = 4096
NOISED = ["evaluation.release=noised", "evaluation.noise_multiplier=4.0"]
RECALIBRATED = ["recalibration={epsilon=2.0, rounds=2, steps=4, fraction=0.2}"]


# All four sites must answer, fewer nodes than there are suffice to start, and who is silent is not
# waited for.
STRICT = ["resources.min_sites=4", "resources.start_nodes=5", "resources.round_timeout=0.2"]


@pytest.fixture(scope="module")
def unbroken(federations):
    return federations(*STRICT, name="unbroken").run()


def rounds_of(folder: Path):
    with RunStore.open(folder) as store:
        return read_rounds(store)


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


@pytest.mark.parametrize(
    "overrides",
    [
        ["aggregation.rule=fald"],
        ["aggregation.rule=fedpa"],
        ["aggregation.rule=mixture", *NOISED, *RECALIBRATED],
    ],
    ids=["fald", "fedpa", "mixture, recalibrated, noised"],
)
def test_run_that_loses_replies_ends_as_the_unbroken_one(federation, overrides: list[str]) -> None:
    unbroken = federation(*overrides, name="unbroken").run()
    run = federation(*overrides)
    roster = len(run.scenario.sites)
    # The first round's third reply and its last, the second round's first and last, and three of
    # what follows it.
    for messages in (3, 4, 5, 4, 6, 3, 7):
        cut_after(run, roster + messages)
    run.run()
    assert_same_run(run.folder, unbroken.folder)


def test_work_cut_off_inside_a_site_is_done_again_at_no_cost(
    federation, unbroken, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clients import train

    run, run_chain, calls = federation(*STRICT), train.run_chain, 0

    def cut_every_third(*arguments, **settings):
        nonlocal calls
        calls += 1
        result = run_chain(*arguments, **settings)
        if calls % 3 == 0:
            raise Cut
        return result

    # The process that was cut off is this one, which goes on to play its successor.
    monkeypatch.setattr("fl_dpbayes.privacy.ledger.takeover.process_status", lambda name: "dead")
    with monkeypatch.context() as patch:
        patch.setattr(train, "run_chain", cut_every_third)
        for _ in range(3):
            with pytest.raises(Cut):
                run.run()
        run.run()
    assert_same_run(run.folder, unbroken.folder)


def test_times_add_up_and_the_run_keeps_its_name(federation) -> None:
    run = federation("simulation.insecure_seed=")
    cut_after(run, len(run.scenario.sites) + 6)
    before = rounds_of(run.folder)[-1].checkpoint
    rows = (run.folder / "rounds.csv").read_text().splitlines()
    cut_after(run, len(run.scenario.sites) + 6)
    after = rounds_of(run.folder)[-1].checkpoint
    assert (before.round, after.round) == (1, 2)
    assert before.run == after.run
    assert after.seconds["train"] > before.seconds["train"]
    assert (run.folder / "rounds.csv").read_text().splitlines()[:2] == rows
    run.run()
    assert run.summary()["resumed_after"] == [1, 2]


def test_stopped_run_goes_on_when_its_cause_is_gone(federation, unbroken) -> None:
    run = federation(*STRICT)
    run.silence("west")
    refused("west: FAILED no reply in time", run.run)
    run.grid.change = lambda request, reply: reply
    run.run()
    assert_same_run(run.folder, unbroken.folder)


def test_site_that_is_another_is_named(federation, monkeypatch: pytest.MonkeyPatch) -> None:
    run = federation("resources.round_timeout=0.2")
    cut_after(run, len(run.scenario.sites) + 5)
    (path,) = (run.folder / "sites").glob("*-west.toml")
    path.write_text(path.read_text().replace("units = ", "units = 1"))
    # The server has no copy of a hospital's own site file.
    monkeypatch.setattr("server.federation.check_run_files", lambda *_: None)
    refused("site 'west' declares something else", run.run)


def connected(run, nodes) -> None:
    run.grid.get_node_ids = lambda: sorted(nodes())


def test_run_goes_on_without_sites_that_are_gone_and_with_one_that_comes_back(
    federation, monkeypatch
) -> None:
    monkeypatch.setattr("server.roster.NODE_SECONDS", 0.1)
    run = federation(
        "training={rounds=4, steps_per_round=4, burn_in=2, thinning=2}",
        "aggregation.rule=mixture",
        "recalibration={fraction=0.2, steps=2}",
        "resources.min_sites=2",
    )
    cut_after(run, len(run.scenario.sites) + 5)
    before = len(run.grid.requests)

    def nodes() -> set[int]:
        rounds = [
            int(m.metadata.group_id)
            for m in run.grid.requests[before:]
            if m.metadata.message_type == "train"
        ]
        return set(range(1, 8)) - ({3, 5} if 2 in rounds else {3, 4, 5})

    connected(run, nodes)
    run.run()
    assert not [m for m in run.grid.requests[before:] if m.metadata.dst_node_id in (3, 5)]
    summary = run.summary()
    assert run.statuses() == {
        "north": ["OK"] * 4,
        "south": ["OK"] * 4,
        "east": ["OK", *["NOT ASKED"] * 3],
        "west": ["OK", "NOT ASKED", "OK", "OK"],
    }
    assert "round 3: west came back" in summary["warnings"]
    # What they released before counts.
    assert {row["name"] for row in summary["sites"]} == set(run.scenario.sites)
    for site in ("east", "held-out"):
        texts = [text for text in summary["warnings"] if site in text]
        assert any("missing when the run was resumed" in text for text in texts)
        assert any("sent no evaluation: it has been gone" in text for text in texts)


def test_run_with_too_few_of_its_sites_loses_nothing_and_waits_for_all_though_fewer_could_start(
    federation, unbroken, monkeypatch
) -> None:
    run = federation(*STRICT)
    cut_after(run, len(run.scenario.sites) + 5)
    kept = (run.folder / STORE_FILE).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("server.roster.NODE_SECONDS", 0.1)
        connected(run, lambda: {1, 3, 5, 6, 7})
        refused(r"2 training sites of this run .*min_sites asks for 4.*south, west", run.run)
        connected(run, lambda: ())
        refused("none of the run's 7 nodes is connected", run.run)
    assert (run.folder / STORE_FILE).read_bytes() == kept
    # It waits for all its nodes, though fewer suffice to start.
    began = time.monotonic()
    connected(run, lambda: range(1, 8) if time.monotonic() > began + 0.5 else range(1, 6))
    run.run()
    assert_same_run(run.folder, unbroken.folder)


def test_checkpoint_of_another_scenario_is_refused(federation) -> None:
    run = federation()
    cut_after(run, len(run.scenario.sites) + 5)
    refused("holds a run that has begun: give another folder", federation, "seed=9")
    run.scenario = run.scenario.model_copy(update={"seed": 9})
    refused("another scenario", run.run)


def written_bytes() -> int:
    """Return how many bytes this process has handed to the system so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def test_bytes_of_a_round_do_not_grow_with_the_rounds(
    federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, add_round, save = [0], RunRecord.add_round, PosteriorStrategy.save

    def begin(*arguments, **more) -> None:
        written.append(-written_bytes())
        add_round(*arguments, **more)

    def end(*arguments) -> None:
        save(*arguments)
        written[-1] += written_bytes()

    monkeypatch.setattr(RunRecord, "add_round", begin)
    monkeypatch.setattr(PosteriorStrategy, "save", end)
    federation(f"training={{rounds={ROUNDS}, steps_per_round=1, burn_in=0, thinning=1}}").run()
    # Warnings come with the first round and the last.
    per_round = written[2:ROUNDS]
    # A round writes whole pages of the store, which are more or less full.
    assert max(per_round) - min(per_round) < 3 * PAGE, per_round


def test_rows_of_a_round_that_was_not_stored_are_dropped(federation, unbroken, monkeypatch) -> None:
    run = federation(*STRICT)
    append = RunStore.append

    def die(store: RunStore, **content) -> None:
        if content["round"]["checkpoint"]["round"] == 1:
            raise Cut
        append(store, **content)

    with monkeypatch.context() as patch:
        patch.setattr(RunStore, "append", die)
        patch.setattr("server.federation._write", lambda *_, **__: None)
        with pytest.raises(Cut):
            run.run()

    def outcomes() -> list[int]:
        return [entry.outcome.round for entry in rounds_of(run.folder) if entry.outcome]

    assert (outcomes(), len((run.folder / "rounds.csv").read_text().splitlines())) == ([], 2)
    run.run()
    assert outcomes() == [1, 2]
    assert_same_run(run.folder, unbroken.folder)
    summary = run.summary()
    assert [len(row["statuses"]) for row in summary["participation"]] == [2] * len(
        summary["participation"]
    )
