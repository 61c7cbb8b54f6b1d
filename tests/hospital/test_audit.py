"""The audit log against itself and against the ledger: what was edited, cut, exchanged or could not be written."""

import errno
import json
import multiprocessing
import os
import re
import shutil
import signal
import tomllib
from datetime import UTC, datetime

import pytest

from fl_dpbayes.config.approvals import node_log
from fl_dpbayes.config.site_file import read_site_file
from fl_dpbayes.data.site_ledger import create_ledger
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import audit_log
from fl_dpbayes.files.audit_chain import read_chain_of_log
from fl_dpbayes.files.audit_log import audit_log_path, mark_path, read_audit_log, record
from fl_dpbayes.files.hash_chain import chain_head
from fl_dpbayes.hospital.audit import log_findings
from fl_dpbayes.hospital.bundle import decision, read_bundle
from fl_dpbayes.privacy.ledger import file as ledger_file
from fl_dpbayes.privacy.ledger.file import LedgerError
from fl_dpbayes.privacy.ledger.ledger import Ledger
from tests.asking import ROWS, evaluate, refusal_of
from tests.ledgers import PLAN, spending


@pytest.fixture
def asked(table_site):
    """A hospital's node that was asked for its card, two rounds, one of them twice, and an evaluation."""
    site = table_site()
    site.write(ROWS)
    site.answer("query")
    for ask in (
        site.train,
        site.train,
        lambda: site.train(round=2, first_step=1),
        lambda: evaluate(site),
    ):
        assert refusal_of(ask()) is None
    assert refusal_of(site.train(round=3, steps=0)) == ("BAD_REQUEST", "steps")
    return site


def verified(command, site) -> tuple[int, str]:
    status, said, error = command("site", "audit", "verify", site.path)
    assert not error
    return status, said


def lines_of(site) -> list[str]:
    return [line for line in audit_log_path(site.path).read_text().split("\n") if line]


def write_lines(site, lines: list[str]) -> None:
    audit_log_path(site.path).write_text("".join(f"\n{line}\n" for line in lines))


def test_a_log_that_nobody_touched_is_whole_and_every_paid_step_is_in_both(asked, command) -> None:
    status, said = verified(command, asked)
    assert (status, said.startswith("The log is whole: 10 lines")) == (0, True), said
    steps = dict.fromkeys(("train", "test"), 0)
    for line in read_audit_log(asked.path):
        charge = line.get("charge") or {"part": "train", "steps": 0}
        steps[charge["part"]] += charge["steps"]
    with asked.ledger() as ledger:
        assert steps == {part: ledger.spent(part).steps for part in steps}
        entries = [
            entry.content
            for entry in ledger.entries()
            if entry.content["kind"] in ("reserved", "done")
        ]
        assert all(entry["log"]["number"] for entry in entries)


# What is done to the lines -> what is said.
EDITS = {
    "epsilon": (
        lambda lines: [line.replace('"epsilon_so_far": ', '"epsilon_so_far": 0') for line in lines],
        "line 3 is not as it was written",
    ),
    "decision": (
        lambda lines: [*lines[:-1], lines[-1].replace("refused", "answered")],
        "line 10 is not as it was",
    ),
    "one line cut out": (lambda lines: lines[:4] + lines[5:], "line 5 is missing"),
    "the first lines": (lambda lines: lines[2:], "lines 1 to 2 are missing"),
    "the last line": (lambda lines: lines[:-1], "line 10 is missing"),
    "the last paid lines": (
        lambda lines: lines[:-3],
        "which entry 12 of the ledger knows, is missing",
    ),
    "all": (lambda lines: [], "lines 1 to 10 are missing"),
    "exchanged": (
        lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]],
        "line 4 stands behind line 5",
    ),
    "twice": (lambda lines: [*lines, lines[-1]], "line 10 stands behind line 10"),
    "put in": (
        lambda lines: [*lines[:4], '{"decision": "answered"}', *lines[4:]],
        "without number and hash",
    ),
    "made garbage": (lambda lines: [*lines[:4], lines[4][:30], *lines[5:]], "line 5 is missing"),
    "hashes taken away": (
        lambda lines: [re.sub(', "head.*', "}", line) for line in lines[:4]] + lines[4:],
        "line 5 is the first with a hash",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("edit", EDITS)
def test_edited_log_is_told_by_verify_and_by_the_statement_for_good(
    asked, command, edit: str
) -> None:
    change, told = EDITS[edit]
    write_lines(asked, change(lines_of(asked)))
    for again in range(2):
        status, said = verified(command, asked)
        assert (status, told in said) == (1, True), said
        status, said, _ = command("site", "statement", asked.path)
        assert (status, "GAP: " in said) == (1, True), said
        # The site goes on, and what is said later does not close the gap.
        assert refusal_of(asked.train(round=3 + again, first_step=2 + again)) is None


def rehashed(lines: list[str]) -> list[str]:
    """What somebody makes who knows how the log is made: every number and hash anew."""
    head, made = audit_log.FIRST_HEAD, []
    for number, line in enumerate(lines, 1):
        event = json.loads(line)
        event.pop("head")
        event["number"] = number
        text = json.dumps(event)[:-1]
        head = chain_head(head, text)
        made.append(f"{text}{audit_log._tail(head)}")
    return made


@pytest.mark.parametrize("first", [0, 3])
def test_log_that_was_made_anew_with_all_its_hashes_is_not_what_the_ledger_knows(
    asked, command, first: int
) -> None:
    made = rehashed(lines_of(asked)[:first] + lines_of(asked)[first + 1 :])
    write_lines(asked, made)
    event = json.loads(made[-1])
    mark = json.dumps({"number": event["number"], "head": event["head"]})
    mark_path(audit_log_path(asked.path)).write_text(mark)
    status, said = verified(command, asked)
    assert (status, "of the ledger knows, is not as it was written" in said) == (1, True), said


def test_log_and_mark_that_are_gone_together_are_told_by_the_ledger(asked, command) -> None:
    for path in (audit_log_path(asked.path), mark_path(audit_log_path(asked.path))):
        path.unlink()
    assert "of the ledger knows, is missing" in verified(command, asked)[1]
    asked.answer("query")
    assert verified(command, asked)[0] == 1


def test_mark_that_is_gone_is_told_for_good(asked, command) -> None:
    write_lines(asked, lines_of(asked)[:-1])
    mark_path(audit_log_path(asked.path)).unlink()
    assert "the mark beside the log" in verified(command, asked)[1]
    asked.answer("query")
    assert "line 10 is missing" in verified(command, asked)[1]


@pytest.mark.parametrize("written", [0, 60])
def test_no_step_is_paid_while_the_log_cannot_be_written(
    asked, command, monkeypatch, written: int
) -> None:
    write, path = os.write, audit_log_path(asked.path)

    def full(descriptor: int, content: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}") != str(path):
            return write(descriptor, content)
        if not written:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, content[:written])

    with asked.ledger() as ledger:
        before = ledger.head()
    with monkeypatch.context() as patch:
        patch.setattr("os.write", full)
        for ask in (lambda: asked.train(round=3, first_step=2), lambda: evaluate(asked, round=2)):
            assert refusal_of(ask()) == ("AUDIT_LOG_ERROR", "")
    with asked.ledger() as ledger:
        assert ledger.head() == before
    assert refusal_of(asked.train(round=3, first_step=2)) is None
    status, said = verified(command, asked)
    assert (status, "cut off while they were written" in said) == (0, bool(written)), said


def _killed(site, place: str) -> None:
    """Ask for a round in a process that is killed where `place` says."""
    import clients.answer
    import clients.guard
    import clients.pay
    from fl_dpbayes.privacy.ledger.ledger import Ledger

    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if place == "before the ledger":
        Ledger.reserve = die
    elif place == "before the work":
        clients.train.run_chain = die
    elif place == "before the last line":
        clients.guard._record = die
    elif place == "before the mark":
        audit_log._write_mark = die
    else:
        commit = Ledger.commit
        Ledger.commit = lambda *given: (commit(*given), die())
    site.train(round=3, first_step=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    [
        "before the ledger",
        "before the work",
        "after the commit",
        "before the last line",
        "before the mark",
    ],
)
def test_crash_between_log_and_ledger_is_gone_on_with_and_is_no_edit(
    asked, command, place: str
) -> None:
    process = multiprocessing.get_context("fork").Process(target=_killed, args=(asked, place))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    status, said = verified(command, asked)
    assert status == 0, said
    assert ("its process ended before it told of an answer" in said) == (
        place not in ("before the ledger", "before the mark")
    )
    # The same request goes on, and its steps are paid once.
    assert refusal_of(asked.train(round=3, first_step=2)) is None
    assert verified(command, asked)[0] == 0
    with asked.ledger() as ledger:
        assert ledger.spent("train").steps == 3


def _asked_on_a_full_disk(site) -> None:
    def full(*_: object) -> str:
        raise LedgerError("database or disk is full")

    Ledger.commit = full
    assert refusal_of(site.train(round=3, first_step=2)) == ("LEDGER_ERROR", "")


def test_reply_that_found_no_room_in_the_ledger_is_answered_later_and_paid_once(
    asked, command
) -> None:
    process = multiprocessing.get_context("fork").Process(
        target=_asked_on_a_full_disk, args=(asked,)
    )
    process.start()
    process.join()
    assert process.exitcode == 0
    for _ in range(2):
        assert verified(command, asked)[0] == 0
        assert refusal_of(asked.train(round=3, first_step=2)) is None
        with asked.ledger() as ledger:
            assert ledger.spent("train").steps == 3


def test_rotation_keeps_the_chain_and_only_what_twenty_files_cannot_hold_goes(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(audit_log, "MOST_BYTES", 500)
    site_file = tmp_path / "north.toml"
    for number in range(12):
        record(site_file, {"decision": number})
    chain = read_chain_of_log(site_file)
    assert (chain.problems, sorted(chain.lines)) == ([], list(range(1, 13)))
    (tmp_path / "north.audit.1.jsonl").unlink()
    assert any("missing" in problem for problem in read_chain_of_log(site_file).problems)
    for number in range(80):
        record(site_file, {"decision": number})
    chain = read_chain_of_log(site_file)
    assert chain.problems == []
    assert "20 files are kept" in chain.notes[0]


def test_ledger_that_paid_without_a_line_and_line_without_a_reservation_are_told(
    asked, command
) -> None:
    with asked.ledger() as ledger:
        ledger.reserve(spending(1, run="f" * 32, plan=PLAN))
    assert "was made without a line of the log" in verified(command, asked)[1]
    record(
        asked.path, {"decision": "answered", "asked": 1, "charge": {"part": "train", "steps": 7}}
    )
    assert "tells of 7 steps that the ledger does not hold" in verified(command, asked)[1]


def test_a_ledger_that_was_put_back_does_not_fit_the_log(asked, command, tmp_path) -> None:
    copies = {
        path: tmp_path / path.name for path in (asked.folder / "ledger").glob("north.sqlite*")
    }
    copies |= {path: tmp_path / f"w-{path.name}" for path in (asked.folder / "witness").iterdir()}
    for path, copy in copies.items():
        shutil.copy(path, copy)
    assert refusal_of(asked.train(round=3, first_step=2)) is None
    for path, copy in copies.items():
        shutil.copy(copy, path)
    assert "1 step that the ledger does not hold" in verified(command, asked)[1]


def test_log_whose_beginning_was_cut_is_told_beside_a_file_that_looks_like_the_oldest_one(
    asked, command
) -> None:
    write_lines(asked, lines_of(asked)[5:])
    oldest = audit_log.numbered(audit_log_path(asked.path), audit_log.FILES_KEPT - 1)
    oldest.write_text("\n" * 2 * audit_log.MOST_LINE_BYTES)
    status, said = verified(command, asked)
    assert (status, "lines 1 to 5 are missing" in said) == (1, True), said


def test_lines_of_a_cohort_that_the_site_had_before_are_held_against_its_entries(
    asked, command
) -> None:
    other_patients = [(f"q{patient}", *values) for patient, *values in ROWS]
    ledger = tomllib.loads(asked.path.read_text())["ledger"] | {"cohort": "north 2027"}
    asked.write(other_patients, ledger=ledger)
    create_ledger(read_site_file(asked.path)).close()
    assert verified(command, asked)[0] == 0
    assert refusal_of(asked.train(run="cd" * 16)) is None
    assert verified(command, asked)[0] == 0
    assert command("site", "statement", asked.path)[0] == 0
    record(
        asked.path, {"decision": "answered", "asked": 1, "charge": {"part": "train", "steps": 7}}
    )
    assert "tells of 7 steps that the ledger does not hold" in verified(command, asked)[1]
    write_lines(asked, lines_of(asked)[:5] + lines_of(asked)[6:])
    assert "line 6, which entry 7 of the ledger knows, is missing" in verified(command, asked)[1]


def test_log_and_ledger_that_were_put_back_together_are_told_by_the_second_place(
    asked, command
) -> None:
    folder = asked.folder / "ledger"
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert refusal_of(asked.train(round=3, first_step=2)) is None
    for path in folder.iterdir():
        path.unlink()
    for path, content in before.items():
        path.write_bytes(content)
    for words in (("audit", "verify"), ("statement",)):
        status, said, _ = command("site", *words, asked.path)
        assert (status, "GAP: the ledger" in said) == (1, True), said


def _ask_on(site) -> None:
    for number in range(1000):
        run, step = divmod(number, 8)
        site.answer("query")
        site.train(run=f"{run:032x}", round=step + 1, first_step=step)


@pytest.mark.slow
def test_log_that_is_written_meanwhile_is_whole(asked) -> None:
    process = multiprocessing.get_context("fork").Process(target=_ask_on, args=(asked,))
    process.start()
    try:
        assert [log_findings(asked.path).problems for _ in range(60)] == [[]] * 60
        assert process.is_alive()
    finally:
        process.kill()
        process.join()


def test_log_of_the_node_is_checked_as_well(asked, command) -> None:
    for content in (b"one", b"two"):
        decision(asked.path, read_bundle(content), content)
    assert verified(command, asked)[0] == 0
    path = audit_log_path(node_log(asked.path))
    path.write_text(path.read_text().replace("held", "seen"))
    status, said = verified(command, asked)
    assert (status, "log of the node: line 1 is not as it was written" in said) == (1, True), said


@pytest.mark.parametrize("crashes", [1, 2, 5])
def test_crashes_between_a_line_and_its_mark_are_no_gap(
    tmp_path, monkeypatch, crashes: int
) -> None:
    site_file = tmp_path / "north.toml"
    record(site_file, {"decision": "answered"})
    write_mark = audit_log._write_mark

    def killed(mark: int, line: audit_log.AuditLine) -> None:
        if line.number == written:
            raise KeyboardInterrupt
        write_mark(mark, line)

    monkeypatch.setattr(audit_log, "_write_mark", killed)
    for written in range(2, 2 + crashes):
        with pytest.raises(KeyboardInterrupt):
            record(site_file, {"decision": "answered"})
        chain = read_chain_of_log(site_file)
        assert (chain.problems, len(chain.lines)) == ([], written)


DEEP = "[" * 100_000
MARKS = {
    "deep": DEEP,
    "infinite": json.dumps({"number": float("inf"), "head": "a" * 64}),
    "true": json.dumps({"number": True, "head": "a" * 64}),
    "19 digits": json.dumps({"number": 10**18, "head": "a" * 64}),
}


@pytest.mark.parametrize("mark", MARKS)
def test_mark_that_is_no_mark_is_told_and_the_log_goes_on(tmp_path, mark: str) -> None:
    site_file = tmp_path / "north.toml"
    for _ in range(3):
        record(site_file, {"decision": "answered"})
    mark_path(audit_log_path(site_file)).write_text(MARKS[mark])
    assert "is missing" in read_chain_of_log(site_file).problems[0]


@pytest.mark.parametrize("place", ["log", "mark"])
def test_pipe_in_place_of_the_log_is_refused_and_nobody_waits_for_it(asked, place: str) -> None:
    log = audit_log_path(asked.path)
    path = log if place == "log" else mark_path(log)
    path.unlink()
    os.mkfifo(path)
    with asked.ledger() as ledger:
        head = ledger.head()
    assert refusal_of(asked.train(round=3, first_step=2)) == ("AUDIT_LOG_ERROR", "")
    with asked.ledger() as ledger:
        assert ledger.head() == head
    with pytest.raises(audit_log.AuditLogError, match="it is no regular file"):
        record(asked.path, {})
    with pytest.raises(UserError, match="cannot be read: it is no regular file"):
        log_findings(asked.path)


def test_line_that_was_made_too_deep_to_read_is_told(asked, command) -> None:
    write_lines(
        asked,
        [line.replace('"decision": "refused"', f'"decision": {DEEP}') for line in lines_of(asked)],
    )
    assert "line 10 is not as it was written" in verified(command, asked)[1]


def test_line_that_names_no_number_as_its_beginning_is_told(asked, command) -> None:
    lines = [re.sub('"asked": [0-9]+', '"asked": []', line) for line in lines_of(asked)]
    write_lines(asked, lines)
    assert "is not as it was written" in verified(command, asked)[1]


def test_statement_counts_on_where_the_clock_was_set_back_to_an_earlier_month(
    table_site, command, monkeypatch
) -> None:
    site = table_site()
    site.write(ROWS)
    now = datetime(2026, 12, 1, tzinfo=UTC)

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None) -> datetime:
            return now

    monkeypatch.setattr(ledger_file, "datetime", Clock)
    commit = Ledger.commit

    def commit_earlier(*given) -> str:
        nonlocal now
        now = datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC)
        return commit(*given)

    monkeypatch.setattr(Ledger, "commit", commit_earlier)
    assert refusal_of(site.train()) is None
    said = {}
    for month in ("2026-11", "2026-12"):
        status, said[month], error = command("site", "statement", site.path, "--month", month)
        assert (status, error) == (0, "")
        assert "the clock was set back before entry" in said[month]
    assert "train: 1 step" in said["2026-12"]
    assert "train: 1 step" not in said["2026-11"]
