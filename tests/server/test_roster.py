"""Who takes part: cards that do not fit, and sites that come late, miss rounds or come back."""

import json
import time

import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from fl_dpbayes.data.simulation import plan_sites
from fl_dpbayes.files.run_store import RunStore
from fl_dpbayes.posterior.sample_store import PosteriorBank
from fl_dpbayes.protocol.arrays import without_prefix
from fl_dpbayes.protocol.card import MAX_UNITS
from fl_dpbayes.protocol.wire import arrays_digest
from server.messages import PULL_SECONDS
from tests.asking import record_of

# Every test here is a whole run or several.
pytestmark = pytest.mark.slow

STEPS = 4
FOUR_ROUNDS = f"training={{rounds=4, steps_per_round={STEPS}, burn_in=0, thinning=2}}"


def train_requests(run, site: str) -> dict[int, dict]:
    return {record["round"]: record for record in run.asked("train", site)}


def connect(run, nodes_before_round) -> None:
    """Let the grid show the nodes that `nodes_before_round(r)` names before round r."""
    every = list(run.grid.get_node_ids())

    def node_ids():
        rounds = [int(message.metadata.group_id) for message in run.requests("train")]
        return [node for node in every if node in nodes_before_round(max(rounds, default=0) + 1)]

    run.grid.get_node_ids = node_ids


def with_second_south(run) -> None:
    """Add node 8, which shows the card of node 2."""
    run.grid._contexts[8] = Context(1, 8, dict(run.grid._contexts[2].node_config), RecordDict(), {})
    nodes = dict(enumerate(run.scenario.sites, 1)) | {8: "south"}
    run.site_of = lambda message: nodes[message.metadata.dst_node_id]


def south_nodes(run) -> dict[int, int]:
    return {
        int(message.metadata.group_id): message.metadata.dst_node_id
        for message in run.requests("train", "south")
    }


WITHOUT_WEST = {1, 2, 3, 5, 6, 7}
EVERY = {1, 2, 3, 4, 5, 6, 7}


def test_site_that_joins_late_runs_the_schedule_from_its_beginning(federation) -> None:
    run = federation(
        "training={rounds=3, chains=2, steps_per_round=4, burn_in=4, thinning=2}",
        "aggregation.rule=mixture",
        "resources.start_nodes=6",
    )
    connect(run, lambda number: EVERY if number >= 2 else WITHOUT_WEST)
    run.run()
    # Two of three rounds of the first chain, from its first step on, then all of the second.
    asked = train_requests(run, "west")
    assert {number: request["first_step"] for number, request in asked.items()} == {
        2: 0,
        3: 4,
        4: 12,
        5: 16,
        6: 20,
    }
    assert asked[2]["start"] == train_requests(run, "north")[1]["start"]
    assert run.statuses()["west"] == ["NOT ASKED", *["OK"] * 5]
    assert run.statuses()["north"] == ["OK"] * 6
    summary = run.summary()
    assert "round 2: west joined the training" in summary["warnings"]
    assert not any("prior" in text for text in summary["warnings"])
    row = next(row for row in summary["privacy"] if row["site"] == "west")
    assert row["steps"] == 20
    assert row["epsilon"] < run.scenario.privacy.epsilon
    # Samples after burn-in: 2 of the first chain and 4 of the second; the others have 4 of each.
    assert PosteriorBank(RunStore.open(run.folder, to_read=True)).sample_chains(
        "west"
    ).tolist() == [
        0,
        0,
        1,
        1,
        1,
        1,
    ]
    assert "west" in {row["site"] for row in summary["calibration"]}
    units = {
        site.name: site.train_units
        for site in plan_sites(run.scenario, None).sites
        if site.spec.role == "train"
    }
    weights = run.posterior().weights
    assert weights[-6:].sum() == pytest.approx(units["west"] / sum(units.values()))


def test_site_that_joins_an_averaged_chain_goes_on_from_its_state_and_the_prior_is_said_to_be_off(
    federation,
) -> None:
    run = federation(FOUR_ROUNDS, "aggregation.rule=fald", "resources.start_nodes=6")
    connect(run, lambda number: EVERY if number >= 3 else WITHOUT_WEST)
    run.run()
    asked, north = train_requests(run, "west"), train_requests(run, "north")
    assert {number: request["first_step"] for number, request in asked.items()} == {3: 8, 4: 12}
    assert {number: request["start"] for number, request in asked.items()} == {
        n: north[n]["start"] for n in (3, 4)
    }
    assert asked[3]["plan"]["prior_share"] == pytest.approx(1 / 3)
    assert run.statuses()["west"] == ["NOT ASKED", "NOT ASKED", "OK", "OK"]
    assert any("the posterior counts it 1.33 times" in text for text in run.warnings())


def test_late_nodes_that_do_not_fit_are_named_and_asked_once(federation) -> None:
    run = federation(FOUR_ROUNDS, "resources.start_nodes=6", "resources.round_timeout=2")
    connect(run, lambda number: EVERY if number >= 2 else WITHOUT_WEST)
    run.spoil_record(lambda card: card.update(name="north"), ("query",), ("west",))
    run.run()
    assert len(run.requests("query", "west")) == 1
    assert any("the name 'north' is taken by another node" in text for text in run.warnings())
    assert {row["name"] for row in run.summary()["sites"]} == set(run.scenario.sites) - {"west"}


def test_site_that_misses_a_round_goes_on_from_its_own_last_state_at_the_round_s_step(
    federation,
) -> None:
    run = federation(FOUR_ROUNDS, "aggregation.rule=mixture", "resources.round_timeout=0.2")
    last = {}

    def change(request: Message, reply: Message) -> Message | None:
        if request.metadata.message_type == "train" and run.site_of(request) == "south":
            arrays = {name: array.numpy() for name, array in reply.content["arrays"].items()}
            last[int(request.metadata.group_id)] = arrays_digest(without_prefix("last", arrays))
            return None if request.metadata.group_id == "2" else reply
        return reply

    run.grid.change = change
    run.run()
    asked = train_requests(run, "south")
    # The site did run round 2, and has paid for it: its steps are not asked for again, its state
    # never came.
    assert [asked[number]["first_step"] for number in (1, 2, 3, 4)] == [
        0,
        STEPS,
        2 * STEPS,
        3 * STEPS,
    ]
    assert asked[2]["start"] == asked[3]["start"] == last[1]
    assert asked[4]["start"] == last[3]
    assert run.statuses()["south"] == ["OK", "FAILED", "OK", "OK"]
    assert "round 2: south: FAILED no reply in time" in run.warnings()
    row = next(row for row in run.summary()["privacy"] if row["site"] == "south")
    assert (row["steps"], row["rounds"]) == (4 * STEPS, 3)
    assert row["status"] == "OK; 1 of 4 rounds FAILED no reply in time"


@pytest.mark.parametrize("error", [None, ErrorCode.MESSAGE_UNAVAILABLE])
def test_silent_site_is_asked_no_more_after_some_rounds_in_a_row(federation, error) -> None:
    run = federation(
        FOUR_ROUNDS,
        "resources.round_timeout=0.2",
        "resources.silent_rounds=2",
        "resources.min_sites=2",
    )
    run.silence("south", range(2, 5), error)
    silent = run.grid.change
    run.silence("east", (1, 3), ErrorCode.MESSAGE_UNAVAILABLE)
    seldom = run.grid.change
    run.grid.change = lambda request, reply: (seldom if run.site_of(request) == "east" else silent)(
        request, reply
    )
    run.run()
    assert set(train_requests(run, "south")) == {1, 2, 3}
    assert run.statuses() == {
        "north": ["OK"] * 4,
        "south": ["OK", "FAILED", "FAILED", "NOT ASKED"],
        "east": ["FAILED", "OK", "FAILED", "OK"],
        "west": ["OK"] * 4,
    }
    assert any("south gave no reply in 2 rounds in a row" in text for text in run.warnings())
    assert not any("secret" in text for text in run.warnings())
    # It may have fallen silent in training only.
    assert "south" in {row["site"] for row in run.summary()["calibration"]}


GONE, SECOND, BOTH = EVERY - {2}, EVERY - {2} | {8}, EVERY | {8}
MAY_CHANGE = "resources.nodes_may_change=true"


@pytest.mark.parametrize(
    ("more", "connected", "is_silent", "asked", "statuses", "said"),
    [
        (
            [MAY_CHANGE, "resources.silent_rounds=1"],
            {1: EVERY, 2: EVERY, 3: SECOND, 4: SECOND},
            True,
            {1: 2, 2: 2, 3: 8, 4: 8},
            ["OK", "FAILED", "OK", "OK"],
            "round 3: south came back on another node",
        ),
        # The first node has its name again when it is back.
        (
            [MAY_CHANGE],
            {1: EVERY, 2: GONE, 3: SECOND, 4: BOTH},
            False,
            {1: 2, 2: 2, 3: 8, 4: 2},
            ["OK"] * 4,
            "round 4: south came back on another node",
        ),
        # Else a node that shows a gone site's card does not take its place, whether that comes back
        # or not.
        (
            [],
            {1: EVERY, 2: SECOND, 3: BOTH, 4: BOTH},
            False,
            {1: 2, 2: 2, 3: 2, 4: 2},
            ["OK"] * 4,
            "set resources.nodes_may_change",
        ),
        (
            [],
            {1: EVERY, 2: SECOND, 3: SECOND, 4: BOTH},
            False,
            {1: 2, 2: 2, 3: 2, 4: 2},
            ["OK"] * 4,
            "set resources.nodes_may_change",
        ),
        (
            ["resources.silent_rounds=1"],
            {1: EVERY, 2: EVERY, 3: GONE, 4: EVERY},
            True,
            {1: 2, 2: 2, 4: 2},
            ["OK", "FAILED", "NOT ASKED", "OK"],
            "round 4: south came back",
        ),
    ],
    ids=[
        "elsewhere",
        "back on the first",
        "another meanwhile",
        "another for good",
        "given up and back",
    ],
)
def test_site_keeps_its_node_unless_the_rules_let_another_with_its_card_take_its_place(
    federation,
    more,
    connected,
    is_silent: bool,
    asked: dict[int, int],
    statuses: list[str],
    said: str,
) -> None:
    run = federation(FOUR_ROUNDS, "resources.start_nodes=7", "resources.round_timeout=2", *more)
    with_second_south(run)
    connect(run, connected.get)
    if is_silent:
        run.silence("south", (2,), ErrorCode.MESSAGE_UNAVAILABLE)
    run.run()
    assert south_nodes(run) == asked
    assert run.statuses()["south"] == statuses
    assert any(said in text for text in run.warnings())
    if not more:
        assert [
            m.metadata.message_type for m in run.grid.requests if m.metadata.dst_node_id == 8
        ] == ["query"]
    assert [row["role"] for row in run.summary()["sites"] if row["name"] == "south"] == ["train"]


@pytest.mark.parametrize("error", [None, ErrorCode.REPLY_MESSAGE_UNAVAILABLE])
def test_late_card_is_asked_for_again_and_one_that_never_comes_no_more(federation, error) -> None:
    run = federation(
        FOUR_ROUNDS,
        "resources.round_timeout=0.3",
        "resources.silent_rounds=2",
        "aggregation.rule=mixture",
    )

    def change(request: Message, reply: Message) -> Message | None:
        site = run.site_of(request)
        late = site == "rotated" or (site == "west" and len(run.requests("query", "west")) == 1)
        if request.metadata.message_type == "query" and late:
            return None if error is None else Message(Error(error, ""), reply_to=request)
        return reply

    run.grid.change = change
    run.run()
    assert len(run.requests("query", "west")) == len(run.requests("query", "rotated")) == 2
    assert run.statuses()["west"] == ["NOT ASKED", "OK", "OK", "OK"]


def test_every_message_has_the_round_s_time_to_live_and_a_silent_site_costs_no_more_than_that(
    federation,
) -> None:
    run = federation(
        "resources.round_timeout=0.6", "recalibration={fraction=0.2, steps=2}", "training.rounds=2"
    )
    run.silence("north", (2,))
    pulled = {}
    pull = run.grid.pull_messages

    def timed(message_ids):
        message_ids = list(message_ids)
        for message_id in message_ids:
            pulled.setdefault(message_id, []).append(time.monotonic())
        return pull(message_ids)

    run.grid.pull_messages = timed
    run.run()
    assert {message.metadata.message_type for message in run.grid.requests} == {
        "query",
        "train",
        "train.recalibrate",
        "evaluate",
    }
    assert {message.metadata.ttl for message in run.grid.requests} == {0.6 + PULL_SECONDS}
    waits = [times[-1] - times[0] for times in pulled.values()]
    assert 0.4 < max(waits) < 1.6
    assert sorted(waits)[-2] == 0


CARDS = {
    "north": ({"units": 0}, "units is 0"),
    "rotated": ({"units": MAX_UNITS + 1}, "units"),
    "south": (
        {"units": 4},
        "south declares 4 units, and at the plan's sampling rate a site that trains needs 5",
    ),
    "west": ({"units": 5}, ""),
    "east": ({}, ""),
    "more": ({"units": -5}, "units"),
    "held-out": ({}, "it comes from another node"),
    "noisy-scanner": (
        {"task": {"input_shape": [7], "classes": 1000}},
        "its records or classes differ",
    ),
}


def test_sites_whose_cards_do_not_fit_are_left_out_alone_and_said(federation) -> None:
    run = federation(
        "privacy.sampling_rate=0.2",
        "sites.more={role='held_out', records=60}",
        "resources.min_sites=1",
    )

    def change(reply: Message) -> Message:
        card = record_of(reply)
        reply.content["config"]["record"] = json.dumps(card | CARDS[card["name"]][0])
        if card["name"] == "held-out":
            reply.metadata.__dict__["_src_node_id"] = 99
        return reply

    run.spoil(change, ("query",), CARDS)
    run.run()
    assert {row["name"] for row in run.summary()["sites"]} == {"east", "west"}
    texts = [text for text in run.warnings() if "did not join: " in text]
    assert len(texts) == 6
    for _, said in CARDS.values():
        assert any(said in text for text in texts)
