"""The ledger: reserve before spending, count whatever happened, answer again for free."""

import dataclasses
import json
import math
import os
import shutil
import signal
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fl_dpbayes.errors import UserError
from fl_dpbayes.files.kept import Kept
from fl_dpbayes.privacy.events import GaussianEvent, history_of_steps
from fl_dpbayes.privacy.gdp import gdp_epsilon
from fl_dpbayes.privacy.ledger import decision
from fl_dpbayes.privacy.ledger import ledger as ledger_module
from fl_dpbayes.privacy.ledger import state as state_module
from fl_dpbayes.privacy.ledger.file import LedgerError
from fl_dpbayes.privacy.ledger.ledger import Ledger, Refused, Reserved, StoredReply
from fl_dpbayes.privacy.ledger.state import PARTS, Cohort, DataVersion
from fl_dpbayes.privacy.ledger.witness import LedgerPlace, repair_witness
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon
from fl_dpbayes.protocol.refusal import RefusalCode
from tests.ledgers import (
    DEAD,
    OTHER_RUN,
    PLAN,
    RUN,
    complete,
    execute,
    open_ledger,
    place_of,
    spending,
)

DELTA = 1e-5
# The budget holds 25 steps of noise multiplier 10 at sampling rate 1.
COHORT = Cohort(
    "cohort a", "patient", gdp_epsilon(math.sqrt(25.5) / 10, DELTA), DELTA, "add_or_remove_one"
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledgers" / "site.sqlite"


@pytest.fixture
def ledger(path):
    with open_ledger(path, COHORT) as opened:
        yield opened


def spend(path, round_=1):
    with open_ledger(path, COHORT) as ledger:
        complete(ledger, spending(round_))


def test_reserved_steps_count_before_they_run_and_whatever_becomes_of_them(ledger):
    first = ledger.reserve(spending(1))
    assert ledger.spent("train").steps == 5
    ledger.fail(first.reservation)
    assert ledger.spent("train").method == "pld"
    assert complete(ledger, spending(1), b"at last").reservation != first.reservation, (
        "it is charged again"
    )
    assert ledger.reserve(spending(1)) == StoredReply(b"at last")
    spent = ledger.spent("train")
    assert (spent.steps, spent.method) == (10, "gdp filter")
    assert spent.epsilon == pytest.approx(gdp_epsilon(math.sqrt(10) / 10, DELTA), rel=1e-9)
    assert [row.state for row in ledger.rows()] == ["failed", "done"]


def test_same_request_gets_its_stored_reply_for_free_and_another_in_the_same_round_is_refused(
    ledger,
):
    complete(ledger, spending(1), b"first reply")
    assert ledger.reserve(spending(1)) == StoredReply(b"first reply")
    assert ledger.reserve(spending(1, request="other")) == Refused(
        RefusalCode.REQUEST_CHANGED, "round"
    )
    ledger.fail(ledger.reserve(spending(2)).reservation)
    assert ledger.reserve(spending(2, request="other")) == Refused(
        RefusalCode.REQUEST_CHANGED, "round"
    )
    assert ledger.spent("train").steps == 10


def test_another_plan_in_the_same_run_is_refused(ledger):
    complete(ledger, spending(1))
    quieter = (GaussianEvent(20.0, 1.0, 20),)
    for changed in (
        spending(2, plan=quieter),
        dataclasses.replace(spending(2), plan_digest="other"),
    ):
        assert ledger.reserve(changed) == Refused(RefusalCode.PLAN_CHANGED, "plan")
    assert isinstance(ledger.reserve(spending(2, plan=quieter, run=OTHER_RUN)), Reserved)
    assert ledger.state().planned("train", RUN, "train").history == PLAN
    assert ledger.state().planned("train", "c" * 16, "train") is None


def test_no_later_round_repeats_a_step_of_the_plan(ledger):
    complete(ledger, spending(1))
    ledger.fail(ledger.reserve(spending(2, first_step=10)).reservation)
    for first_step in (0, 4, 6, 14):
        refused = ledger.reserve(spending(3, first_step=first_step))
        assert refused == Refused(RefusalCode.POLICY_DENIED, "first_step")
    assert isinstance(ledger.reserve(spending(3, first_step=5)), Reserved)


def test_the_longest_prefix_runs_and_then_nothing(ledger):
    head = ledger.head()
    assert ledger.reserve(spending(1, plan=(GaussianEvent(0.0, 1.0, 20),))) == Refused(
        RefusalCode.BUDGET_EXHAUSTED
    )
    assert ledger.head() == head, "a refused plan fixes no rule"
    for round_ in (1, 2, 3, 4):
        assert complete(ledger, spending(round_)).steps == 5
    assert complete(ledger, spending(1, run=OTHER_RUN, steps=8, first_step=0)).steps == 5
    head = ledger.head()
    assert ledger.reserve(spending(2, run=OTHER_RUN)) == Refused(RefusalCode.BUDGET_EXHAUSTED)
    assert ledger.head() == head, "a refusal leaves no trace"
    spent = ledger.spent("train")
    assert (spent.steps, spent.method, spent.mu.kind) == (25, "gdp filter", "exact")
    assert spent.epsilon <= COHORT.epsilon
    assert ledger.verify() == []


def test_one_evaluation_each_round_is_charged_each_time(ledger):
    plan = (GaussianEvent(10.0, 1.0, 1),)
    for round_ in (1, 2, 3):
        complete(
            ledger,
            spending(
                round_, part="test", purpose=f"evaluate {round_}", plan=plan, first_step=0, steps=1
            ),
        )
    spent = ledger.spent("test")
    assert (spent.steps, spent.method) == (3, "gdp filter")
    assert spent.epsilon == pytest.approx(gdp_epsilon(math.sqrt(3) / 10, DELTA), rel=1e-9)


def test_one_subsampled_run_is_accounted_by_its_loss_distribution_and_a_second_by_the_filter(path):
    cohort = dataclasses.replace(COHORT, epsilon=4.0)
    sigmas = np.linspace(1.2, 1.6, 20)
    plan = history_of_steps(sigmas, 0.1)
    with open_ledger(path, cohort) as ledger:
        for round_ in (1, 2):
            complete(ledger, spending(round_, plan=plan))
        alone = ledger.spent("train")
        assert (alone.method, alone.mu.kind) == ("pld", "clt")
        assert alone.epsilon == pytest.approx(
            pld_epsilon(history_of_steps(sigmas[:10], 0.1), DELTA), rel=1e-5
        )
        complete(ledger, spending(1, run=OTHER_RUN, plan=plan))
        both = ledger.spent("train")
        assert (both.method, both.steps) == ("rdp filter", 15)
        assert pld_epsilon(both.history, DELTA) < both.epsilon <= 4.0


def test_a_run_that_was_cut_off_leaves_its_unused_steps_to_the_next(path):
    plan = (GaussianEvent(1.0, 0.1, 400),)
    cohort = dataclasses.replace(
        COHORT, epsilon=pld_epsilon((GaussianEvent(1.0, 0.1, 100),), DELTA) + 1e-6
    )
    with open_ledger(path, cohort) as ledger:
        complete(ledger, spending(1, plan=plan, steps=30, first_step=0))
        assert (
            complete(ledger, spending(1, run=OTHER_RUN, plan=plan, steps=100, first_step=0)).steps
            == 70
        )
        spent = ledger.spent("train")
        whole = pld_epsilon((GaussianEvent(1.0, 0.1, 100),), DELTA)
        assert (spent.method, spent.steps, spent.epsilon) == ("pld", 100, whole)
        assert ledger.reserve(spending(1, run="c" * 16, plan=plan)) == Refused(
            RefusalCode.BUDGET_EXHAUSTED
        )
        assert ledger.verify() == []


def test_a_run_that_skipped_its_noisy_steps_never_reports_more_than_the_budget(path):
    plan = (GaussianEvent(0.9, 0.1, 60), GaussianEvent(3.0, 0.1, 60))
    cohort = dataclasses.replace(
        COHORT, epsilon=pld_epsilon((GaussianEvent(0.9, 0.1, 50),), DELTA) + 1e-6
    )
    with open_ledger(path, cohort) as ledger:
        assert complete(ledger, spending(2, plan=plan, steps=60, first_step=60)).steps == 50
        assert pld_epsilon((plan[0], GaussianEvent(3.0, 0.1, 50)), DELTA) > cohort.epsilon
        spent = ledger.spent("train")
        stock = pld_epsilon((GaussianEvent(0.9, 0.1, 50),), DELTA)
        assert (spent.method, spent.steps, spent.epsilon) == ("pld", 50, stock)


def test_a_cohort_keeps_its_budget(path):
    open_ledger(path, COHORT).close()
    changes = {
        "epsilon": 0.1,
        "delta": 1e-6,
        "adjacency": "replace_one",
        "unit": "record",
        "split": "another",
    }
    for field, value in (("epsilon", 9.0), *changes.items()):
        with pytest.raises(UserError, match=f"{field} {getattr(COHORT, field)!r}, not {value!r}"):
            open_ledger(path, dataclasses.replace(COHORT, **{field: value}))


def test_cohorts_in_one_file_do_not_share_a_budget(path, ledger):
    complete(ledger, spending(1, plan=(GaussianEvent(10.0, 1.0, 30),), steps=30))
    with open_ledger(path, dataclasses.replace(COHORT, name="cohort b")) as other:
        assert other.spent("train").steps == 0
        assert isinstance(other.reserve(spending(1)), Reserved)
    assert ledger.spent("train").steps == 25


def _version(fingerprint, units=()):
    return lambda key: DataVersion(fingerprint, tuple(units))


def test_corrected_records_open_no_new_budget_and_no_cohort_may_have_the_units_of_another(
    path, ledger
):
    units, others = ([f"{digit}{number:03}" for number in range(100)] for digit in (0, 9))
    complete(ledger, spending(1))
    for fingerprint in ("f0", "f0", "f1"):
        ledger.record_data_version(_version(fingerprint, units))
    assert [version.fingerprint for version in ledger.state().data_versions] == ["f0", "f1"]
    assert ledger.spent("train").steps == 5
    other = dataclasses.replace(COHORT, name="cohort b")
    mostly_the_same = _version("f2", [*units[50:], *others[:50]])
    with pytest.raises(
        LedgerError, match=r"50% of these units are in cohort 'cohort a'.*ledger.cohort"
    ):
        Ledger.create(place_of(path), other, mostly_the_same)
    with pytest.raises(LedgerError, match="holds no cohort 'cohort b'"):
        Ledger.open(place_of(path), other)
    with Ledger.create(place_of(path), other) as made:
        with pytest.raises(LedgerError, match="cohort a"):
            made.record_data_version(mostly_the_same)
        made.record_data_version(_version("f3", [*units[:10], *others[:90]]))


def _dropped(path, copy):
    execute(
        path,
        *(f"DROP TABLE {table}" for table in ("chain", "reply", "secret")),
        "PRAGMA user_version = 0",
    )


def _made_anew(path, rounds=()):
    with Ledger.create(
        LedgerPlace(path, path.parent / "another witness", "normal"), COHORT
    ) as ledger:
        for round_ in rounds:
            complete(ledger, spending(round_))


@pytest.mark.parametrize(
    ("replace", "reason"),
    [
        (lambda path, copy: shutil.copy(copy, path), "lacks entry"),
        (lambda path, copy: None, "does not exist"),
        (lambda path, copy: path.write_bytes(b""), "is empty"),
        (_dropped, "no ledger of format"),
        (lambda path, copy: _made_anew(path), "lacks entry"),
        (lambda path, copy: _made_anew(path, rounds=(1, 2, 3)), "lacks entry"),
        (
            lambda path, copy: execute(path, "CREATE TABLE patients (name TEXT)"),
            "no ledger of format",
        ),
    ],
    ids=[
        "older copy",
        "deleted",
        "emptied",
        "dropped",
        "made anew",
        "made anew, as long",
        "foreign",
    ],
)
def test_ledger_that_its_second_place_does_not_know_is_refused_until_it_is_put_back(
    path, tmp_path, replace, reason
):
    spend(path)
    shutil.copy(path, tmp_path / "older.sqlite")
    spend(path, 2)
    newest = path.rename(tmp_path / "newest.sqlite")
    if replace is _dropped:
        shutil.copy(newest, path)
    replace(path, tmp_path / "older.sqlite")
    for action in (Ledger.open, Ledger.create):
        with pytest.raises(LedgerError, match=reason) as caught:
            action(place_of(path), COHORT)
        assert str(path) in str(caught.value)
        assert "ut " in str(caught.value), "says what to put back"
    with pytest.raises(LedgerError, match=reason):
        repair_witness(place_of(path))
    for left in path.parent.glob(f"{path.name}*"):
        left.unlink()
    newest.rename(path)
    with Ledger.open(place_of(path), COHORT) as ledger:
        assert ledger.spent("train").steps == 10
        assert isinstance(ledger.reserve(spending(3)), Reserved)


def test_open_ledger_that_is_put_back_meanwhile_is_refused_at_its_next_change(path, tmp_path):
    spend(path)
    shutil.copytree(path.parent, tmp_path / "copy")
    spend(path, 2)
    older = LedgerPlace(tmp_path / "copy" / path.name, place_of(path).witness, "normal")
    with Ledger.open_existing(older, COHORT.name) as ledger:
        with pytest.raises(LedgerError, match="lacks entry"):
            ledger.reserve(spending(2))
        assert ledger.spent("train").steps == 5
        assert "lacks entry" in ledger.verify()[0]


@pytest.mark.parametrize("what", ["renamed", "copied"])
def test_ledger_at_another_path_is_refused_until_its_second_place_is_told(path, what):
    spend(path)
    moved = path.with_name("moved.sqlite")
    (shutil.move if what == "renamed" else shutil.copy)(path, moved)
    place = LedgerPlace(moved, place_of(path).witness, "normal")
    with pytest.raises(
        LedgerError, match=r"belongs to the ledger at \.\./site.sqlite.*moved.sqlite.*repair"
    ):
        Ledger.open(place, COHORT)
    assert repair_witness(place)
    with Ledger.open(place, COHORT) as ledger:
        assert ledger.spent("train").steps == 5
        assert [entry.content["kind"] for entry in ledger.entries()][-1] == "second place made anew"
    if what == "copied":
        with pytest.raises(LedgerError, match="lacks entry"):
            Ledger.open(place_of(path), COHORT)


def test_second_place_behind_a_link_is_told_every_head(path, tmp_path):
    place = place_of(path)
    elsewhere = tmp_path / "another disk" / "second.json"
    open_ledger(path, COHORT).close()
    elsewhere.parent.mkdir()
    place.witness.rename(elsewhere)
    place.witness.symlink_to(elsewhere)
    with pytest.raises(LedgerError, match="belongs to the ledger at"):
        Ledger.open(place, COHORT)
    assert repair_witness(place)
    with Ledger.open(place, COHORT) as ledger:
        complete(ledger, spending(1))
        position = ledger.entries()[-1].position
    assert place.witness.is_symlink()
    assert json.loads(elsewhere.read_text())["position"] == position


def test_text_of_a_second_place_reaches_no_terminal_raw(path):
    with open_ledger(path, COHORT):
        witness = place_of(path).witness
    witness.write_text(
        json.dumps(json.loads(witness.read_text()) | {"ledger": "\ud800\x1b[31m\n" + "x" * 9000})
    )
    with pytest.raises(LedgerError) as error:
        Ledger.open(place_of(path), COHORT)
    assert (str(error.value).isprintable(), len(str(error.value)) < 1500) == (True, True)


def test_ledger_without_its_entries_or_its_key_is_not_taken_for_a_new_one(path):
    open_ledger(path, COHORT).close()
    execute(path, "DELETE FROM secret")
    with Ledger.open_existing(place_of(path), COHORT.name) as ledger:
        assert "secret key is missing" in ledger.verify()[0]
    execute(path, "DELETE FROM chain")
    with pytest.raises(LedgerError, match=r"lacks entry 1.*newest"):
        Ledger.open_existing(place_of(path), COHORT.name)


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"{",
        b"[]",
        b'"text"',
        b'{"format":1,"ledger":"x","position":true,"head":"' + b"0" * 64 + b'"}',
        b'{"format":1,"ledger":"x","position":%d,"head":"' % 2**63 + b"0" * 64 + b'"}',
        b"[" * 60_000,
        b'{"format":1,"ledger":1,"position":1,"head":"00"}',
    ],
)
def test_second_place_that_is_lost_or_unreadable_stops_the_ledger_until_it_is_repaired(
    path, content
):
    place = place_of(path)
    with open_ledger(path, COHORT) as ledger:
        complete(ledger, spending(1))
        place.witness.unlink()
        if content is not None:
            place.witness.write_bytes(content)
        with pytest.raises(
            LedgerError, match=r"does not exist: put it back|is unreadable: put it back"
        ):
            ledger.reserve(spending(2))
    with pytest.raises(LedgerError, match="repair"):
        Ledger.open(place, COHORT)
    with pytest.raises((LedgerError, UserError)):
        Ledger.create(place, COHORT)
    if content is not None:
        with pytest.raises(LedgerError, match=r"is unreadable: .*move what lies there away"):
            repair_witness(place)
        assert place.witness.read_bytes() == content
        place.witness.unlink()
    assert [repair_witness(place), repair_witness(place)] == [True, False]
    with Ledger.open(place, COHORT) as ledger:
        assert isinstance(ledger.reserve(spending(2)), Reserved)


def test_pipe_in_place_of_the_second_place_is_unreadable_and_nobody_waits_for_it(path):
    open_ledger(path, COHORT).close()
    place_of(path).witness.unlink()
    os.mkfifo(place_of(path).witness)
    with pytest.raises(LedgerError, match="is unreadable: put it back"):
        Ledger.open(place_of(path), COHORT)


def test_crash_between_the_two_places_refuses_nothing_and_forgets_nothing(path, monkeypatch):
    with open_ledger(path, COHORT) as ledger, monkeypatch.context() as patch:
        first = ledger.reserve(spending(1))
        patch.setattr(ledger_module, "advance_witness", lambda *_: sys.exit("crash"))
        with pytest.raises(SystemExit):
            ledger.commit(first.reservation, b"never sent")
    seen = json.loads(place_of(path).witness.read_text())
    with Ledger.open(place_of(path), COHORT) as ledger:
        assert seen["position"] < len(ledger.entries())
        assert ledger.spent("train").steps == 5
        # Before a stored reply leaves, the second place knows of it: it cannot be forgotten and
        # drawn again.
        assert ledger.reserve(spending(1)) == StoredReply(b"never sent")
        assert json.loads(place_of(path).witness.read_text())["head"] == ledger.head()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE chain SET content = replace(content, '\"steps\":5', '\"steps\":1')",
        "DELETE FROM chain WHERE position = 4",
        "INSERT INTO chain SELECT 0, previous, content, head FROM chain WHERE position = 1",
        "UPDATE chain SET head = 'x' WHERE position = 2",
        "UPDATE reply SET body = x'00'",
        "DELETE FROM reply",
    ],
)
def test_changed_entries_and_replies_stop_the_ledger(path, ledger, statement):
    complete(ledger, spending(1))
    execute(path, statement)
    assert "was changed" in ledger.verify()[0]
    actions = [lambda: ledger.reserve(spending(1))]
    if "reply" not in statement:
        actions += [lambda: ledger.spent("train"), ledger.head]
    for action in actions:
        with pytest.raises(LedgerError, match="was changed"):
            action()


@pytest.mark.parametrize(("durability", "whole"), [("full", 5), ("normal", 1)])
def test_what_new_entries_add_is_what_the_whole_chain_says(path, monkeypatch, durability, whole):
    """A real site reads its chain whole at every opening, a simulated one once in a process."""
    open_ledger(path, COHORT, durability).close()
    monkeypatch.setattr(ledger_module, "KEPT", Kept())
    reads = list[int]()
    read_chain = state_module.read_chain

    def counted(*connection, **after):
        reads.append(len(connection) + len(after))
        return read_chain(*connection, **after)

    monkeypatch.setattr(state_module, "read_chain", counted)
    for round_ in range(1, 5):
        with Ledger.open(place_of(path, durability), COHORT) as ledger:
            before = ledger.state(), len(ledger.state().reservations)
            complete(ledger, spending(round_))
            assert len(before[0].reservations) == before[1]
            assert ledger.state() == state_module.read_state(ledger.entries(), COHORT.name)
            assert ledger.state().spent_in("train") == (
                dataclasses.replace(PLAN[0], steps=5 * round_),
            )
            assert ledger.head() == ledger.entries()[-1].head
            assert ledger.reserve(spending(round_), ledger.entries()[0].head) == StoredReply(
                b"reply"
            )
            assert ledger.reserve(spending(round_), "f" * 64) == Refused(
                RefusalCode.LEDGER_ROLLED_BACK, "ledger_head"
            )
    with Ledger.open(place_of(path, durability), COHORT) as ledger:
        assert sum(known == 1 for known in reads) == whole
        kept = ledger._connection.execute("SELECT COUNT(*) FROM reply").fetchone()[0]
        assert (kept, ledger.verify()) == (4 if durability == "full" else 1, []), (
            "its bank has the earlier ones"
        )
        ledger.count_evaluation(OTHER_RUN, "other", 1, 1)
        assert ledger.reserve(spending(4)) == StoredReply(b"reply")
        execute(path, "DELETE FROM reply WHERE reservation = (SELECT MAX(reservation) FROM reply)")
        assert "missing" in ledger.verify()[0]
    at = path.stat()
    execute(path, "UPDATE chain SET content = replace(content, '\"steps\":5', '\"steps\":1')")
    os.utime(path, ns=(at.st_atime_ns, at.st_mtime_ns))
    assert path.stat().st_size == at.st_size
    with pytest.raises(LedgerError, match="was changed"):
        Ledger.open(place_of(path, durability), COHORT)


def test_what_a_killed_process_wrote_into_a_simulated_ledger_stays(path):
    spend(path, 1)
    child = os.fork()
    if child == 0:
        complete(open_ledger(path, COHORT), spending(2))
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert path.with_name(f"{path.name}-wal").exists()
    with open_ledger(path, COHORT) as ledger:
        assert (ledger.spent("train").steps, ledger.verify()) == (10, [])
        assert ledger.reserve(spending(2)) == StoredReply(b"reply")


def test_verify_notices_spend_beyond_the_budget(ledger, monkeypatch):
    monkeypatch.setattr(decision, "admitted_steps", lambda rule, spent, requested, budget: 30)
    complete(ledger, spending(1, plan=(GaussianEvent(10.0, 1.0, 30),), steps=30))
    assert "admits only 25" in ledger.verify()[0]


def test_only_an_open_reservation_is_completed(ledger):
    done = complete(ledger, spending(1)).reservation
    for number, was in ((done, "is done"), (99, "is unknown")):
        for action in (lambda number: ledger.commit(number, b"again"), ledger.fail):
            with pytest.raises(LedgerError, match=was):
                action(number)
    assert ledger.reserve(spending(1)) == StoredReply(b"reply")


def test_steps_outside_the_plan_and_two_sampling_rates_are_mistakes():
    for first_step, steps in ((-1, 5), (0, 0), (16, 5)):
        with pytest.raises(ValueError, match="within the plan's 20 steps"):
            spending(1, first_step=first_step, steps=steps)
    for plan in ((), (GaussianEvent(1.0, 0.1, 10), GaussianEvent(1.0, 0.2, 10))):
        with pytest.raises(ValueError, match="one sampling rate"):
            spending(1, plan=plan)


ENDS = st.sampled_from(["commit", "fail", "crash"])


@settings(
    deadline=None,
    derandomize=True,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    requests=st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 8), ENDS), max_size=25
    )
)
def test_recorded_spend_is_the_true_spend_and_never_passes_the_budget_property(
    tmp_path_factory, requests
):
    true_spend: dict[int, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_module, "this_process", lambda: DEAD)
        with open_ledger(tmp_path_factory.mktemp("ledger") / "l.sqlite", COHORT) as ledger:
            for run, round_, steps, end in requests:
                request = spending(round_, run=str(run) * 16, steps=steps)
                try:
                    answer = ledger.reserve(request)
                except LedgerError:
                    with pytest.raises(LedgerError, match="keeps the reply to its last round"):
                        ledger.reserve(request)
                    continue
                if isinstance(answer, Reserved):
                    # What a dead process left open is worked on again under the same reservation.
                    true_spend[answer.reservation] = answer.steps
                    if end == "commit":
                        ledger.commit(answer.reservation, b"r")
                    elif end == "fail":
                        ledger.fail(answer.reservation)
            assert ledger.spent("train").steps == sum(true_spend.values()) <= 25
            assert ledger.verify() == []


# Disjoint parts compose in parallel: a cohort costs what its dearest part does (Zhang et al. 2022,
# Prop. A.1).

SHARED = Cohort("cohort", "patient", 3.0, DELTA, "add_or_remove_one")
HISTORIES = {
    "train": (GaussianEvent(2.0, 0.1, 100),),
    "recalibration": (GaussianEvent(20.0, 1.0, 40),),
    "test": (GaussianEvent(6.0, 1.0, 2),),
}


@pytest.mark.parametrize("order", [PARTS, PARTS[::-1]])
def test_each_part_costs_what_it_would_alone_whatever_the_others_spent(path, order):
    with open_ledger(path, SHARED) as ledger:
        for part in order:
            history = HISTORIES[part]
            steps = HISTORIES[part][0].steps
            assert (
                complete(
                    ledger, spending(1, part=part, purpose=part, plan=history, steps=steps)
                ).steps
                == steps
            )
        together = {part: ledger.spent(part).epsilon for part in PARTS}
    alone = {
        part: pld_epsilon(history, DELTA, "add_or_remove_one")
        for part, history in HISTORIES.items()
    }
    assert together == pytest.approx(alone)
    assert max(together.values()) <= SHARED.epsilon < sum(together.values())
