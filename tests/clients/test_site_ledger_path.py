"""The ledger seen through a site's app: put back, deleted, moved, restated, with new records."""

import shutil
import sqlite3

import numpy as np
import pytest
from flwr.app import Message

from fl_dpbayes.config.site_file import read_site_file
from fl_dpbayes.data.site_ledger import create_ledger
from fl_dpbayes.privacy.ledger import file as ledger_file
from tests.asking import ROWS, evaluate, record_of, refusal_of

PLACES = {"path": "ledger/north.sqlite", "witness": "witness/north.json"}
LEDGER = PLACES | {"cohort": "north 2026", "epsilon": 8.0, "delta": 1e-3}

CORRECTED = [*ROWS[:-1], ("p049", 0.5, 0.5, 1)]


def head_of(reply: Message) -> str:
    return record_of(reply)["ledger_head"]


def round_of(site, number: int, head: str | None = None) -> Message:
    return site.train(round=number, first_step=number - 1, ledger_head=head)


def evaluated(site, head: str | None) -> Message:
    return evaluate(site, run="ab" * 16, round=8, ledger_head=head)


def ask(site, kind: str, head: str | None = None) -> tuple[str, str] | None:
    """Return the refusal of a request of a new run, which the server has seen no head for."""
    return refusal_of(
        site.train(run="cd" * 16, ledger_head=head) if kind == "train" else evaluated(site, head)
    )


def restore(folder, copy=None) -> None:
    shutil.rmtree(folder)
    if copy is not None:
        shutil.copytree(copy, folder)


@pytest.fixture
def spent(site):
    """A site after two rounds, with copies of its ledger and second place after the first."""
    head_of(round_of(site, 1))
    with site.ledger():
        for name in ("ledger", "witness"):
            shutil.copytree(site.folder / name, site.folder / "copy" / name)
    assert (site.folder / "copy/ledger/north.sqlite-wal").exists()
    site.head = head_of(round_of(site, 2))
    return site


def steps_of(site) -> tuple[int, int]:
    """Count the steps that training and testing have cost, by the site's ledger."""
    with site.ledger() as ledger:
        return ledger.spent("train").steps, ledger.spent("test").steps


@pytest.mark.slow
@pytest.mark.parametrize("what", ["older copy", "deleted", "emptied", "no version"])
@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_no_request_of_any_run_opens_a_fresh_budget(spent, caplog, kind: str, what: str) -> None:
    ledger = spent.folder / "ledger"
    shutil.copytree(ledger, spent.folder / "newest")
    restore(ledger, spent.folder / "copy/ledger" if what == "older copy" else None)
    ledger.mkdir(exist_ok=True)
    if what == "emptied":
        (ledger / "north.sqlite").touch()
    elif what == "no version":
        sqlite3.connect(ledger / "north.sqlite").execute("VACUUM").connection.close()
    for _ in range(2):
        assert ask(spent, kind) == ("LEDGER_ERROR", "")
    line = caplog.records[-1].getMessage()
    assert str(ledger / "north.sqlite") in line
    assert "ut " in line, "says what to put back"
    restore(ledger, spent.folder / "newest")
    head_of(round_of(spent, 3))
    assert steps_of(spent) == (3, 0)


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_both_places_put_back_are_noticed_by_the_servers_head(spent, kind: str) -> None:
    for name in ("ledger", "witness"):
        restore(spent.folder / name, spent.folder / "copy" / name)
    for _ in range(2):
        assert ask(spent, kind, spent.head) == ("LEDGER_ROLLED_BACK", "ledger_head")
    assert steps_of(spent) == (1, 0)


def test_second_ledger_with_a_second_place_of_its_own_is_noticed_by_the_servers_head(spent) -> None:
    other = {
        "path": "other/north.sqlite",
        "witness": "other witness/north.json",
        "cohort": "north again",
    }
    spent.write(ROWS, ledger=LEDGER | other)
    assert (spent.folder / "other/north.sqlite").exists()
    assert ask(spent, "train", spent.head) == ("LEDGER_ROLLED_BACK", "ledger_head")


def test_head_that_a_hostile_server_made_up_refuses_its_own_requests_only(spent) -> None:
    with spent.ledger() as ledger:
        before = ledger.entries()
    for made_up in ("0" * 64, "f" * 64):
        assert ask(spent, "train", made_up) == ("LEDGER_ROLLED_BACK", "ledger_head")
    with spent.ledger() as ledger:
        assert ledger.entries() == before
    head_of(round_of(spent, 3, spent.head))


@pytest.mark.parametrize(
    "change",
    [
        {"cohort": "renamed"},
        {"path": "ledger/renamed.sqlite"},
        {"path": "second/north.sqlite"},
        {"witness": "elsewhere/north.json"},
    ],
    ids=["renamed cohort", "renamed ledger", "second ledger", "another second place"],
)
def test_site_file_that_names_another_budget_for_the_same_records_is_refused(
    spent, change: dict
) -> None:
    spent.write(ROWS, ledger=LEDGER | change)
    assert ask(spent, "train") == ask(spent, "evaluate") == ("LEDGER_ERROR", "")
    spent.write(ROWS)
    head_of(round_of(spent, 3))


@pytest.mark.parametrize("what", ["renamed", "and another split key", "and a corrected row"])
def test_renamed_cohort_is_refused_even_where_it_was_made(spent, what: str) -> None:
    rows = CORRECTED if what == "and a corrected row" else ROWS
    key = "5f" * 16 if what == "and another split key" else "5e" * 16
    spent.write(
        rows, ledger=LEDGER | {"cohort": "renamed"}, split={"test_fraction": 0.25, "key": key}
    )
    create_ledger(read_site_file(spent.path)).close()
    assert ask(spent, "train") == ask(spent, "evaluate") == ("LEDGER_ERROR", "")


def test_rounds_and_evaluation_with_the_true_head_are_answered(site) -> None:
    head = head_of(round_of(site, 1))
    head = head_of(round_of(site, 2, head))
    head = head_of(evaluated(site, head))
    assert head_of(evaluated(site, head)) == head_of(evaluated(site, None)) == head
    assert steps_of(site) == (2, 1)


def test_repeated_round_after_a_crash_draws_other_noise(site, monkeypatch) -> None:
    from clients import train

    site.write(ROWS, insecure_seed=None)
    released, run_chain = [], train.run_chain

    def crash(*arguments, **rest):
        released.append(run_chain(*arguments, **rest).last["parameters"])
        raise RuntimeError("the machine fails before the reply is stored")

    monkeypatch.setattr(train, "run_chain", crash)
    assert [refusal_of(round_of(site, 1)) for _ in range(2)] == [("INTERNAL", "")] * 2
    assert not np.isclose(released[0], released[1]).any()
    with site.ledger() as ledger:
        assert [row.state for row in ledger.rows()] == ["failed", "failed"]
        assert ledger.spent("train").steps == 2


def test_network_file_system_is_refused_without_a_step(site, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ledger_file, "network_file_system", lambda path, mounts: "nfs4")
        assert refusal_of(round_of(site, 1)) == ("LEDGER_ERROR", "")
    assert steps_of(site) == (0, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"ledger": LEDGER | {"epsilon": 80.0}},
        {"ledger": LEDGER | {"adjacency": "replace_one"}},
        # A unit that was in both parts would have both budgets spent on it.
        {"split": {"test_fraction": 0.25, "key": "5f" * 16}},
        {"split": {"test_fraction": 0.26, "key": "5e" * 16}},
        {"role": "held_out", "units": 50},
    ],
)
def test_budget_and_parts_of_a_cohort_are_never_restated(site, change: dict) -> None:
    head_of(round_of(site, 1))
    site.write(ROWS, **change)
    assert refusal_of(evaluated(site, None)) == ("COHORT_CHANGED", "")
    assert steps_of(site) == (1, 0)


def test_corrected_row_opens_no_new_budget_and_is_noted(site) -> None:
    for number in (1, 2):
        head_of(round_of(site, number))
    site.write(CORRECTED)
    head_of(round_of(site, 3))
    assert steps_of(site) == (3, 0)
    with site.ledger() as ledger:
        assert len(ledger.state().data_versions) == 2


def test_other_number_of_units_changes_no_noise_of_a_run(site) -> None:
    # This coupling's noise follows from n; the first request fixed it.
    langevin = {"coupling": "langevin"}
    head_of(site.train(privacy=langevin))
    with site.ledger() as ledger:
        planned = ledger.state().planned("train", "ab" * 16, "train")
    site.write(ROWS, units=38)
    head_of(site.train(round=2, first_step=1, privacy=langevin))
    with site.ledger() as ledger:
        assert ledger.state().planned("train", "ab" * 16, "train") == planned
        assert ledger.spent("train").history == ledger.state().spent_in("train")
        noises = [
            {event.noise_multiplier for event in found.history}
            for found in (ledger.spent("train"), planned)
        ]
        assert noises[0] == noises[1]
