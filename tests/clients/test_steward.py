"""The steward's word: each key of the policy, cohorts, the audit log and the statement."""

import shutil
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from rich.console import Console

import clients.train
from clients.subgroups import declared_groups
from fl_dpbayes.config.approvals import approvals_file
from fl_dpbayes.config.site_file import Policy
from fl_dpbayes.data.site import SiteSplit
from fl_dpbayes.files import audit_log
from fl_dpbayes.files.audit_log import audit_log_path, read_audit_log, record
from fl_dpbayes.hospital.bundle import decision, read_bundle
from fl_dpbayes.hospital.statement import print_statement
from fl_dpbayes.privacy.events import GaussianEvent
from fl_dpbayes.privacy.ledger.ledger import Refused
from fl_dpbayes.privacy.ledger.state import Cohort
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon
from fl_dpbayes.protocol.refusal import RefusalCode
from tests.asking import ROWS, evaluate, refusal_of, refused, rows_of
from tests.ledgers import complete, open_ledger, spending

LATER = {"plan": {"thinning": 2}, "run": "cd" * 16}
TODAY = datetime.now(UTC).date()
SPENT = "EVALUATIONS_EXHAUSTED"
MLP = {"model": {"kind": "mlp", "hidden": [4]}}


def with_policy(site, **keys: object) -> None:
    site.write(ROWS, policy={"max_run_epsilon": 4.0, "evaluation_release": "noised"} | keys)


def trains(changes):
    return lambda site: site.train(**changes)


def evaluations(count: int, **changes):
    def ask(site):
        for number in range(1, count):
            assert refusal_of(evaluate(site, round=number)) is None
            # The same request again is not counted again.
            assert refusal_of(evaluate(site, round=number)) is None
        return evaluate(site, round=count, **changes)

    return ask


KEYS = {
    "expires": (
        {"expires": str(TODAY - timedelta(days=1))},
        {"expires": str(TODAY)},
        trains({}),
        "POLICY_EXPIRED",
    ),
    "stop_file": ({"stop_file": "patients.csv"}, {"stop_file": "stop"}, trains({}), "SITE_STOPPED"),
    "stop_file not seen": (
        {"stop_file": "patients.csv/stop"},
        None,
        lambda site: site.answer("query"),
        "SITE_STOPPED",
    ),
    "no disk for it": (
        {"stop_file": "no disk/stop"},
        None,
        lambda site: site.answer("query"),
        "SITE_STOPPED",
    ),
    "max_parameters": (
        {"max_parameters": 5},
        {"max_parameters": 6},
        evaluations(1),
        "POLICY_DENIED model",
    ),
    "approved_plans": ({"approved_plans": ["0" * 64]}, {}, trains({}), "PLAN_NOT_APPROVED plan"),
    "models": (
        {"models": ["logistic"]},
        {"models": ["mlp"]},
        trains(MLP),
        "POLICY_DENIED model.kind",
    ),
    "allowed_code": (
        {},
        None,
        trains({"model": {"kind": "module", "factory": "a:b"}}),
        "POLICY_DENIED model.factory",
    ),
    "max_samples": (
        {"max_samples": 7},
        {"max_samples": 8},
        trains({}),
        "POLICY_DENIED plan.thinning",
    ),
    "max_run_epsilon": (
        {"max_run_epsilon": 3.9},
        {},
        trains({}),
        "POLICY_DENIED plan.privacy.epsilon",
    ),
    "max_evaluations_per_run": (
        {"max_evaluations_per_run": 2},
        {"max_evaluations_per_run": 3},
        evaluations(3),
        SPENT,
    ),
    "max_evaluations": (
        {"max_evaluations": 2},
        {"max_evaluations": 3},
        evaluations(3, run="ef" * 16),
        SPENT,
    ),
    "evaluation_release": ({"evaluation_release": "none"}, {}, evaluations(1), "NOT_SENT"),
}


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
def test_each_key_of_the_policy_is_enforced_and_its_refusal_is_a_line_of_the_log(
    table_site, key: str
) -> None:
    keys, allowed, ask, said = KEYS[key]
    site = table_site()
    with_policy(site, **keys)
    code, _, field = said.partition(" ")
    assert refusal_of(ask(site)) == (code, field)
    line = list(read_audit_log(site.path))[-1]
    assert (line["decision"], line["refusal"]) == ("refused", {"code": code, "field": field})
    assert "charge" not in line
    if allowed is not None:
        site = table_site("allowed")
        with_policy(site, **allowed)
        assert refusal_of(ask(site)) != (code, field)


def test_the_same_sums_of_other_records_are_another_evaluation(table_site) -> None:
    site = table_site()
    keys = {
        "policy": {"max_run_epsilon": 4.0, "evaluation_release": "public", "max_evaluations": 1}
    }
    site.write(ROWS, **keys)
    assert refusal_of(evaluate(site)) is None
    assert refusal_of(evaluate(site)) is None
    site.write([*ROWS, ("new", 1.0, 1.0, 1)], **keys)
    assert refusal_of(evaluate(site)) == ("EVALUATIONS_EXHAUSTED", "")


def test_evaluations_stay_counted_when_the_ledger_is_opened_anew_and_no_request_resets_them(
    table_site,
) -> None:
    site = table_site()
    with_policy(site, evaluation_release="public", max_evaluations=2)
    answers = [refusal_of(evaluate(site, run=f"{number:02x}" * 16)) for number in range(3)]
    assert answers == [None, None, ("EVALUATIONS_EXHAUSTED", "")]
    assert refusal_of(evaluate(site, run="00" * 16)) is None
    with site.ledger() as ledger:
        assert len(ledger.state().evaluations) == 2
        assert ledger.verify() == []
    charges = [
        line["charge"]["evaluation"] for line in read_audit_log(site.path) if "charge" in line
    ]
    assert charges == [1, 2, 2]


def test_public_sums_are_counted_so_a_site_without_a_ledger_has_none(table_site) -> None:
    assert Policy(max_run_epsilon=1.0).evaluation_release == "none"
    site, policy = table_site(), {"max_run_epsilon": 4, "evaluation_release": "public"}
    site.write(ROWS, ledger=None, role="held_out", units=50, policy=policy)
    assert refusal_of(evaluate(site)) == ("SITE_FILE_INVALID", "")


def test_a_plan_approved_at_the_site_runs_from_the_next_message_on_and_another_does_not(
    table_site, command
) -> None:
    site = table_site()
    with_policy(site, approved_plans=[])
    assert refusal_of(site.train()) == ("PLAN_NOT_APPROVED", "plan")
    digest = list(read_audit_log(site.path))[-1]["plan"]
    assert (
        "nothing readable waits" in command("site", "approve", site.path, digest[:12], "--yes")[2]
    )
    status, said, _ = command("site", "approve", site.path, digest, "--yes")
    assert (status, '"clip_norm": 0.5' in said) == (0, True)
    assert refusal_of(site.train()) is None
    assert refusal_of(site.train(round=2, first_step=1)) is None
    for other in (
        LATER,
        MLP,
        {"task": {"input_shape": [3], "classes": 2}},
        {"privacy": {"epsilon": 3.0}},
    ):
        assert refusal_of(site.train(**other)) == ("PLAN_NOT_APPROVED", "plan")
    # What an evaluation measures is part of what is approved: each table is paid for.
    for asked in ({}, {"trained_prevalence": (0.5, 0.5), "predictors": {"posterior": [1.0]}}):
        assert refusal_of(evaluate(site, **asked)) == ("PLAN_NOT_APPROVED", "plan")
    one, more = list(read_audit_log(site.path))[-2:]
    assert one["plan"] != more["plan"]
    assert refusal_of(evaluate(site, predictors={"last": [0.0]})) == (
        "BAD_REQUEST",
        "EvaluateRequest",
    )
    approvals_file(site.path).write_text("plans = 1")
    assert refusal_of(site.train(run="cd" * 16)) == ("SITE_FILE_INVALID", "")


def test_a_cohort_is_lowered_and_closed_by_a_command_for_good(table_site, command) -> None:
    site = table_site()
    with_policy(site)
    assert refusal_of(site.train()) is None
    with site.ledger() as ledger:
        spent = ledger.spent("train").epsilon
    for epsilon in (9, 8, 0):
        assert (
            "not between 0 and 8"
            in command("site", "ledger", "lower", site.path, epsilon, "--yes")[2]
        )
    assert command("site", "ledger", "lower", site.path, spent * 1.05, "--yes")[0] == 0
    assert "not between" in command("site", "ledger", "lower", site.path, spent * 1.1, "--yes")[2]
    assert refusal_of(site.train(round=2, first_step=1)) == ("BUDGET_EXHAUSTED", "")
    assert refusal_of(site.train()) is None
    assert command("site", "ledger", "close", site.path, "--yes")[0] == 0
    for ask in (site.train, lambda: evaluate(site)):
        assert refusal_of(ask()) == ("COHORT_CLOSED", "")
    assert "closed" in command("site", "ledger", "lower", site.path, 0.1, "--yes")[2]
    assert "It is closed." in command("site", "ledger", "show", site.path)[1]
    assert len(rows_of(site.ledger())) == 1


def test_a_stock_of_steps_that_costs_more_than_the_lowered_budget_gives_no_further_step(
    tmp_path,
) -> None:
    plan = (GaussianEvent(1.0, 0.2, 20),)
    whole = Cohort(
        "a",
        "patient",
        pld_epsilon(plan, 1e-3, "add_or_remove_one") * 1.001,
        1e-3,
        "add_or_remove_one",
    )
    with open_ledger(tmp_path / "site.sqlite", whole) as ledger:
        complete(ledger, spending(1, plan=plan))
        assert ledger.state().rules["train"].name == "fixed schedule"
        ledger.restrict(ledger.spent("train").epsilon * 1.1)
        assert ledger.reserve(spending(2, plan=plan)) == Refused(RefusalCode.BUDGET_EXHAUSTED)
        assert ledger.verify() == []


def close(site) -> None:
    with site.ledger() as ledger:
        ledger.restrict(None)


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda site: (site.folder / "stop").touch(), "SITE_STOPPED"),
        (close, "COHORT_CLOSED"),
    ],
)
def test_what_was_begun_before_the_end_does_not_leave_after_it(
    table_site, monkeypatch, end, code: str
) -> None:
    site = table_site()
    with_policy(site, stop_file="stop")
    run_chain = clients.train.run_chain
    monkeypatch.setattr(
        "clients.train.run_chain", lambda *given, **keys: (end(site), run_chain(*given, **keys))[1]
    )
    assert refusal_of(site.train()) == (code, "")
    assert list(read_audit_log(site.path))[-1]["charge"]["steps"] == 1
    (site.folder / "stop").unlink(missing_ok=True)
    assert refusal_of(site.train()) == (None if code == "SITE_STOPPED" else (code, ""))
    assert [row.state for row in rows_of(site.ledger())] == ["done"]


@pytest.mark.parametrize("counted", [20, "unlimited"])
def test_a_closed_cohort_lets_no_public_sums_out(table_site, counted) -> None:
    site = table_site()
    with_policy(
        site, evaluation_release="public", max_evaluations=counted, max_evaluations_per_run=counted
    )
    assert refusal_of(evaluate(site)) is None
    close(site)
    assert refusal_of(evaluate(site)) == ("COHORT_CLOSED", "")


GROUPS = {"a": 30, "b": 20, "c": 4, "d": 9}


@pytest.mark.parametrize(
    ("declared", "least", "expected"),
    [
        ("abcd", 1, GROUPS),
        ("x", 1, None),
        ("", 1, None),
        ("ab", 14, {"a": 30, "other": 33}),
        *((declared, 10, {"a": 30, "b": 20, "other": 13}) for declared in ("ab", "abcd")),
        # Four would be left out, and follow from the rest: the smallest group joins them.
        ("abd", 5, {"a": 30, "b": 20, "other": 13}),
    ],
)
def test_values_that_are_not_declared_or_too_rare_are_other(
    declared: str, least: int, expected
) -> None:
    values, units = (
        np.repeat(list(GROUPS), [2 * size for size in GROUPS.values()]),
        np.repeat(np.arange(63), 2),
    )
    part = SiteSplit(
        np.zeros((126, 1)), np.zeros(126), units, 63, groups={"ward": values, "name": values}
    )
    groups = {"ward": tuple(declared)} if declared else {}
    found = declared_groups(
        part, Policy(max_run_epsilon=1.0, groups=groups, least_group_units=least)
    )
    if expected is None:
        assert found == {}
        return
    names, counts = np.unique(found["ward"], return_counts=True)
    assert found.keys() == {"ward"}
    assert dict(zip(names.tolist(), (counts // 2).tolist(), strict=True)) == expected


def test_the_audit_log_says_what_was_asked_decided_charged_and_released(
    table_site, monkeypatch
) -> None:
    site = table_site()
    with_policy(site)
    for ask in (
        lambda: site.answer("query"),
        site.train,
        site.train,
        lambda: site.train(round=2, steps=0),
    ):
        ask()
    monkeypatch.setattr("clients.train.run_chain", lambda *_, **__: 1 / 0)
    site.train(round=2, first_step=1)
    lines = list(read_audit_log(site.path))
    begun = [line["number"] for line in lines if line["decision"] == "asked"]
    card, first, again, bad, failed = (line for line in lines if line["decision"] != "asked")
    assert [line["asked"] for line in (first, again, failed)] == begun
    assert audit_log_path(site.path) == site.folder / "ledger" / "site.audit.jsonl"
    assert (card["message"], card["site"], card["decision"]) == ("query", "north", "answered")
    assert (first["run"], first["round"], first["flower_run"]) == ("ab" * 16, 1, "1")
    assert all(len(first[key]) == 64 for key in ("request", "plan", "code"))
    assert first["charge"]["steps"] == 1 < first["charge"]["epsilon_so_far"]
    assert (again["charge"], again["released"]) == (
        {"part": "train", "steps": 0},
        first["released"],
    )
    assert (first["released"]["arrays"], first["released"]["bytes"]) == (4, 48)
    assert bad["refusal"]["code"] == "BAD_REQUEST"
    assert (failed["refusal"]["code"], failed["charge"]) == (
        "INTERNAL",
        {"part": "train", "steps": 1},
    )


def test_nothing_leaves_without_its_line(table_site) -> None:
    site = table_site()
    with_policy(site)
    audit_log_path(site.path).mkdir()
    for reply in (site.answer("query"), site.train()):
        assert refusal_of(reply) == ("AUDIT_LOG_ERROR", "")
        assert "arrays" not in reply.content
    audit_log_path(site.path).rmdir()
    (site.folder / "ledger").rename(site.folder / "elsewhere")
    assert refusal_of(site.train()) == ("LEDGER_ERROR", "")
    shutil.rmtree(site.folder / "ledger")
    (site.folder / "elsewhere").rename(site.folder / "ledger")
    # What was paid for is sent when the log can be written again.
    assert refusal_of(site.train()) is None
    assert len(rows_of(site.ledger())) == 1


def test_the_audit_log_is_rotated_and_a_line_that_was_cut_off_is_passed_over(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(audit_log, "MOST_BYTES", 200)
    monkeypatch.setattr(audit_log, "FILES_KEPT", 3)
    site_file = tmp_path / "north.toml"
    for number in range(12):
        record(site_file, {"number": number, "text": "\x1b" * 5})
    names = ["north.audit.1.jsonl", "north.audit.2.jsonl", "north.audit.jsonl"]
    assert sorted(path.name for path in tmp_path.glob("*.jsonl")) == names
    with audit_log_path(site_file).open("ab") as file:
        file.write(b'\n{"number": \xff12, "te')
    monkeypatch.setattr(audit_log, "MOST_BYTES", 10**6)
    record(site_file, {"number": 13})
    numbers = [line["number"] for line in read_audit_log(site_file)]
    assert numbers == [*range(numbers[0], 12), 13]
    assert numbers[0] > 0
    assert all(b"\x1b" not in path.read_bytes() for path in tmp_path.glob("*.jsonl"))


@pytest.mark.slow
def test_a_simulated_site_writes_no_audit_log_and_counts_no_evaluation(federation) -> None:
    run = federation("evaluation={release='public'}").run()
    assert not list(run.folder.rglob("*audit.jsonl"))
    with run.ledger("north") as ledger:
        assert not ledger.state().evaluations


def test_statement_says_what_left_in_a_month(table_site, capsys) -> None:
    site = table_site()
    with_policy(site)
    site.train()
    site.train()
    evaluate(site)
    site.train(round=2, steps=0)
    decision(site.path, read_bundle(b"foreign"), b"foreign")
    console = Console(width=120)
    print_statement(site.path, "", console)
    said = capsys.readouterr().out
    for words in (
        "north",
        "abababababababab",
        "answered",
        "BAD_REQUEST steps",
        "train: 1 step; epsilon 0.000 before",
        "test: 1 step;",
        "of 8",
        "not approved, held",
        "evaluations: 1, 1 in all",
    ):
        assert words in said, said
    print_statement(site.path, "2020-01", console)
    assert "No request came." in capsys.readouterr().out
    refused("write year and month", print_statement, site.path, "11", console)
