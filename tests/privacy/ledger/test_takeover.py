"""Work that came to no end is charged again, unless its process is dead and no reply was sent.

A process is known by its name, and what /proc does not tell is not guessed.
"""

import dataclasses
import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from fl_dpbayes.privacy.events import GaussianEvent
from fl_dpbayes.privacy.ledger import ledger as ledger_module
from fl_dpbayes.privacy.ledger import takeover
from fl_dpbayes.privacy.ledger.file import LedgerError, append_entry, transaction
from fl_dpbayes.privacy.ledger.ledger import Refused, Reserved, StoredReply
from fl_dpbayes.privacy.ledger.state import Cohort, Spending
from fl_dpbayes.privacy.ledger.takeover import MOST_TAKEOVERS, process_status, this_process
from fl_dpbayes.protocol.refusal import RefusalCode
from tests.ledgers import DEAD, complete, open_ledger

COHORT = Cohort("cohort", "patient", 10.0, 1e-5, "add_or_remove_one")
SPENDING = Spending(
    part="train",
    run="a" * 16,
    round=1,
    purpose="train",
    request_digest="request",
    plan_digest="plan",
    plan=(GaussianEvent(10.0, 1.0, 5),),
    first_step=0,
    steps=5,
)
BOOT, NAMESPACE, PROCESS_ID, START = this_process().split(":")
BEFORE_THE_POWER_CUT = f"earlier boot:{NAMESPACE}:77:1"
IN_ANOTHER_CONTAINER = f"{BOOT}:{int(NAMESPACE) + 1}:77:1"
AT_WORK = Refused(RefusalCode.ALREADY_RESERVED, "round")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger" / "l.sqlite"


def _reserve_as(process, path, durability="full"):
    """Reserve as a process that ends, or goes on elsewhere, without closing its ledger."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_module, "this_process", lambda: process)
        ledger = open_ledger(path, COHORT, durability)
        answer = ledger.reserve(SPENDING)
        ledger._connection.close()
        return answer


def test_power_cut_that_took_the_commit_with_it_gives_no_second_answer_for_one_charge(
    path, tmp_path
):
    reserved = _reserve_as(BEFORE_THE_POWER_CUT, path, "normal")
    shutil.copytree(path.parent, tmp_path / "on disk")
    with pytest.MonkeyPatch.context() as patch, open_ledger(path, COHORT, "normal") as ledger:
        patch.setattr(ledger_module, "this_process", lambda: BEFORE_THE_POWER_CUT)
        ledger.commit(reserved.reservation, b"answer 1, sent")
    # The second place is not synced either.
    shutil.rmtree(path.parent)
    (tmp_path / "on disk").rename(path.parent)
    with open_ledger(path, COHORT, "normal") as ledger:
        complete(ledger, SPENDING, b"answer 2, sent")
        assert (ledger.spent("train").steps, ledger.verify()) == (10, [])


LEFT_BY = {
    "dead": (DEAD, "full", 5),
    "dead, normal": (DEAD, "normal", 5),
    "power cut": (BEFORE_THE_POWER_CUT, "full", 5),
    "power cut, normal": (BEFORE_THE_POWER_CUT, "normal", 10),
    "container": (IN_ANOTHER_CONTAINER, "full", 10),
    "unnamed": ("", "full", 10),
    "named as of old": (f"{BOOT}:{PROCESS_ID}:{START}", "full", 10),
}


@pytest.mark.parametrize("now", ["full", "normal"])
@pytest.mark.parametrize(("holder", "durability", "steps"), LEFT_BY.values(), ids=LEFT_BY)
def test_who_left_the_work_decides_what_its_repetition_costs(path, holder, durability, now, steps):
    first = _reserve_as(holder, path, durability)
    with open_ledger(path, COHORT, now) as ledger:
        again = ledger.reserve(SPENDING)
        assert (again.reservation == first.reservation) == (steps == 5)
        assert ledger.spent("train").steps == steps
        assert ledger.rows()[-1].durability == now


def test_durability_that_an_old_ledger_does_not_tell_is_the_weaker_one(path, monkeypatch):
    def without_durability(connection, kind, content):
        return append_entry(
            connection, kind, {key: value for key, value in content.items() if key != "durability"}
        )

    with monkeypatch.context() as patch:
        patch.setattr(ledger_module, "append_entry", without_durability)
        _reserve_as(BEFORE_THE_POWER_CUT, path, "full")
    with open_ledger(path, COHORT, "full") as ledger:
        ledger.reserve(SPENDING)
        assert ledger.spent("train").steps == 10


def test_process_that_cannot_see_the_holder_is_charged_and_takes_nothing_from_it(
    path, tmp_path, monkeypatch
):
    with open_ledger(path, COHORT, "full") as holder, open_ledger(path, COHORT, "full") as other:
        held = holder.reserve(SPENDING)
        with monkeypatch.context() as patch:
            patch.setattr(takeover, "_PROC", tmp_path)
            assert other.reserve(SPENDING).reservation != held.reservation
        holder.commit(held.reservation, b"reply")
        assert other.reserve(SPENDING) == StoredReply(b"reply")
        assert holder.spent("train").steps == 10


def test_work_of_a_dead_process_is_taken_over_at_no_cost_and_one_taken_for_dead_ends_nothing(
    path,
):
    first = _reserve_as(DEAD, path)
    with open_ledger(path, COHORT, "full") as ledger:
        changed = dataclasses.replace(SPENDING, request_digest="other")
        assert ledger.reserve(changed) == Refused(RefusalCode.REQUEST_CHANGED, "round")
        again = ledger.reserve(SPENDING)
        assert (again.reservation, again.steps) == (first.reservation, first.steps)
        assert again.head == ledger.head() != first.head
        assert ledger.reserve(SPENDING) == AT_WORK, "its process is this one now"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ledger_module, "this_process", lambda: DEAD)
            for end in (
                ledger.fail,
                lambda reservation: ledger.commit(reservation, b"not dead after all"),
            ):
                with pytest.raises(LedgerError, match="held by another process"):
                    end(first.reservation)
        ledger.commit(again.reservation, b"reply")
        assert ledger.reserve(SPENDING) == StoredReply(b"reply")
        assert (ledger.spent("train").steps, ledger.spent("train").method) == (5, "pld")
        assert [row.takeovers for row in ledger.rows()] == [1]
        assert ledger.verify() == []


def test_stored_reply_and_running_work_go_before_taking_over(path, monkeypatch):
    _reserve_as(DEAD, path)
    with open_ledger(path, COHORT, "full") as ledger:
        with monkeypatch.context() as patch:
            # While the first holder is not known to be dead, the request is charged a second time.
            patch.setattr(
                "fl_dpbayes.privacy.ledger.takeover.process_status", lambda name: "unknown"
            )
            second = ledger.reserve(SPENDING)
        assert ledger.reserve(SPENDING) == AT_WORK
        ledger.commit(second.reservation, b"reply")
        assert ledger.reserve(SPENDING) == StoredReply(b"reply")
        assert ledger.spent("train").steps == 10


def _interrupted(path, interrupt):
    with open_ledger(path, COHORT, "full") as ledger:
        assert isinstance(ledger.reserve(SPENDING), Reserved)
        raise interrupt


def test_interrupted_process_that_lives_on_has_given_the_work_up(path):
    for interrupt in (KeyboardInterrupt, SystemExit):
        with pytest.raises(interrupt):
            _interrupted(path, interrupt)
    with open_ledger(path, COHORT, "full") as ledger:
        assert ledger.spent("train").steps == 10
        complete(ledger, SPENDING)
        assert ledger.reserve(SPENDING) == StoredReply(b"reply")
        assert (ledger.spent("train").steps, ledger.verify()) == (15, [])


def test_interrupted_process_that_died_is_taken_over(path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_module, "this_process", lambda: DEAD)
        with pytest.raises(KeyboardInterrupt):
            _interrupted(path, KeyboardInterrupt)
    with open_ledger(path, COHORT, "full") as ledger:
        (first,) = ledger.rows()
        assert first.interrupted
        assert ledger.reserve(SPENDING).reservation == first.identity
        assert ledger.reserve(SPENDING) == AT_WORK, "its new holder was not interrupted"


def test_work_is_taken_over_three_times_at_most(path):
    *held, last = (_reserve_as(DEAD, path).reservation for _ in range(5))
    assert (len(set(held)), MOST_TAKEOVERS) == (1, 3)
    assert last not in held
    with open_ledger(path, COHORT, "full") as ledger:
        assert (ledger.spent("train").steps, ledger.verify()) == (10, [])
        _append(path, "taken over", reservation=held[0], process=DEAD, durability="full")
        assert "was taken over 4 times, and 3 are allowed" in ledger.verify()[0]


def _append(path, kind, **content):
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as connection,
        transaction(connection),
    ):
        append_entry(connection, kind, {"cohort": COHORT.name, **content})


@pytest.mark.parametrize("kind", ["taken over", "done", "failed", "interrupted"])
@pytest.mark.parametrize("end", ["done", "failed", "unknown"])
def test_entry_about_work_that_is_not_open_stops_the_ledger(path, kind, end):
    with open_ledger(path, COHORT, "full") as ledger:
        held = ledger.reserve(SPENDING).reservation
        ends = {"done": lambda: ledger.commit(held, b"reply"), "failed": lambda: ledger.fail(held)}
        ends.get(end, lambda: None)()
        reservation = 99 if end == "unknown" else held
        assert ledger.verify() == []
        _append(
            path, kind, reservation=reservation, process=DEAD, durability="full", reply_digest="d"
        )
        (problem,) = ledger.verify()
        assert repr(kind) in problem
        assert f"reservation {reservation}, which is {end}" in problem
        with pytest.raises(LedgerError, match="which is"):
            ledger.reserve(SPENDING)


@pytest.fixture
def other():
    """A process, and the name that it has for us."""
    with subprocess.Popen(["sleep", "600"]) as process:
        _, start = takeover._state_and_start_time(process.pid)
        yield process, f"{BOOT}:{NAMESPACE}:{process.pid}:{start}"
        process.kill()


def test_process_is_known_by_its_name(other):
    process, name = other
    assert (
        this_process()
        == f"{BOOT}:{NAMESPACE}:{os.getpid()}:{takeover._state_and_start_time(os.getpid())[1]}"
    )
    assert process_status(this_process()) == process_status(name) == "running"
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process_status(name) == "dead", "a zombie works on nothing"
    process.wait()
    assert process_status(name) == process_status(DEAD) == "dead"
    assert process_status(f"other:{NAMESPACE}:{PROCESS_ID}:{START}") == "machine restarted"
    # Processes of two containers of one machine see the same boot id and not one another.
    elsewhere = [
        f"{BOOT}:{int(NAMESPACE) + 1}:{number}:{START}" for number in (PROCESS_ID, "4194303")
    ]
    unnamed = [f"{BOOT}:{NAMESPACE}:{number}:{START}" for number in ("0", "-1", "x", "9" * 30)]
    for other_name in (*elsewhere, *unnamed, "", "a:b", f"{BOOT}:{os.getpid()}:{START}"):
        assert process_status(other_name) == "unknown"


def test_process_that_proc_hides_is_not_taken_for_dead(other, monkeypatch, tmp_path):
    process, name = other
    for entry in ("self", "sys", str(os.getpid())):
        (tmp_path / entry).symlink_to(
            os.readlink("/proc/self") if entry == "self" else Path("/proc") / entry
        )
    monkeypatch.setattr(takeover, "_PROC", tmp_path)
    assert process_status(name) == "unknown"
    process.kill()
    process.wait()
    assert process_status(name) == "dead"


def test_without_proc_or_with_that_of_another_namespace_nothing_is_known(
    other, monkeypatch, tmp_path
):
    _, name = other
    monkeypatch.setattr(takeover, "_PROC", tmp_path)
    assert (this_process(), process_status(name)) == ("", "unknown")
    (tmp_path / "self").symlink_to(str(os.getpid() + 1))
    for entry in ("sys", str(os.getpid()), str(os.getpid() + 1)):
        (tmp_path / entry).symlink_to(Path("/proc") / (entry if entry == "sys" else "self"))
    assert this_process() == ""
