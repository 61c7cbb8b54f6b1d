"""`fl-dpbayes site init` writes a file that works as written.

`dry-run` tries a round and changes nothing.
"""

import io
import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pandas
import pytest

from fl_dpbayes.audit.canary_site import answer_of
from fl_dpbayes.config.scenario import load_scenario
from fl_dpbayes.config.site_file import read_own_site_file
from fl_dpbayes.data.site import load_site
from fl_dpbayes.hospital.ledger import ledger_of
from fl_dpbayes.hospital.planned_requests import planned_requests
from fl_dpbayes.protocol.evaluate import EvaluateRequest
from fl_dpbayes.protocol.recalibrate import RecalibrateRequest
from fl_dpbayes.protocol.train import TrainRequest
from fl_dpbayes.protocol.wire import plan_digest, read_header
from tests.asking import refusal_of
from tests.hospital.conftest import files_in, init_words


def test_answers_at_the_keyboard_and_options_give_the_same_file(made, command, monkeypatch) -> None:
    folder = made.parent
    # Scenario, data, name, then what is proposed, and the server.
    typed = (
        "trial.toml|patients.csv|north||sechs||||second/north.json|none, "
        "please|noised|server.example:443|"
    )
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.stdin", io.StringIO(typed.replace("|", "\n")))
    (folder / "ledger").rename(folder / "before")
    status, shown, error = command("site", "init", "asked.toml")
    assert (status, error) == (0, ""), shown
    assert "The column of patients (empty: each row is one) [patient]" in shown
    asked, given = (tomllib.loads(path.read_text()) for path in (folder / "asked.toml", made))
    assert asked.pop("connection") == {
        "superlink": "server.example:443",
        "ca": "ca.crt",
        "key": "node.key",
    }
    assert asked["split"].pop("key") != given["split"].pop("key")
    asked["ledger"]["witness"], asked["policy"]["evaluation_release"] = "witness/north.json", "none"
    assert asked == given
    assert (given["units"], given["ledger"]["epsilon"], given["policy"]["max_run_epsilon"]) == (
        160,
        2,
        2.0,
    )
    assert [
        folder.joinpath(path).is_file() for path in ("ledger/north.sqlite", "second/north.json")
    ] == [True, True]
    assert "site_column" not in given["source"]


def test_file_that_it_writes_loads_from_its_snapshot_and_every_key_has_a_comment(
    made, monkeypatch
) -> None:
    monkeypatch.setattr("fl_dpbayes.data.site.load_unscaled", None)
    assert load_site(read_own_site_file(made)).unit == "patient"
    tables = re.findall(r"^\[\w+\](.*)$", made.read_text(), re.M)
    assert len(tables) == 4
    assert all("#" in said for said in tables)


REFUSED = [
    (
        "trial.toml",
        'label = "outcome"',
        'label = "outcome"\nconstants = "from_records"',
        "is a release. Ask the coord",
    ),
    ("patients.csv", "pressure", "presure", "no column is called 'pressure': rename 'presure'"),
    ("trial.toml", "sites.north", "sites.east", "the scenario's sites are east, south"),
    (
        "trial.toml",
        'kind = "table"',
        'kind = "digits"',
        "data.source is no table, images or arrays",
    ),
]


@pytest.mark.parametrize(
    ("file", "old", "new", "said"), REFUSED, ids=[case[3][:12] for case in REFUSED]
)
def test_what_no_site_may_be_made_of_is_refused_and_writes_nothing(
    trial, refusal, file, old, new, said
) -> None:
    path = trial / file
    path.write_text(path.read_text().replace(old, new))
    before = files_in(trial)
    assert re.search(said, refusal(*init_words(trial)))
    assert files_in(trial) == before


def test_no_word_of_the_coordinator_becomes_a_key_of_the_site(trial, command) -> None:
    scenario, table = trial / "trial.toml", trial / "patients.csv"
    scenario.write_text(
        scenario.read_text().replace('"patient"', '"patient\\n[policy.groups]\\nsex = [1]\\n#"')
    )
    table.write_text(
        table.read_text().replace("patient", '"patient\n[policy.groups]\nsex = [1]\n#"', 1)
    )
    status, shown, error = command(*init_words(trial))
    assert (status, error) == (0, ""), shown


def test_nothing_is_overwritten_and_broken_data_make_no_ledger(
    trial, made, command, refusal, monkeypatch
) -> None:
    assert (made.stat().st_mode & 0o777, "exists already" in refusal("site", "init", made)) == (
        0o600,
        True,
    )
    before, (_, _, _, *words) = files_in(trial), init_words(trial)
    assert "is there already, of a site" in refusal("site", "init", trial / "again.toml", *words)
    assert "is 'https://a': host:port" in refusal(
        *init_words(trial, "south"), "--superlink", "https://a"
    )
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert command("site", "init", trial / "again.toml")[::2] == (130, "stopped\n")
    assert files_in(trial) == before
    table = trial / "patients.csv"
    table.write_text(table.read_text().replace("now", "4711"))
    status, shown, _ = command(*init_words(trial, "south"))
    assert (status, "4711" in shown, (trial / "ledger" / "south.sqlite").exists()) == (
        1,
        False,
        False,
    ), shown
    assert "correct what says FAIL, then:  fl-dpbayes site check" in shown


def dry_run(command, made: Path, **changes: str) -> tuple[int, str]:
    """Try a round with lines of the site file replaced."""
    text = made.read_text()
    for old, new in changes.items():
        text = re.sub(rf"^{old} = .*$", f"{old} = {new}", text, flags=re.M)
    made.write_text(text)
    before = files_in(made.parent)
    status, shown, error = command(
        "site", "dry-run", made, "--scenario", made.parent / "trial.toml"
    )
    assert files_in(made.parent) == before
    return status, shown + error


def test_dry_run_answers_a_full_round_and_leaves_every_byte_as_it_was(made, command) -> None:
    # Neither table nor snapshot is there: its records are made up.
    for path in ("patients.csv", "ledger/north.records.npz"):
        (made.parent / path).unlink()
    status, shown = dry_run(command, made, evaluation_release='"noised"')
    assert status == 0, shown
    assert re.search(r"PASS  train: .* 5 steps, epsilon [01]\.\d+ of 2\.00", shown), shown
    # The last state, of two classes with five inputs and a constant, as the audit log counts.
    assert f" {2 * (5 + 1) * 4} bytes of arrays would be sent; 5 steps" in shown, shown
    assert re.search(r"PASS  evaluate: answered in .*, [1-9][\d,]* bytes", shown), shown


def test_dry_run_is_under_the_site_s_own_policy(made, command) -> None:
    status, shown = dry_run(command, made)
    assert (status, "nothing would be sent: policy.evaluation_release is 'none'" in shown) == (
        0,
        True,
    )
    status, shown = dry_run(command, made, max_run_epsilon="1.0")
    assert (status, "FAIL  train: refused, POLICY_DENIED plan.privacy.epsilon" in shown) == (
        1,
        True,
    ), shown


def test_dry_run_of_a_small_site_without_a_column_of_patients_and_of_other_constants(
    made, command
) -> None:
    made.write_text(made.read_text().replace('unit_column = "patient"\n', ""))
    for units in (5, 11):
        status, shown = dry_run(command, made, units=str(units))
        assert (status, "PASS  train" in shown) == (0, True), shown
    status, shown = dry_run(command, made, centers="[60.0, 140.0]")
    assert (status, "not as in" in shown) == (2, True)


@pytest.mark.slow
def test_dates_and_undeclared_words_of_a_hospital_are_checked_and_made_up(trial, command) -> None:
    path = trial / "patients.csv"
    table = pandas.read_csv(path)
    table["admitted"] = pandas.date_range("2020-01-01", periods=len(table)).strftime("%d.%m.%Y")
    table["ward"] = ["east", "west", "a word of this hospital", "east"] * (len(table) // 4)
    table.to_csv(path, index=False)
    scenario = trial / "trial.toml"
    text = scenario.read_text()
    text = text.replace('"age", "pressure"]', '"age", "pressure", "admitted"]')
    text = text.replace("[65.0, 140.0]", "[65.0, 140.0, 200.0]")
    text = text.replace("[10.0, 20.0]", "[10.0, 20.0, 100.0]")
    text = text.replace('["never", "now"] }', '["never", "now"], ward = ["east", "west"] }')
    keys = 'others = { ward = "other" }\ndays_since = { admitted = 2020-01-01 }\n'
    scenario.write_text(text.replace("[sites.north]", f"{keys}[sites.north]"))
    status, shown, error = command(*init_words(trial))
    assert (status, error) == (0, ""), shown
    made = trial / "north.toml"
    status, shown = dry_run(command, made)
    assert (status, "PASS  train" in shown) == (0, True), shown
    # Of three numbers, one gap, two words of smokers and three of wards, and a constant.
    assert f" {2 * (9 + 1) * 4} bytes of arrays would be sent" in shown, shown
    path.write_text(path.read_text().replace("02.01.2020", "2nd of January"))
    _, shown, _ = command("site", "check", made, "--only", "data")
    assert (
        "FAIL column 'admitted': line 3: text where a date is due write it as 2020-12-31 or "
        "31.12.2020" in " ".join(shown.split())
    ), shown
    assert ("no value" in shown, "January" in shown) == (False, False)


def hostile_run(made: Path, number: int):
    """Ask the site of a written file for a made-up plan within its policy's numbers, as a coordinator may."""
    request, arrays = planned_requests(
        load_scenario(str(made.parent / "trial.toml")), read_own_site_file(made)
    )["train"]
    privacy = request.plan.privacy.model_copy(update={"epsilon": 2.0 - number / 10})
    plan = request.plan.model_copy(update={"privacy": privacy})
    return refusal_of(answer_of(made, "train", request.model_copy(update={"plan": plan}), arrays))


def test_file_as_written_lets_no_plan_run_that_nobody_here_has_seen(made, command) -> None:
    policy = tomllib.loads(made.read_text())["policy"]
    assert (policy["approved_plans"], policy["models"]) == ([], ["logistic"])
    assert 364 <= (policy["expires"] - datetime.now(UTC).date()).days <= 365
    assert {hostile_run(made, number) for number in range(6)} == {("PLAN_NOT_APPROVED", "plan")}
    with ledger_of(made) as ledger:
        assert ledger.rows() == []
    words = ["site", "approve", made, "--scenario", made.parent / "trial.toml"]
    status, shown, error = command(*words, "--yes")
    assert (status, error, '"epsilon": 2.0' in shown) == (0, "", True)
    assert shown.count("approved: ") == 1
    assert hostile_run(made, 0) is None
    assert hostile_run(made, 1) == ("PLAN_NOT_APPROVED", "plan")
    assert "not approved yet" not in dry_run(command, made)[1]


def test_plans_that_are_approved_ahead_are_those_that_a_run_sends(federation) -> None:
    run = federation(
        "recalibration={fraction=0.2, rounds=2, steps=4}",
        "evaluation={release='noised', noise_multiplier=4.0}",
    ).run()
    kinds = {
        "train": TrainRequest,
        "train.recalibrate": RecalibrateRequest,
        "evaluate": EvaluateRequest,
    }
    planned = planned_requests(run.scenario, run.site_file("north"))
    ahead = {kind: plan_digest(planned[kind][0]) for kind in kinds}
    sent = 0
    for message in run.grid.requests:
        kind = kinds.get(message.metadata.message_type)
        if kind is not None:
            request = read_header(kind, message.content["config"]["record"])
            assert plan_digest(request) == ahead[message.metadata.message_type]
            sent += 1
    assert sent > 10


@pytest.mark.parametrize(
    ("epsilon", "runs", "said"),
    [
        ("2.0", "1", r"WARN  second run: .*2\.00; the budget of 2\.00 has no room for a second"),
        (
            "6.0",
            "1",
            (
                r"WARN  second run: .* epsilon 2\.00; the first step .* makes it [3-5]\.\d+, "
                r"its 10 of 10 "
            ),
        ),
        (
            "6.0",
            "2",
            (
                r"PASS  second run: .* costs epsilon 2\.00; the first step .* makes it 2\.99, "
                r".*declared ahead"
            ),
        ),
    ],
)
def test_dry_run_says_what_a_second_run_costs(
    made, command, epsilon: str, runs: str, said: str
) -> None:
    text = made.read_text().replace("planned_runs = 1", f"planned_runs = {runs}")
    made.write_text(re.sub(r"\nepsilon = 2", f"\nepsilon = {epsilon}", text))
    status, shown = dry_run(command, made)
    assert (status, bool(re.search(said, shown))) == (0, True), shown


def test_init_says_what_a_second_run_costs_before_the_ledger_is_made_for_good(
    trial, command
) -> None:
    _, shown, _ = command(*init_words(trial), "--epsilon", "6", "--runs", "2")
    told, made = shown.index("both cost 2.99"), shown.index("made cohort")
    assert told < made
    with ledger_of(trial / "north.toml") as ledger:
        assert ledger.cohort.planned_runs == 2
