"""Replies that are not what was asked for: rejected with a status and a reason, shown clean."""

import importlib
import io
import json
import unicodedata
from collections.abc import Callable
from unittest.mock import Mock

import numpy as np
import pytest
from flwr.app import Array, Error, Message
from rich.console import Console

from fl_dpbayes.engine.progress import Display
from fl_dpbayes.engine.simulate import show_run
from fl_dpbayes.privacy.account import account
from fl_dpbayes.privacy.events import read_history
from fl_dpbayes.protocol.wire import MAX_HEADER_BYTES
from fl_dpbayes.report.page import write_report
from server.messages import encoded
from tests.asking import refused

# Every test here is a whole run or several.
pytestmark = pytest.mark.slow

TERMINAL = "\x1b]0;mine\x07\x1b[2J\x9b31m\u202egnp\u2066[/] $x$ <script>\r\n"
WEIGHT = "last/parameters/1.weight"
MIXTURE, RECALIBRATED = "aggregation.rule=mixture", "recalibration={fraction=0.2, steps=2}"
FIRST = {}


def test_a_state_that_is_broadcast_is_encoded_once_a_round(federation, monkeypatch) -> None:
    made = []
    monkeypatch.setattr(
        "server.strategies.rounds.encoded", lambda arrays: made.append(1) or encoded(arrays)
    )
    training = "training={rounds=2, steps_per_round=2, burn_in=0, thinning=2}"
    for rule, states in (("fald", 2), ("mixture", 1 + 4)):
        made.clear()
        run = federation(f"aggregation={{rule='{rule}'}}", training, name=rule).run()
        assert len(run.asked("train")) == 2 * 4
        assert len(made) == states, rule


def with_text(change: Callable[[str], object]) -> Callable[[Message], None]:
    def spoil(reply: Message) -> None:
        reply.content["config"]["record"] = change(reply.content["config"]["record"])

    return spoil


def with_record(change: Callable[[dict], object]) -> Callable[[Message], None]:
    def changed(text: str) -> str:
        record = json.loads(text)
        change(record)
        return json.dumps(record)

    return with_text(changed)


def with_statement(**changes):
    return with_record(lambda record: record["privacy"].update(changes))


def with_arrays(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Message], None]:
    def spoil(reply: Message) -> None:
        for name, array in list(reply.content["arrays"].items()):
            reply.content["arrays"][name] = Array(change(array.numpy()))

    return spoil


def with_array(**changes) -> Callable[[Message], None]:
    def spoil(reply: Message) -> None:
        one = reply.content["arrays"][WEIGHT]
        parts = {"dtype": one.dtype, "shape": one.shape, "stype": one.stype, "data": one.data}
        reply.content["arrays"][WEIGHT] = Array(**(parts | changes))

    return spoil


def with_refusal(field: str) -> Callable[[Message], None]:
    return lambda reply: reply.content["config"].update(
        refusal=json.dumps({"code": "BAD_REQUEST", "field": field})
    )


def other_round(reply: Message) -> None:
    reply.content.update(FIRST)


def renamed(reply: Message) -> None:
    reply.content["arrays"]["last/parameters/2.weight"] = reply.content["arrays"].pop(WEIGHT)


def other_node(reply: Message) -> None:
    reply.metadata.__dict__["_src_node_id"] = 99


def with_error(code: int) -> Callable[[Message], None]:
    return lambda reply: reply.__dict__.update(_content=None, _error=Error(code, TERMINAL * 1000))


def less_noise_stated(privacy) -> None:
    """State twice the noise that was planned, and exactly what that would cost."""
    privacy["history"] = [[2 * sigma, rate, steps] for sigma, rate, steps in privacy["history"]]
    restate(privacy)


def last_round_alone(privacy) -> None:
    """State only what this round did."""
    sigma, rate, _ = privacy["history"][0]
    privacy.update(history=[[sigma, rate, 2]], steps=2)
    restate(privacy)


def restate(privacy) -> None:
    found = account(read_history(privacy["history"]), privacy["delta"])
    privacy.update(epsilon=found.epsilon_pld, mu=found.mu)


def with_key(key: str) -> Callable[[Message], None]:
    return with_text(lambda text: text[:-1] + f",{key}:1}}")


def with_keys(count: int) -> Callable[[Message], None]:
    return with_text(
        lambda text: text[:-1] + "".join(f',"key {number}":1' for number in range(count)) + "}"
    )


STATEMENTS = [
    ({"epsilon": -5.0}, "privacy.epsilon"),
    ({"epsilon": 1e300}, "its history allows at most"),
    ({"epsilon": 0.01}, "its history costs"),
    ({"mu": -3.0}, "privacy.mu"),
    ({"steps": 10**18}, "privacy.steps"),
    ({"mu": 0.01}, "mu is not that of its history"),
    ({"steps": 10**6}, "miscounts the steps"),
    ({"adjacency": "replace_one"}, "site's card"),
    ({"delta": 1e-6}, "another delta"),
    ({"units": 999}, "site's card"),
    ({"cohort": "another"}, "another account"),
    ({"units": -40}, "privacy.units"),
    ({"history": [[1.0, 1.0, 1]] * 20_001}, "privacy.history"),
]
# What a hostile site does in the second round and later, one after the other, and what is said of
# it.
FAULTS = [
    (other_round, "another request"),
    (renamed, "array names differ"),
    (other_node, "another node"),
    (with_arrays(lambda values: np.concatenate([values, values], axis=-1)), "declares a shape"),
    (with_record(lambda record: record.pop("steps")), "steps: Field required"),
    (with_record(lambda record: record.update(status="FINE")), "status"),
    *((with_statement(**changes), said) for changes, said in STATEMENTS),
    (with_record(lambda record: less_noise_stated(record["privacy"])), "lacks steps of this run"),
    (with_record(lambda record: last_round_alone(record["privacy"])), "lacks steps of this run"),
    (
        with_record(lambda record: record.update(sample_temperatures=[1e-300])),
        "sample_temperatures",
    ),
    (with_arrays(lambda values: 100 * np.abs(values) + 100), "lies"),
    (with_text(lambda text: text + " " * MAX_HEADER_BYTES), "the header has"),
    (with_text(lambda text: 5), "header is not text"),
    (with_array(dtype=TERMINAL * 1000), "declares another type"),
    (with_key(f'"{"x" * 15_000_000}"'), "the header has"),
    (with_key(f'"{"x" * 3_000_000}"'), "xxx"),
    (with_key(json.dumps(TERMINAL)), "Extra inputs"),
    (with_key('"\\ud800"'), "valid string"),
    (with_keys(400_000), "the header has"),
    (with_keys(900), "900 fields are not valid"),
    (
        with_text(
            lambda text: text.replace('"history":[', '"history":[' + "[1.5,1.0,1]," * 600_000)
        ),
        "the header has",
    ),
    (with_text(lambda text: '{"run":' * 5000 + "1" + "}" * 5000), "more than 1000 keys"),
    (with_refusal(TERMINAL), "BAD_REQUEST"),
    (with_refusal("[/red]"), "BAD_REQUEST [/red]"),
    (with_error(7), "BUNDLE_NOT_APPROVED"),
    (with_error(5), "error code 5: its node is gone"),
]
RECALIBRATION_FAULTS = {
    "north": (with_record(lambda record: record.update(parameters=[1e9])), "rejected: parameters"),
    "south": (with_key(f'"{"x" * 3_000_000}"'), "rejected: xxx"),
}
EVALUATION_FAULTS = {
    "north": (with_arrays(lambda values: values.astype(np.float32)), "rejected: array"),
    "south": (with_arrays(lambda values: values * np.nan), "not finite"),
    "held-out": (
        with_record(lambda record: record.update(round=7, request="0" * 64)),
        "another request",
    ),
    "noisy-scanner": (with_arrays(lambda values: 1e15 * values), "rejected"),
    "rotated": (with_arrays(lambda values: -values), "rejected"),
}


def status_of(reason: str) -> str:
    if reason.startswith(("BAD_REQUEST", "BUNDLE")):
        return "REFUSED"
    return "FAILED" if reason.startswith("error code") else "REJECTED"


def test_each_bad_reply_is_rejected_with_its_reason_and_the_others_go_on(
    federation, monkeypatch
) -> None:
    monkeypatch.setattr("server.federation.write_report", write_report)
    rounds = len(FAULTS) + 2
    training = f"training={{rounds={rounds}, steps_per_round=2, burn_in=0, thinning=2}}"
    run = federation(training, MIXTURE, RECALIBRATED, "resources.min_sites=2", "sites.west=")

    def change(request: Message, reply: Message) -> Message:
        site, number = run.site_of(request), int(request.metadata.group_id)
        faults = {"train.recalibrate": RECALIBRATION_FAULTS, "evaluate": EVALUATION_FAULTS}
        if request.metadata.message_type in faults:
            faults[request.metadata.message_type].get(site, (lambda reply: None,))[0](reply)
        elif request.metadata.message_type == "train" and site == "south" and number == 1:
            FIRST.update(reply.content)
        elif request.metadata.message_type == "train" and site == "south" and number < rounds:
            FAULTS[number - 2][0](reply)
        return reply

    run.grid.change = change
    run.run()
    rows, summary = run.rows("privacy.csv", site="south"), run.summary()
    # The site's good replies before and after count; nothing that it sent in between does.
    bad = [status_of(reason) for _, reason in FAULTS]
    assert [row["status"] for row in rows] == ["OK", *bad, "OK"]
    for row, (_, reason), status in zip(rows[1:-1], FAULTS, bad, strict=True):
        assert reason in row["reason"]
        assert len(row["reason"]) <= 80
        assert row["reason"].isprintable()
        assert any(
            f"round {row['round']}: south: {status}" in warning for warning in summary["warnings"]
        )
    good = dict.fromkeys(("north", "east"), ["OK"] * rounds)
    assert run.statuses() == {"south": ["OK", *bad, "OK"]} | good
    said = next(row["status"] for row in summary["privacy"] if row["site"] == "south")
    assert said.startswith(f"OK; {len(bad)} of {rounds} rounds REJECTED it answers")
    rejected = [int(status == "REJECTED") for status in ["OK", *bad, "OK"]]
    assert [int(row["sites_rejected"]) for row in run.rows("rounds.csv")] == rejected
    assert len(run.posterior()) == 2 * rounds + 2
    for verb, of_kind in (
        ("did not recalibrate", RECALIBRATION_FAULTS),
        ("sent no evaluation", EVALUATION_FAULTS),
    ):
        for site, (_, reason) in of_kind.items():
            # Sites of which the same is said share a line.
            assert [
                text
                for text in summary["warnings"]
                if site in text and verb in text and reason in text
            ], site
    assert set(summary["recalibration"]["sites"]) == {"east"}
    assert {row["site"] for row in summary["calibration"]} == {"pooled:train", "east"}
    assert (run.folder / "run.sqlite").stat().st_size < 2**20
    page = assert_shown_clean(run)
    assert "2 REJECTED, 3 REJECTED, " in page
    assert "sent a reply that was rejected" in page


def assert_shown_clean(run) -> str:
    """No file and no display holds a sign that a terminal obeys; return the report."""
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=200)
    display = Display(console, len(FAULTS))
    for line in (run.folder / "events.jsonl").read_text().splitlines():
        display.show(json.loads(line))
        console.print(display.render())
    show_run(run.folder, console)
    names = ("events.jsonl", "privacy.csv", "rounds.csv", "summary.json", "report.html")
    texts = {name: (run.folder / name).read_text(encoding="utf-8") for name in names}
    for text in (*texts.values(), *run.warnings(), console.file.getvalue()):
        signs = {
            letter
            for letter in text
            if unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp")
        }
        assert signs <= {"\n", "\t"}
    assert max(map(len, run.warnings())) < 300
    return texts["report.html"]


def test_card_with_escapes_is_shown_clean(federation, monkeypatch) -> None:
    monkeypatch.setattr("server.federation.write_report", write_report)
    run = federation()
    changes = {"south": {"unit": TERMINAL, "shift": TERMINAL}, "east": {TERMINAL: 1}}
    run.spoil_record(lambda card: card.update(changes[card["name"]]), ("query",), changes)
    run.run()
    assert {row["name"] for row in run.summary()["sites"]} == set(run.scenario.sites) - {"east"}
    assert_shown_clean(run)


def test_reply_that_flower_cannot_put_together_is_one_site_s_failure(federation) -> None:
    run = federation()
    pull = type(run.grid).pull_messages
    faults = iter(
        [KeyError, ValueError(TERMINAL), TypeError, IndexError, MemoryError, RecursionError]
    )

    def pull_or_fail(message_ids):
        replies = pull(run.grid, message_ids)
        if (
            replies
            and replies[0].metadata.src_node_id == 2
            and replies[0].metadata.message_type != "query"
        ):
            raise next(faults)
        return replies

    run.grid.pull_messages = pull_or_fail
    run.run()
    assert run.statuses() == dict.fromkeys(("north", "east", "west"), ["OK"] * 2) | {
        "south": ["FAILED"] * 2
    }
    assert any("south sent no evaluation: rejected: error code" in text for text in run.warnings())


def test_what_a_broken_connection_raises_still_ends_the_run(federation) -> None:
    run = federation()
    run.grid.pull_messages = Mock(side_effect=ConnectionError("gone"))
    with pytest.raises(ConnectionError):
        run.run()


def test_run_whose_bad_replies_leave_too_few_sites_stops_and_keeps_what_there_is(
    federation,
) -> None:
    run = federation("resources.min_sites=3", MIXTURE)
    run.spoil_record(lambda record: record.pop("steps"), sites=("south", "east"), rounds=(2,))
    refused(
        r"round 2: 2 training sites.*asks for 3 of the 4 .*: south: REJECTED .*; east: REJECTED",
        run.run,
    )
    second = {site: statuses[1] for site, statuses in run.statuses().items()}
    assert second == {"north": "OK", "south": "REJECTED", "east": "REJECTED", "west": "OK"}
    assert len(run.posterior()) == 4 * 1 + 2 * 2
    assert len(run.rows("rounds.csv")) == 2
    assert run.summary()["privacy"]


@pytest.mark.parametrize(("bad", "ends"), [(("south",), True), (("south", "east"), False)])
def test_by_default_more_than_half_of_the_sites_with_steps_left_must_answer(
    federation, bad, ends: bool
) -> None:
    run = federation(MIXTURE)
    run.spoil_record(lambda record: record.pop("steps"), sites=bad, rounds=(2,))
    if ends:
        assert len(run.run().rows("rounds.csv")) == 2
    else:
        refused(
            r"round 2: 2 training sites.*asks for 3 of the 4 with steps left: south: REJECTED",
            run.run,
        )


def test_site_that_has_spent_its_budget_is_not_waited_for(federation) -> None:
    spent = [f"sites.{site}.epsilon=2.5" for site in ("north", "south", "east")]
    run = federation(MIXTURE, *spent, "training.rounds=4").run()
    last = {site: statuses[-1] for site, statuses in run.statuses().items()}
    assert last["west"] == "OK"
    assert "OK" not in {last[site] for site in ("north", "south", "east")}


def test_second_reply_to_a_request_is_dropped_and_said(federation) -> None:
    run = federation(RECALIBRATED, MIXTURE)
    pull = type(run.grid).pull_messages
    run.grid.pull_messages = lambda message_ids: 2 * list(pull(run.grid, message_ids))
    run.run()
    for stage in ("round 1", "round 2", "recalibration", "evaluation"):
        assert any(
            text.startswith(f"{stage}: a reply to no open request was dropped")
            for text in run.warnings()
        )


def free_step(record) -> None:
    """State one step more, of so much noise that it costs nothing."""
    privacy = record["privacy"]
    privacy.update(history=[*privacy["history"], [1e9, 1.0, 1]], steps=privacy["steps"] + 1)
    restate(privacy)


def test_site_s_word_on_its_noise_does_not_make_the_map_of_all_mostly_noise(federation) -> None:
    run = federation(
        "recalibration={fraction=0.2, steps=2, epsilon=50}", "aggregation.rule='mixture'"
    )
    run.spoil_record(free_step, ("train.recalibrate",))
    run.run()
    summary = run.summary()
    assert set(summary["recalibration"]["sites"]) == {"north", "south", "east", "west"}
    assert summary["recalibration"]["noise"] == ""


def test_site_that_states_one_unit_does_not_make_the_map_of_all_mostly_noise(federation) -> None:
    run = federation(
        "recalibration={fraction=0.2, steps=12, epsilon=50}", "aggregation.rule='mixture'"
    )
    run.spoil_record(lambda record: record["privacy"].update(units=1), ("train.recalibrate",))
    run.run()
    assert run.summary()["recalibration"]["noise"] == ""


def test_site_that_claims_most_units_is_named_and_can_be_capped(federation) -> None:
    def claim(record) -> None:
        record.get("privacy", record).update(units=10**9)

    for largest, share in (("", 0.3), (", largest_share=1", 1.0), (", largest_share=0.25", 0.25)):
        run = federation(f"aggregation={{rule='mixture'{largest}}}", name=f"share-{share}")
        run.spoil_record(claim, ("query", "train"))
        run.run()
        assert any("south declares 1000000000 of" in text for text in run.warnings())
        weights = run.posterior().weights.reshape(4, -1).sum(axis=1)
        assert weights[1] == pytest.approx(share, abs=1e-5)


def to_the_end(reply: Message) -> Message:
    with_arrays(lambda array: np.where(array > 0, 3e38, -3e38).astype(np.float32))(reply)
    return reply


@pytest.mark.parametrize("rule", ["mixture", "fedavg", "fedbe"])
def test_states_at_the_end_of_float32_end_no_run_where_no_distance_is_bounded(
    federation, rule: str
) -> None:
    run = federation(f"aggregation={{rule='{rule}'}}", "sampler={kind='dp-adam'}")
    run.spoil(to_the_end, rounds=(2,))
    run.run()
    assert run.statuses() == {
        "north": ["OK", "OK"],
        "south": ["OK", "REJECTED"],
        "east": ["OK", "OK"],
        "west": ["OK", "OK"],
    }
    (row,) = run.rows("privacy.csv", site="south", round="2")
    assert row["reason"] == "a value is beyond 1e+15: its chain has diverged"


@pytest.mark.parametrize(("site", "role"), [("south", "held_out"), ("held-out", "train")])
def test_site_that_takes_another_role_than_the_scenario_gives_it_does_not_join(
    federation, site: str, role: str
) -> None:
    run = federation("resources.start_nodes=6")
    run.spoil_record(lambda card: card.update(role=role), ("query",), (site,))
    said = run.run().warnings()
    assert any(
        text.startswith(f"a node did not join: {site} takes the role '{role}'") for text in said
    )
    assert site not in {row["name"] for row in run.summary()["sites"]}


def test_site_that_says_its_noise_is_seeded_is_named(federation) -> None:
    run = federation("simulation.insecure_seed=")
    run.spoil_record(lambda record: record["privacy"].update(seeded=True))
    run.run()
    assert run.summary()["seeded"]
    (said,) = (text for text in run.warnings() if "came from a seed" in text)
    assert said.startswith("south says that its noise")


@pytest.mark.parametrize(("rule", "share"), [("mixture", 0.4), ("fedavg", 0.5), ("fald", 0.5)])
def test_site_has_no_more_of_what_few_sites_sent_than_one_of_so_few_may(
    federation, monkeypatch, rule: str, share: float
) -> None:
    sizes = {"north": 10**4, "south": 10**6, "east": 50, "west": 50, "far": 10**4, "off": 10**4}
    extra = [f"sites.{site}={{role='train'}}" for site in ("far", "off")]
    run = federation(f"aggregation={{rule='{rule}'}}", *extra)
    used: list[dict[str, float]] = []
    target = {"mixture": "joined", "fedavg": "average_of_states", "fald": "average_of_states"}[rule]
    where = f"server.strategies.{'fald' if rule == 'fald' else 'independent_chains'}"
    whole = getattr(importlib.import_module(where), target)

    def watched(*arguments):
        used.append({site: arguments[-1][site] for site in arguments[0]})
        return whole(*arguments)

    monkeypatch.setattr(f"{where}.{target}", watched)

    def changed(request: Message, reply: Message) -> Message:
        site, kind = run.site_of(request), request.metadata.message_type
        if kind == "train" and site in ("north", "far", "off"):
            reply.content["config"]["refusal"] = json.dumps({"code": "BUDGET_EXHAUSTED"})
        elif kind in ("query", "train") and site in sizes:
            record = json.loads(reply.content["config"]["record"])
            record.get("privacy", record).update(units=sizes[site])
            reply.content["config"]["record"] = json.dumps(record)
        return reply

    run.grid.change = changed
    run.run()
    assert used
    for weights in used:
        assert set(weights) == {"south", "east", "west"}
        assert weights["south"] / sum(weights.values()) == pytest.approx(share)
    assert any(text.startswith("south declares 1000000 of") for text in run.warnings())
