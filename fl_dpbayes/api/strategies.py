"""Flower strategies that a ServerApp of one's own can take alone: no scenario, no run directory, no card of a site.

Sites are then known by their nodes' numbers, and what a reply says of its size and temperature is
its site's own word; the strategies of this package's own app check both against plan and card.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fl_dpbayes.config import RunWarning, aggregation, outside_text
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

Messages = Iterable[Message]
Metrics = dict[str, int | float]
MOST_UNITS = 10**12
MOST_METRICS, MOST_VALUE = 64, 1e15


class FALD(FedAvg):
    """Federated averaging of Langevin chains: the averaged states after burn-in are samples of the posterior.

    Each site takes a few private steps from the state that is broadcast, with 1/K of the prior, and
    sends its last state (`PrivateChain.advance`). A reply that does not fit what was sent is left
    out and named in the log. Source: Deng et al. 2021, "On convergence of federated averaging
    Langevin dynamics"; docs/aggregation.md.
    """

    def __init__(
        self,
        *,
        rule: aggregation.FALD | None = None,
        burn_in: int = 0,
        thinning: int = 1,
        on_round: Callable[[int, Arrays, Metrics], object] = lambda *_: None,
        on_sample: Callable[[int, PosteriorSamples], object] = lambda *_: None,
        **fedavg: Any,
    ) -> None:
        """Make the strategy.

        `rule`: how states are averaged and sites weighed (None: by units). `burn_in`: rounds whose
        averages are no samples. `thinning`: one average in so many is kept. `on_round`: called
        after each round with its number, the averaged state and its metrics. `on_sample`: called
        with each sample that is kept. `fedavg`: what `flwr.serverapp.strategy.FedAvg` takes, such
        as fraction_train.
        """
        super().__init__(**fedavg)
        self.rule = rule or aggregation.FALD(rule="fald")
        self.burn_in, self.thinning, self.on_round, self.on_sample = (
            burn_in,
            thinning,
            on_round,
            on_sample,
        )
        self._more_metrics: Any = fedavg.get("train_metrics_aggr_fn") or (lambda contents, key: {})
        self._sent: Arrays = {}
        self._stated, self._states = dict[str, Metrics](), dict[str, Arrays]()
        self._samples, self._said = list[PosteriorSamples](), set[RunWarning]()

    def posterior(self) -> PosteriorSamples | None:
        """Return the samples so far, weighed by step size, or None.

        Their temperature is 0 where there is none.
        """
        return concatenate(self._samples) if self._samples else None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Messages:
        """Ask a sample of nodes to train, as FedAvg does, and remember what they were sent.

        Raises ValueError if an array is not of float32, or holds a value that is not finite.
        """
        layout = {
            name: (tuple(array.shape), np.dtype(np.float32)) for name, array in arrays.items()
        }
        self._sent = read_sent_arrays(arrays, layout)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Messages
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the states of the replies that fit, and keep the average as a sample after burn-in.

        Returns the average and what the round cost; nothing where no reply can be used, and the
        state stays.
        """
        good, bad = self._check_and_log_replies(replies, is_train=True)
        if not good:
            return None, None
        units = {site: int(metrics[self.weighted_by_key]) for site, metrics in self._stated.items()}
        weights, of_weights = weigh_sites(self.rule, units)
        state, warnings, is_mean = average_of_states(self._states, self._sent, self.rule, weights)
        for found in {
            *warnings,
            *target_warnings(self.rule, weights, units),
            *of_weights,
        } - self._said:
            log(WARNING, "round %s: %s", server_round, sentence(found))
            self._said.add(found)
        heat = self._of_all("temperature") if is_mean else {}
        metrics: Metrics = {"sites": len(good), "left-out": len(bad), "units": sum(units.values())}
        metrics["temperature"] = averaged_temperature(heat, weights, units) if heat else 0.0
        for name in ("epsilon", "epsilon-planned", "delta", "steps"):
            metrics |= {
                f"{name}-max": max(values.values()) for values in [self._of_all(name)] if values
            }
        metrics |= self._more_metrics([reply.content for reply in good], self.weighted_by_key)
        if server_round > self.burn_in and (server_round - self.burn_in) % self.thinning == 0:
            size = float(np.median([*self._of_all("step-size").values()] or [1.0])) or 1.0
            rows = {name: array[np.newaxis] for name, array in state.items()}
            self._samples.append(
                PosteriorSamples(rows, np.array([size]), np.array([metrics["temperature"]]))
            )
            self.on_sample(server_round, self._samples[-1])
        self.on_round(server_round, state, metrics)
        return ArrayRecord({name: Array(array) for name, array in state.items()}), MetricRecord(
            {**metrics}
        )

    def _check_and_log_replies(
        self, replies: Messages, is_train: bool, validate: bool = True
    ) -> tuple[list[Message], list[Message]]:
        """Part the replies that can be used from those that are left out.

        FedAvg ends the run at the first bad one.

        The text of an error is another machine's, and may quote a record: only its code is logged.
        """
        good, bad, self._stated, self._states = list[Message](), list[Message](), {}, {}
        layout = {name: (array.shape, array.dtype) for name, array in self._sent.items()}
        for reply in replies:
            node = str(reply.metadata.src_node_id)
            try:
                if reply.has_error():
                    raise ValueError(f"error code {reply.error.code}")
                if node in self._stated:
                    raise ValueError("it is the second of its node")
                metrics = _metrics(reply)
                if not 1 <= metrics.get(self.weighted_by_key, 0) <= MOST_UNITS:
                    raise ValueError(
                        f"its metric {self.weighted_by_key!r} is no number of units, 1 or more"
                    )
                if is_train:
                    record = reply.content.array_records.get(self.arrayrecord_key, ArrayRecord())
                    self._states[node] = read_sent_arrays(record, layout)
            except Exception as error:
                # Whatever one site sends must not end the run of the others.
                log(WARNING, "the reply of node %s is left out: %s", node, outside_text(str(error)))
                bad.append(reply)
                continue
            self._stated[node] = metrics
            good.append(reply)
        if is_train or not good:
            return good, bad
        # Averages need the same metrics of all: those that most replies have.
        names = [frozenset(metrics) for metrics in self._stated.values()]
        (common, _), *_ = Counter(names).most_common(1)
        return [one for one, name in zip(good, names, strict=True) if name == common], bad

    def _of_all(self, name: str) -> Metrics:
        """Return a metric of 0 or more of every site; nothing where one does not have it."""
        values = {site: metrics.get(name, -1) for site, metrics in self._stated.items()}
        return values if min(values.values()) >= 0 else {}


def _metrics(reply: Message) -> Metrics:
    """Read the one MetricRecord of a reply: at most 64 numbers within 1e15 with printable names."""
    records = list(reply.content.metric_records.values())
    if len(records) != 1 or len(records[0]) > MOST_METRICS:
        raise ValueError(
            f"it has {len(records)} metric records, or one of more than {MOST_METRICS} metrics"
        )
    found: Metrics = {}
    for name, value in records[0].items():
        if (
            outside_text(name) != name
            or not isinstance(value, int | float)
            or not abs(value) <= MOST_VALUE
        ):
            raise ValueError(f"its metric {outside_text(name)!r} is not one number within 1e15")
        found[name] = value
    return found
