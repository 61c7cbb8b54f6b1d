"""FALD taken alone into a ServerApp of one's own: averages, samples, and replies that do not fit."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.server import Server, SimpleClientManager

import fl_dpbayes as fl
from fl_dpbayes.engine.inline_engine import task_identity
from fl_dpbayes.posterior.samples import PosteriorSamples


@pytest.fixture(autouse=True)
def _identity() -> Iterator[None]:
    with task_identity():
        yield


NODES = SimpleNamespace(get_node_ids=lambda: [1, 2, 3])


def state(value: float, size: int = 2) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.full(size, value, np.float32))})


def content(value: float, units: float = 10, *, size: int = 2, **metrics: Any) -> RecordDict:
    return RecordDict(
        {"arrays": state(value, size), "metrics": MetricRecord({"num-examples": units, **metrics})}
    )


def replies(
    strategy: fl.strategies.FALD, round_number: int, *contents: RecordDict | Error
) -> list[Message]:
    asked = list(strategy.configure_train(round_number, state(0), ConfigRecord(), NODES))
    for message in asked:
        message.metadata._message_id = str(message.metadata.dst_node_id)
    return [
        Message(content, reply_to=message)
        for content, message in zip(contents, asked, strict=False)
    ]


def test_states_are_weighed_by_size_and_kept_after_burn_in() -> None:
    rounds, kept = list[Any](), list[PosteriorSamples]()
    strategy = fl.strategies.FALD(
        min_train_nodes=3,
        burn_in=1,
        thinning=2,
        train_metrics_aggr_fn=lambda contents, _: MetricRecord({"replies": len(contents)}),
        on_round=lambda *seen: rounds.append(seen),
        on_sample=lambda _, sample: kept.append(sample),
    )
    for number in range(1, 6):
        told = {"epsilon": 0.5 * number, "temperature": 2.0}
        sent = [content(number, 10, **told), content(5 * number, 30, **told)]
        average, metrics = strategy.aggregate_train(number, replies(strategy, number, *sent))
        assert average["w"].numpy() == pytest.approx(4 * number)
        # T = N sum_k w_k^2 T_k / n_k, which equal temperatures leave as it is for w_k = n_k / N.
        assert metrics["temperature"] == pytest.approx(2.0)
        assert (metrics["sites"], metrics["units"], metrics["epsilon-max"]) == (2, 40, 0.5 * number)
        assert metrics["replies"] == 2
    assert strategy.posterior().arrays["w"][:, 0].tolist() == [12, 20]
    assert (len(rounds), len(kept)) == (5, 2)


def test_a_misspelt_keyword_and_an_app_of_before_are_told_what_to_write(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(fl.UserError, match="no 'fraction_trian': did you mean 'fraction_train'"):
        fl.strategies.FALD(fraction_trian=0.5)
    with pytest.raises(fl.UserError, match="no 'min_fit_clients': write min_train_nodes="):
        fl.strategies.FALD(min_fit_clients=3)
    failed = Error(code=2, reason="KeyError: 'fitins.parameters'")
    strategy = fl.strategies.FALD(min_train_nodes=3)
    strategy.aggregate_train(1, replies(strategy, 1, failed))
    assert "its ClientApp failed, as one of before Flower's Message API" in caplog.text
    before = Server(client_manager=SimpleClientManager(), strategy=fl.strategies.FALD())
    with pytest.raises(fl.UserError, match=r"call strategy.start\(grid, .*  flwr run  "):
        before.fit(num_rounds=1, timeout=None)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rule": "median"}, r"rule is 'median': write rule=fl.FALD\(robust=.median., "),
        ({"rule": fl.FedAvg()}, r"rule is FedAvg\(.*: write rule=fl.FALD\("),
        ({"burn_in": -1}, "burn_in is -1: give a whole number of rounds, 0 or more"),
        ({"burn_in": 0.5}, "burn_in is 0.5: give a whole number"),
        ({"thinning": 0}, "thinning is 0: give a whole number of rounds, 1 or more"),
        ({"on_round": 3}, r"on_round is 3: give a function, or leave it out"),
    ],
)
def test_what_would_fail_in_a_round_is_refused_before_sites_spend(
    keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(fl.UserError, match=message):
        fl.strategies.FALD(**keys)
    assert fl.strategies.FALD(rule=fl.FALD(robust="median", site_weights="uniform")).burn_in == 0


@pytest.mark.parametrize(
    "bad",
    [
        Error(code=3, reason="\x1b[31mMrs Smith"),
        content(np.nan),
        content(9, units=0),
        content(9, temperature=1e300),
        content(9, **{"\x1b[2J": 1.0}),
        content(9, size=3),
        RecordDict({"arrays": state(9)}),
    ],
)
def test_a_bad_reply_is_left_out_and_never_shown_raw(
    bad: RecordDict | Error, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = fl.strategies.FALD(min_train_nodes=3)
    with caplog.at_level("INFO", logger="flwr"):
        average, metrics = strategy.aggregate_train(
            1, replies(strategy, 1, content(1), bad, content(3))
        )
    assert average["w"].numpy() == pytest.approx(2)
    assert (metrics["sites"], metrics["left-out"]) == (2, 1)
    assert "\x1b" not in str(metrics)
    assert strategy.aggregate_train(2, replies(strategy, 2, bad)) == (None, None)
    scores = [
        RecordDict({"metrics": MetricRecord({"num-examples": 1, "accuracy": one})})
        for one in (0.5, 1.0)
    ]
    assert (
        strategy.aggregate_evaluate(2, replies(strategy, 2, scores[0], bad, scores[1]))["accuracy"]
        == 0.75
    )
    assert not any(
        "\x1b" in one.getMessage() or "Smith" in one.getMessage() for one in caplog.records
    )
