"""A whole run in this process: roles, records, budgets, results, and sites that do not answer."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fl_dpbayes.data.simulation import PARTITION
from fl_dpbayes.engine.inline_engine import task_identity
from fl_dpbayes.errors import UserError
from fl_dpbayes.files.run_store import RunStore
from fl_dpbayes.report.page import write_report
from fl_dpbayes.report.summary import parse_summary
from server.grid import OrderedGrid
from server.ledger_heads import HEADS_FILE
from server.messages import request_message
from server.strategies.strategy import PosteriorStrategy


@pytest.fixture(scope="module")
def plain(federations):
    """A run by the defaults, and what Flower's own result holds of it."""
    run, results, start = federations(), [], PosteriorStrategy.start
    # What a site says beside its reply is not used.
    run.spoil(
        lambda reply: (
            reply.content.update(metrics=MetricRecord({"\x1b[2J": 1.0, "epsilon": 1e9})) or reply
        )
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            PosteriorStrategy,
            "start",
            lambda *args, **kwargs: results.append(start(*args, **kwargs)),
        )
        run.run()
    run.result = results[0]
    return run


def test_run_directory_holds_what_the_contract_names(plain) -> None:
    summary, roles = (
        plain.summary(),
        {(name, site.role) for name, site in plain.scenario.sites.items()},
    )
    parse_summary(summary)
    assert {(row["name"], row["role"]) for row in summary["sites"]} == roles
    assert {row["site"] for row in summary["calibration"]} == {
        "mean:train",
        "mean:shifted",
        "pooled:train",
        "pooled:held_out",
        "pooled:shifted",
        *plain.scenario.sites,
    }
    assert {row["predictor"] for row in summary["calibration"]} == {"last", "posterior"}
    assert summary["seeded"] is True
    for name in ("privacy.csv", "calibration.csv", "rounds.csv", "scenario.toml"):
        assert (plain.folder / name).stat().st_size > 0
    assert len(plain.posterior()) == 2
    assert not (plain.folder.parent / HEADS_FILE).exists(), "of real sites only"


def test_epsilon_grows_with_rounds_and_the_last_planned_step_meets_the_budget(plain) -> None:
    rows = plain.rows("privacy.csv", site="north")
    epsilons = [float(row["epsilon"]) for row in rows]
    assert epsilons == sorted(epsilons)
    assert plain.scenario.privacy.epsilon * 0.999 <= epsilons[-1] <= plain.scenario.privacy.epsilon
    assert [row["mu_kind"] for row in rows] == ["exact", "exact"]
    assert [int(row["steps"]) for row in rows] == [4, 8]
    assert all(
        sum(steps for _, _, steps in row["history"]) == 8 for row in plain.summary()["privacy"]
    )


def test_only_training_sites_get_training_requests(plain) -> None:
    asked = {plain.site_of(message) for message in plain.requests("train")}
    assert asked == {name for name, site in plain.scenario.sites.items() if site.role == "train"}
    assert {plain.site_of(message) for message in plain.requests("evaluate")} == set(
        plain.scenario.sites
    )
    # Without its section there is no recalibration.
    assert plain.requests("train.recalibrate") == []
    assert all(record["recalibration"] is None for record in plain.asked("evaluate"))
    assert plain.summary()["recalibration"] is None


def test_flower_result_holds_each_round_and_the_pooled_evaluation(plain) -> None:
    rows = [{name: float(value) for name, value in row.items()} for row in plain.rows("rounds.csv")]
    said = [plain.result.train_metrics_clientapp[number] for number in (1, 2)]
    assert [{name: one[name] for name in rows[0]} for one in said] == rows
    costs = plain.rows("privacy.csv", round="2")
    assert said[1]["epsilon"] == max(float(row["epsilon"]) for row in costs)
    assert said[1]["temperature"] == pytest.approx(
        np.mean([float(row["temperature"]) for row in costs])
    )
    assert said[1]["units"] == sum(
        site["n"] for site in plain.summary()["sites"] if site["role"] == "train"
    )
    assert rows[1]["sites_ok"] == 4
    assert rows[1]["bytes_up"] > 0
    found = plain.result.evaluate_metrics_clientapp[2]
    pooled = [row for row in plain.summary()["calibration"] if row["site"].startswith("pooled:")]
    for row in pooled:
        for metric in ("n", "accuracy", "nll", "brier", "ece", "rms_debiased"):
            assert found[f"{row['role']}/{row['predictor']}/{metric}"] == row[metric]
    assert len(found) == 6 * len(pooled) > 0


@pytest.mark.slow
def test_site_with_a_small_budget_runs_a_prefix_and_the_others_go_on(federation) -> None:
    run = federation("sites.north.epsilon=2.5").run()
    north = run.rows("privacy.csv", site="north")
    assert north[-1]["status"] in ("PARTIAL", "REFUSED")
    assert max(float(row["epsilon"]) for row in north if row["epsilon"]) <= 2.5
    others = {
        row["site"]: row["status"]
        for row in run.rows("privacy.csv", round="2")
        if row["site"] != "north"
    }
    assert others == dict.fromkeys(("south", "east", "west"), "OK")


@pytest.mark.slow
def test_run_ends_well_when_every_budget_is_spent_early(federation) -> None:
    run = federation("simulation.cohort_epsilon=2.5", "training.rounds=6").run()
    summary = run.summary()
    assert all(row["epsilon"] <= 2.5 for row in summary["privacy"])
    assert all(
        "BUDGET_EXHAUSTED" in row["status"] or "PARTIAL" in row["status"]
        for row in summary["privacy"]
    )
    assert summary["calibration"]


def test_site_that_sends_no_evaluation_is_named_once_for_all(federation) -> None:
    run = federation("evaluation.release=none").run()
    summary = run.summary()
    assert summary["calibration"] == []
    assert summary.get("heterogeneity") is None  # exact, of labels that were not sent
    (text,) = [text for text in summary["warnings"] if "NOT_SENT" in text]
    assert "north" in text
    assert "rotated" in text
    assert {
        "item": "sums over test records (calibration statistics)",
        "how": "not sent",
    } in summary["releases"]


def test_replies_are_folded_in_the_order_of_requests(federation) -> None:
    grid = OrderedGrid(federation().grid)
    content = RecordDict(
        {"config": ConfigRecord({"simulation-folder": ""}), "arrays": ArrayRecord({})}
    )
    requests = [Message(content, dst_node_id=number, message_type="query") for number in (3, 1, 2)]
    replies = list(grid.send_and_receive(requests, timeout=5))
    assert [reply.metadata.src_node_id for reply in replies] == [3, 1, 2]


def test_reply_that_came_in_time_is_pulled_behind_a_silent_site(federation) -> None:
    grid, ask = federation().grid, {"message_type": "query", "round_number": 0, "time_to_live": 0.2}
    requests = [
        request_message(None, None, node_id=node, simulation_folder="", **ask) for node in (1, 2)
    ]
    pull, (silent, other) = grid.pull_messages, (request.metadata for request in requests)

    def pulled(message_ids):
        # As Flower does it: what answers a message whose time is over is gone.
        over = time.time() > other.created_at + other.ttl
        return [] if silent.message_id in message_ids or over else pull(message_ids)

    grid.pull_messages = pulled
    assert [
        reply.metadata.src_node_id
        for reply in OrderedGrid(grid).send_and_receive(requests, timeout=0.2)
    ] == [2]


@pytest.mark.parametrize(
    ("seconds", "questions", "late"), [(0.1, 3, 0.1), (10.0, 100, 0.5), (3600.0, 1900, 2.0)]
)
def test_slow_site_is_asked_seldom_and_its_reply_is_taken_soon(
    monkeypatch: pytest.MonkeyPatch, seconds, questions, late
) -> None:
    clock, asked = [0.0], []
    times = SimpleNamespace(
        monotonic=lambda: clock[0], sleep=lambda pause: clock.append(clock.pop() + pause)
    )
    monkeypatch.setattr("server.grid.time", times)

    def pull(message_ids):
        asked.extend(message_ids)
        return ["reply"] if clock[0] >= seconds else []

    grid = SimpleNamespace(push_messages=lambda messages: ["1"], pull_messages=pull)
    with task_identity():
        request = Message(RecordDict(), dst_node_id=1, message_type="query")
        assert list(OrderedGrid(grid).send_and_receive([request])) == ["reply"]
    assert len(asked) <= questions
    assert clock[0] <= seconds + late


def test_fewer_nodes_than_sites_gives_the_right_command(
    federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clients.app import app
    from fl_dpbayes.engine.inline_engine import InlineGrid

    monkeypatch.setattr("server.federation.SETTLED_SECONDS", 0.1)
    with pytest.raises(UserError, match='--federation-config "num-supernodes=7"'):
        federation().run(InlineGrid(app, 2))


def test_run_whose_posterior_cannot_be_formed_ends_with_the_reason_and_its_tables(
    federation, monkeypatch
) -> None:
    def failing(strategy):
        raise ZeroDivisionError("nothing to divide by")

    monkeypatch.setattr("server.strategies.fald.FALDStrategy.posterior", failing)
    run = federation()
    with pytest.raises(ZeroDivisionError):
        run.run()
    assert any("nothing to divide by" in text for text in run.warnings())
    assert {row["status"] for row in run.rows("privacy.csv")} == {"OK"}


# Shifted sites that hold one held-out site's patients.
COPIES = [
    f"sites.{name}.{key}"
    for name, kind, severity in (("dark", "gamma", 4), ("rarer", "prevalence", 3))
    for key in (
        "role=shifted",
        "records_of=held-out",
        f"shift.kind={kind}",
        f"shift.severity={severity}",
    )
]


@pytest.mark.slow
def test_sites_with_the_same_patients_are_not_pooled(
    federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.federation.write_report", write_report)
    run = federation(
        *COPIES,
        "sites.noisy-scanner=",
        "sites.rotated=",
        "partition.kind=feature",
        "partition.strictness=0.8",
    ).run()
    summary = run.summary()
    rows = {(row["site"], row["predictor"]): row for row in summary["calibration"]}
    assert {site for site, _ in rows} >= {
        "pooled:train",
        "pooled:held_out",
        "held-out",
        "dark",
        "rarer",
    }
    assert ("pooled:shifted", "posterior") not in rows
    assert (
        rows["dark", "posterior"]["n"]
        == rows["held-out", "posterior"]["n"]
        > rows["rarer", "posterior"]["n"]
    )
    assert not any(row["site"] == "pooled:shifted" for row in summary["reliability"])
    (told,) = [text for text in summary["warnings"] if "records_of" in text]
    assert told.startswith("shifted sites hold the same records")
    assert 0.1 < summary["feature_total_variation"] < 0.75
    partition = RunStore.open(run.folder, to_read=True).latest(PARTITION)
    assert summary["feature_total_variation"] == partition["feature_total_variation"]
    assert (run.folder / "report.html").stat().st_size > 0


@pytest.mark.slow
def test_one_copy_of_a_held_out_site_is_pooled(federation) -> None:
    run = federation(*COPIES[:4], "sites.noisy-scanner=", "sites.rotated=").run()
    summary = run.summary()
    assert "pooled:shifted" in {row["site"] for row in summary["calibration"]}
    assert not any("records_of" in text for text in summary["warnings"])
    assert "feature_total_variation" not in summary
