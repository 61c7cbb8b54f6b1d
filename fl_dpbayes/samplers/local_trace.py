"""What a site may look at while its chain runs, and nobody else: a trace of its log posterior and of its clip.

Each figure is computed from records without noise. It is not private, so it is written to a file at
the site and never put in a reply; sending it would have to be paid for.
"""

import csv
import math
import os
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fl_dpbayes.config import TrainingPlan
from fl_dpbayes.files import replaced
from fl_dpbayes.models import RowWise, log_prior, parameter_shapes, vector_views
from fl_dpbayes.samplers.gradients.clipping import ClippedSum
from fl_dpbayes.samplers.minibatch import TrainingRecords
from fl_dpbayes.samplers.state_vectors import ChainState, from_state

LogLikelihood = Callable[[torch.Tensor], float]


@dataclass(frozen=True)
class StepTrace:
    """One row of the trace: `step`, 0-based, of the whole run, and the number of units in its batch.

    `clipped_fraction`: share of them whose gradient the clip reduced; NaN for an empty batch.
    `log_likelihood`: estimate of log p(D | w) after the step. `log_posterior`: log_likelihood + s
    log p(w), up to a constant.
    """

    step: int
    units: int
    clipped_fraction: float
    log_likelihood: float
    log_posterior: float


def log_likelihood_estimate(
    module: nn.Module, records: TrainingRecords, most: int, generator: np.random.Generator
) -> LogLikelihood:
    """Return a function that estimates the log likelihood of a site's records, N / m sum_{i in S} log p(d_i | w).

    S, at most `most` records, is drawn once, so that the trace shows how the chain moves and not
    how batches differ. Each record is computed by itself. NaN where the module fails on one of
    them: an error would tell others of it.
    """
    chosen = generator.permutation(len(records.features))[:most]
    shapes, compute = parameter_shapes(module), RowWise(module)
    inputs, wanted = (
        torch.from_numpy(records.features[chosen]),
        torch.from_numpy(records.targets[chosen]),
    )
    scale = len(records.features) / max(1, len(chosen))

    @torch.no_grad()
    def estimate(parameters: torch.Tensor) -> float:
        device = parameters.device
        try:
            outputs = compute(vector_views(parameters, shapes), inputs.to(device))
            return -scale * float(records.loss(outputs, wanted.to(device)))
        except Exception:
            return math.nan

    return estimate


class LocalTrace:
    """Collects rows in bounded memory; an instance is a chain's `on_step`.

    Every step is kept until the rows are full; then every other row is dropped and half as many
    steps are looked at from there on, so that the rows stay evenly spread over the chain.
    `log_likelihood`: parameters of the plain model, (d,) -> estimate of the log likelihood of all
    the site's records. `max_rows`: most rows to keep, >= 2.
    """

    def __init__(
        self, plan: TrainingPlan, log_likelihood: LogLikelihood, max_rows: int = 2000
    ) -> None:
        self._plan, self._log_likelihood, self._max_rows = plan, log_likelihood, max_rows
        self._every, self._seen = 1, 0
        self._rows: list[StepTrace] = []

    @property
    def rows(self) -> tuple[StepTrace, ...]:
        """The rows so far, in the order of the steps."""
        return tuple(self._rows)

    def __call__(self, number: int, state: ChainState, clipped_sum: ClippedSum) -> None:
        """Note a step by its number, the state after it and its clipped sum."""
        if self._seen % self._every == 0:
            if len(self._rows) == self._max_rows:
                del self._rows[1::2]
                self._every *= 2
            if self._seen % self._every == 0:
                self._rows.append(self._row(number, state, clipped_sum))
        self._seen += 1

    def write_csv(self, path: Path) -> None:
        """Write the rows with a header.

        A reader sees the old file or the new one, never half of it.
        """
        with replaced(path, through_power_cut=False) as partial:
            # For its owner only: the figures are as confidential as the records.
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows(
                    [[field.name for field in fields(StepTrace)], *map(astuple, self._rows)]
                )

    def _row(self, number: int, state: ChainState, clipped_sum: ClippedSum) -> StepTrace:
        parameters = from_state(state, self._plan.sampler)["parameters"]
        likelihood, units = self._log_likelihood(parameters), clipped_sum.units
        posterior = likelihood + self._plan.prior_share * float(
            log_prior(self._plan.sampler.prior, parameters)
        )
        clipped = int(clipped_sum.clipped) / units if units else math.nan
        return StepTrace(number, units, clipped, likelihood, posterior)
