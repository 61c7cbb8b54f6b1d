"""Replies that are not what was asked for: rejected with a status and a reason, whichever message they answer."""

import json

import numpy as np
import pytest
from flwr.app import Array, Message, RecordDict

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.privacy.account import account
from fl_dpbayes.privacy.events import read_history
from fl_dpbayes.protocol.wire import MAX_HEADER_BYTES
from fl_dpbayes.report.page import write_report

# Every test here is a whole run or several.
pytestmark = pytest.mark.slow

WEIGHT = "last/parameters/1.weight"


def with_record(change):
    def spoil(reply: Message, first: RecordDict) -> None:
        record = json.loads(reply.content["config"]["record"])
        change(record)
        reply.content["config"]["record"] = json.dumps(record)

    return spoil


def with_arrays(change):
    def spoil(reply: Message, first: RecordDict) -> None:
        for name, array in list(reply.content["arrays"].items()):
            reply.content["arrays"][name] = Array(change(array.numpy()))

    return spoil


def other_round(reply: Message, first: RecordDict) -> None:
    for name in ("config", "arrays"):
        reply.content[name] = first[name]


def renamed(reply: Message, first: RecordDict) -> None:
    reply.content["arrays"]["last/parameters/2.weight"] = reply.content["arrays"].pop(WEIGHT)


def other_node(reply: Message, first: RecordDict) -> None:
    reply.metadata.__dict__["_src_node_id"] = 99


def huge_header(reply: Message, first: RecordDict) -> None:
    reply.content["config"]["record"] += " " * MAX_HEADER_BYTES


def no_text(reply: Message, first: RecordDict) -> None:
    reply.content["config"]["record"] = 5


def with_statement(**changes):
    return with_record(lambda record: record["privacy"].update(changes))


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


# What a hostile site does in the second round and later, one after the other, and what its rejection says.
FAULTS = [
    (other_round, "another request"),
    (with_arrays(lambda values: np.concatenate([values, values], axis=-1)), "declares a shape"),
    (renamed, "array names differ"),
    (with_arrays(lambda values: values.astype(np.float16)), "not float32"),
    (with_arrays(lambda values: values * np.float32(np.nan)), "not finite"),
    (with_record(lambda record: record.pop("steps")), "steps: Field required"),
    (with_record(lambda record: record.update(status="FINE")), "status"),
    (with_record(lambda record: record["privacy"].update(units=-record["privacy"]["units"])), "privacy.units"),
    (with_record(lambda record: record["privacy"].update(units=100 * record["privacy"]["units"])), "site's card"),
    (with_statement(epsilon=-5.0), "privacy.epsilon"),
    (with_statement(epsilon=1e300), "its history allows at most"),
    (with_statement(epsilon=0.01), "its history costs"),
    (with_statement(mu=-3.0), "privacy.mu"),
    (with_statement(mu=0.01), "mu is not that of its history"),
    (with_statement(steps=10**18), "privacy.steps"),
    (with_statement(steps=10**6), "miscounts the steps"),
    (with_statement(adjacency="replace_one"), "site's card"),
    (with_statement(delta=1e-6), "another delta"),
    (with_statement(cohort="another"), "another account"),
    (with_record(lambda record: less_noise_stated(record["privacy"])), "lacks steps of this run"),
    (with_record(lambda record: last_round_alone(record["privacy"])), "lacks steps of this run"),
    (with_statement(history=[[1.0, 1.0, 1]] * 20_001), "privacy.history"),
    (with_record(lambda record: record.update(sample_temperatures=[1e-300])), "sample_temperatures"),
    (with_arrays(lambda values: 100 * np.abs(values) + 100), "lies"),
    (other_node, "another node"),
    (huge_header, "the header has"),
    (no_text, "header is not text"),
]


def test_each_bad_reply_is_rejected_with_its_reason_and_the_others_go_on(federation, monkeypatch) -> None:
    monkeypatch.setattr("server.federation.write_report", write_report)
    rounds = len(FAULTS) + 2
    run = federation(
        f"training={{rounds={rounds}, steps_per_round=2, burn_in=0, thinning=2}}",
        "aggregation.rule=mixture",
        "resources.min_sites=3",
    )
    first = {}

    def change(request: Message, reply: Message) -> Message:
        number = int(request.metadata.group_id)
        if request.metadata.message_type == "train" and run.site_of(request) == "south":
            if number == 1:
                first.update(reply.content)
            elif number - 2 < len(FAULTS):
                FAULTS[number - 2][0](reply, first)
        return reply

    run.grid.change = change
    run.run()
    rows, summary = run.rows("privacy.csv", site="south"), run.summary()
    # The site's good replies before and after count; nothing that it sent in between does.
    expected = ["OK", *["REJECTED"] * len(FAULTS), "OK"]
    assert [row["status"] for row in rows] == expected
    for row, (_, reason) in zip(rows[1:], FAULTS, strict=False):
        assert reason in row["reason"]
        assert any(f"round {row['round']}: south: REJECTED" in warning for warning in summary["warnings"])
    good = dict.fromkeys(("north", "east", "west"), ["OK"] * rounds)
    assert run.statuses() == {"south": expected} | good
    assert next(row["status"] for row in summary["privacy"] if row["site"] == "south").startswith("REJECTED it answers")
    assert [row["sites_rejected"] for row in run.rows("rounds.csv")] == ["0", *["1"] * len(FAULTS), "0"]
    page = (run.folder / "report.html").read_text()
    assert f"1 OK, 2 to {rounds - 1} REJECTED, {rounds} OK" in page
    assert "sent a reply that was rejected" in page
    assert len(run.posterior()) == 3 * rounds + 2


def test_run_whose_bad_replies_leave_too_few_sites_stops_and_keeps_what_there_is(federation, monkeypatch) -> None:
    monkeypatch.setattr("server.federation.write_report", write_report)
    run = federation("resources.min_sites=3", "aggregation.rule=mixture")
    run.spoil_record(lambda record: record.pop("steps"), sites=("south", "east"), rounds=(2,))
    with pytest.raises(UserError, match=r"round 2: 2 training sites.*asks for 3: south: REJECTED .*; east: REJECTED"):
        run.run()
    assert {site: statuses[1] for site, statuses in run.statuses().items()} == {
        "north": "OK", "south": "REJECTED", "east": "REJECTED", "west": "OK",
    }  # fmt: skip
    assert len(run.posterior()) == 4 * 1 + 2 * 2
    assert "2 REJECTED" in (run.folder / "report.html").read_text()


def doubled(run) -> None:
    pull = type(run.grid).pull_messages

    def pull_twice(message_ids):
        replies = list(pull(run.grid, message_ids))
        return [*replies, *replies]

    run.grid.pull_messages = pull_twice


def test_second_reply_to_a_request_is_dropped_and_said(federation) -> None:
    once, twice = (
        federation("recalibration={fraction=0.2, steps=2}", "aggregation.rule=mixture", name=name)
        for name in ("once", "twice")
    )
    once.run()
    doubled(twice)
    twice.run()
    for stage in ("round 1", "round 2", "recalibration", "evaluation"):
        assert any(text.startswith(f"{stage}: a reply to no open request was dropped") for text in twice.warnings())
    for name, array in once.posterior().arrays.items():
        np.testing.assert_array_equal(array, twice.posterior().arrays[name])
    for part in ("calibration", "recalibration"):
        assert once.summary()[part] == twice.summary()[part]


RECALIBRATION_FAULTS = {
    "north": (with_record(lambda record: record.update(parameters=[1e9])), "rejected: parameters"),
    "south": (with_record(lambda record: record.update(request="0" * 64)), "rejected: it answers another request"),
    "east": (other_node, "rejected: it comes from another node"),
}
EVALUATION_FAULTS = {
    "north": (with_arrays(lambda values: values.astype(np.float32)), "rejected: array"),
    "south": (with_arrays(lambda values: values * np.nan), "not finite"),
    "east": (with_arrays(lambda values: -values), "rejected"),
    "held-out": (with_record(lambda record: record.update(round=7, request="0" * 64)), "another request"),
    "noisy-scanner": (with_arrays(lambda values: 1e15 * values), "rejected"),
    "rotated": (other_node, "another node"),
}


def test_bad_replies_to_recalibration_and_evaluation_are_listed_and_left_out(federation) -> None:
    run = federation("recalibration={fraction=0.2, steps=2}", "aggregation.rule=mixture")
    faults = {"train.recalibrate": RECALIBRATION_FAULTS, "evaluate": EVALUATION_FAULTS}

    def change(request: Message, reply: Message) -> Message:
        spoil, _ = faults.get(request.metadata.message_type, {}).get(run.site_of(request), (None, None))
        if spoil is not None:
            spoil(reply, {})
        return reply

    run.grid.change = change
    run.run()
    summary = run.summary()
    for verb, of_kind in (("did not recalibrate", RECALIBRATION_FAULTS), ("sent no evaluation", EVALUATION_FAULTS)):
        for site, (_, reason) in of_kind.items():
            # Sites of which the same is said share a line.
            assert [text for text in summary["warnings"] if site in text and verb in text and reason in text], site
    assert set(summary["recalibration"]["sites"]) == {"west"}
    assert {row["site"] for row in summary["calibration"]} == {"pooled:train", "west"}


def free_step(record) -> None:
    """State one step more, of so much noise that it costs nothing."""
    privacy = record["privacy"]
    privacy.update(history=[*privacy["history"], [1e9, 1.0, 1]], steps=privacy["steps"] + 1)
    restate(privacy)


def test_site_s_word_on_its_noise_does_not_make_the_map_of_all_mostly_noise(federation) -> None:
    run = federation("recalibration={fraction=0.2, steps=2, epsilon=50}", "aggregation.rule='mixture'")
    run.spoil_record(free_step, ("train.recalibrate",))
    run.run()
    summary = run.summary()
    assert set(summary["recalibration"]["sites"]) == {"north", "south", "east", "west"}
    assert summary["recalibration"]["noise"] == ""


def test_site_that_claims_most_units_is_named_and_can_be_capped(federation) -> None:
    def claim(record) -> None:
        record.get("privacy", record).update(units=10**9)

    for largest, share in (("", 1.0), (", largest_share=0.25", 0.25)):
        run = federation(f"aggregation={{rule='mixture'{largest}}}", name=f"share-{share}")
        run.spoil_record(claim, ("query", "train"))
        run.run()
        assert any("south declares 1000000000 of" in text for text in run.warnings()) == (not largest)
        weights = run.posterior().weights.reshape(4, -1).sum(axis=1)
        assert weights[1] == pytest.approx(share, abs=1e-5)
