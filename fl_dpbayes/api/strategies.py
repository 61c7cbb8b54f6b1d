"""Flower strategies for a ServerApp of one's own: no scenario, no run directory, no site's card.

Sites are then known by their nodes' numbers, and what a reply says of its size and temperature is
its site's own word; the strategies of this package's own app check both against plan and card.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from logging import WARNING
from typing import Any, TypeAlias, TypedDict, Unpack

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fl_dpbayes.api.keywords import check_keywords
from fl_dpbayes.config import RunWarning, aggregation, outside_text
from fl_dpbayes.errors import UserError
from fl_dpbayes.posterior import (
    PosteriorSamples,
    average_of_states,
    averaged_temperature,
    concatenate,
    target_warnings,
    weigh_sites,
)
from fl_dpbayes.protocol import Arrays, read_sent_arrays
from fl_dpbayes.report import sentence

__all__ = ["FALD"]

Messages: TypeAlias = Iterable[Message]
Metrics: TypeAlias = dict[str, int | float]
MetricsFunction: TypeAlias = Callable[[list[RecordDict], str], MetricRecord]
MOST_UNITS = 10**12
MOST_METRICS = 64
MOST_VALUE = 1e15
# Metrics of which a round reports the largest over its sites.
COSTS = ("epsilon", "epsilon-planned", "delta", "steps")


class FedAvgKeys(TypedDict, total=False):
    """What `flwr.serverapp.strategy.FedAvg` takes by name; see there."""

    fraction_train: float
    fraction_evaluate: float
    min_train_nodes: int
    min_evaluate_nodes: int
    min_available_nodes: int
    weighted_by_key: str
    arrayrecord_key: str
    configrecord_key: str
    train_metrics_aggr_fn: MetricsFunction | None
    evaluate_metrics_aggr_fn: MetricsFunction | None


class FALD(FedAvg):
    """Federated averaging of Langevin chains: averaged states after burn-in are posterior samples.

    Each site takes a few private steps from the state that is broadcast, with 1/K of the prior, and
    sends its last state (`PrivateChain.advance`). A reply that does not fit what was sent is left
    out and named in the log.

    Source: Deng et al. 2021, "On convergence of federated averaging Langevin dynamics";
    docs/aggregation.md.
    """

    def __init__(
        self,
        *,
        rule: aggregation.FALD | None = None,
        burn_in: int = 0,
        thinning: int = 1,
        on_round: Callable[[int, Arrays, Metrics], object] = lambda *_: None,
        on_sample: Callable[[int, PosteriorSamples], object] = lambda *_: None,
        **fedavg: Unpack[FedAvgKeys],
    ) -> None:
        """Make the strategy.

        Args:
            rule: How states are averaged and sites weighed; None: by units.
            burn_in: Number of first rounds whose averages are no samples.
            thinning: One average in so many is kept.
            on_round: Called after each round with its number, the averaged state and its metrics.
            on_sample: Called with the number of a round and the sample that was kept of it.
            **fedavg: What `flwr.serverapp.strategy.FedAvg` takes, such as fraction_train.

        Raises:
            UserError: If a keyword is unknown, or a value would fail in a round.
        """
        own_keys = ("rule", "burn_in", "thinning", "on_round", "on_sample")
        check_keywords("FALD", fedavg, [*FedAvgKeys.__annotations__, *own_keys])
        _check_rule(rule)
        _check_rounds("burn_in", burn_in, least=0)
        _check_rounds("thinning", thinning, least=1)
        for name, function in {"on_round": on_round, "on_sample": on_sample}.items():
            if not callable(function):
                raise UserError(f"{name} is {function!r}: give a function, or leave it out")
        super().__init__(**fedavg)
        self.rule = rule or aggregation.FALD(rule="fald")
        self.burn_in = burn_in
        self.thinning = thinning
        self.on_round = on_round
        self.on_sample = on_sample
        self._aggregate_metrics: Any = fedavg.get("train_metrics_aggr_fn")
        self._sent: Arrays = {}
        # Of the replies of this round that fit, by node.
        self._metrics: dict[str, Metrics] = {}
        self._states: dict[str, Arrays] = {}
        self._samples: list[PosteriorSamples] = []
        self._logged_warnings: set[RunWarning] = set()

    def initialize_parameters(self, **_: object) -> None:
        """Refuse the strategies' interface of before Flower's Message API, and say what to use.

        Raises:
            UserError: Always.
        """
        raise UserError(
            "fl.strategies.FALD is of Flower's Message API, and was given to a ServerApp of before "
            "it (strategy=, ServerConfig): call strategy.start(grid, arrays, num_rounds=...) in a "
            "function that @app.main() decorates, and start the app by  flwr run  (docs/flower.md)"
        )

    def posterior(self) -> PosteriorSamples | None:
        """Return the samples so far, weighed by step size; None where there are none.

        The temperature of a sample without one is 0.
        """
        return concatenate(self._samples) if self._samples else None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Messages:
        """Ask a sample of nodes to train, as FedAvg does, and remember what they were sent.

        Args:
            server_round: Number of the round, from 1.
            arrays: The state to send, float32.
            config: What FedAvg sends with it.
            grid: The nodes.

        Returns:
            The requests.

        Raises:
            ValueError: If an array is not of float32, or holds a value that is not finite.
        """
        layout = {
            name: (tuple(array.shape), np.dtype(np.float32)) for name, array in arrays.items()
        }
        self._sent = read_sent_arrays(arrays, layout)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Messages
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the states of replies that fit, and keep the average as a sample after burn-in.

        Args:
            server_round: Number of the round, from 1.
            replies: The sites' replies.

        Returns:
            The average and what the round cost; None and None where no reply can be used, and the
            state stays.
        """
        good, bad = self._check_and_log_replies(replies, is_train=True)
        if not good:
            return None, None
        units = {
            site: int(metrics[self.weighted_by_key]) for site, metrics in self._metrics.items()
        }
        weights, weight_warnings = weigh_sites(self.rule, units)
        state, state_warnings, is_mean = average_of_states(
            self._states, self._sent, self.rule, weights
        )
        self._log_new(
            server_round,
            {*state_warnings, *target_warnings(self.rule, weights, units), *weight_warnings},
        )
        temperatures = self._metric_by_site("temperature") if is_mean else {}
        temperature = averaged_temperature(temperatures, weights, units) if temperatures else 0.0
        metrics: Metrics = {
            "sites": len(good),
            "left-out": len(bad),
            "units": sum(units.values()),
            "temperature": temperature,
        }
        for name in COSTS:
            costs = self._metric_by_site(name)
            if costs:
                metrics[f"{name}-max"] = max(costs.values())
        if self._aggregate_metrics is not None:
            contents = [reply.content for reply in good]
            metrics |= self._aggregate_metrics(contents, self.weighted_by_key)
        after_burn_in = server_round - self.burn_in
        if after_burn_in > 0 and after_burn_in % self.thinning == 0:
            sample = self._sample_of(state, metrics["temperature"])
            self._samples.append(sample)
            self.on_sample(server_round, sample)
        self.on_round(server_round, state, metrics)
        arrays = ArrayRecord({name: Array(array) for name, array in state.items()})
        return arrays, MetricRecord({**metrics})

    def _check_and_log_replies(
        self, replies: Messages, is_train: bool, validate: bool = True
    ) -> tuple[list[Message], list[Message]]:
        """Part the replies that can be used from those that are left out.

        FedAvg ends the run at the first bad one. The text of an error is another machine's, and may
        quote a record: only its code is logged.
        """
        good: list[Message] = []
        bad: list[Message] = []
        self._metrics = {}
        self._states = {}
        for reply in replies:
            node = str(reply.metadata.src_node_id)
            try:
                metrics = self._checked_metrics(reply, node)
                if is_train:
                    self._states[node] = self._checked_state(reply)
            except Exception as error:
                # Whatever one site sends must not end the run of the others.
                log(WARNING, "the reply of node %s is left out: %s", node, outside_text(str(error)))
                bad.append(reply)
                continue
            self._metrics[node] = metrics
            good.append(reply)
        if is_train or not good:
            return good, bad
        return self._with_common_metrics(good), bad

    def _checked_metrics(self, reply: Message, node: str) -> Metrics:
        if reply.has_error():
            raise ValueError(_words_of(reply.error.code))
        if node in self._metrics:
            raise ValueError("it is the second of its node")
        metrics = _read_metrics(reply)
        if not 1 <= metrics.get(self.weighted_by_key, 0) <= MOST_UNITS:
            raise ValueError(
                f"its metric {self.weighted_by_key!r} is no number of units, 1 or more"
            )
        return metrics

    def _checked_state(self, reply: Message) -> Arrays:
        layout = {name: (array.shape, array.dtype) for name, array in self._sent.items()}
        arrays = reply.content.array_records.get(self.arrayrecord_key, ArrayRecord())
        return read_sent_arrays(arrays, layout)

    def _with_common_metrics(self, replies: list[Message]) -> list[Message]:
        """Return the replies with the metrics that most have: averages need the same of all."""
        names = [frozenset(metrics) for metrics in self._metrics.values()]
        common, _ = Counter(names).most_common(1)[0]
        return [
            reply
            for reply, reply_names in zip(replies, names, strict=True)
            if reply_names == common
        ]

    def _log_new(self, server_round: int, warnings: set[RunWarning]) -> None:
        for warning in warnings - self._logged_warnings:
            log(WARNING, "round %s: %s", server_round, sentence(warning))
            self._logged_warnings.add(warning)

    def _sample_of(self, state: Arrays, temperature: float) -> PosteriorSamples:
        step_sizes = list(self._metric_by_site("step-size").values())
        # A sample weighs 1 where the sites do not say how large their steps were.
        weight = float(np.median(step_sizes or [1.0])) or 1.0
        arrays = {name: array[np.newaxis] for name, array in state.items()}
        return PosteriorSamples(arrays, np.array([weight]), np.array([temperature]))

    def _metric_by_site(self, name: str) -> Metrics:
        """Return a metric of 0 or more of every site; nothing where one does not have it."""
        values = {site: metrics.get(name, -1) for site, metrics in self._metrics.items()}
        return values if min(values.values()) >= 0 else {}


def _check_rule(rule: object) -> None:
    if not isinstance(rule, aggregation.FALD | None):
        raise UserError(
            f"rule is {repr(rule)[:60]}: write rule=fl.FALD(robust='median', "
            "site_weights='uniform'), rule=fl.FALD(), or leave it out"
        )


def _check_rounds(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or value < least:
        raise UserError(f"{name} is {value!r}: give a whole number of rounds, {least} or more")


def _words_of(code: int) -> str:
    if code != ErrorCode.CLIENT_APP_RAISED_EXCEPTION:
        return f"error code {code}"
    return "its ClientApp failed, as one of before Flower's Message API (client_fn) always does"


def _read_metrics(reply: Message) -> Metrics:
    """Read the one MetricRecord of a reply: at most 64 numbers within 1e15 with printable names."""
    records = list(reply.content.metric_records.values())
    if len(records) != 1 or len(records[0]) > MOST_METRICS:
        raise ValueError(
            f"it has {len(records)} metric records, or one of more than {MOST_METRICS} metrics"
        )
    metrics: Metrics = {}
    for name, value in records[0].items():
        printable_name = outside_text(name)
        # A number that is not one (NaN) fails the bound as well.
        if (
            printable_name != name
            or not isinstance(value, int | float)
            or not abs(value) <= MOST_VALUE
        ):
            raise ValueError(f"its metric {printable_name!r} is not one number within 1e15")
        metrics[name] = value
    return metrics


def __dir__() -> list[str]:
    return __all__
