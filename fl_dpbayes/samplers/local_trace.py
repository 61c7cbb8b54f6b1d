"""What only a site may look at while its chain runs: a trace of its log posterior and of its clip.

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
    """One row of the trace.

    Attributes:
        step: Number of the step, 0-based, of the whole run.
        units: Number of units in its batch.
        clipped_fraction: Share of them whose gradient the clip reduced; NaN for an empty batch.
        log_likelihood: Estimate of log p(D | w) after the step.
        log_posterior: log_likelihood + s log p(w), up to a constant.
    """

    step: int
    units: int
    clipped_fraction: float
    log_likelihood: float
    log_posterior: float


def log_likelihood_estimate(
    module: nn.Module, records: TrainingRecords, most: int, generator: np.random.Generator
) -> LogLikelihood:
    """Return a function that estimates the log likelihood of a site's records.

        N / m sum_{i in S} log p(d_i | w)

    S is drawn once, so that the trace shows how the chain moves and not how batches differ. Each
    record is computed by itself.

    Args:
        module: The plain model.
        records: The site's N records.
        most: S has at most so many records.
        generator: Draws S.

    Returns:
        Parameters of the plain model, shape (d,) -> the estimate. It is NaN where the module fails
        on a record: an error would tell others of it.
    """
    chosen = generator.permutation(len(records.features))[:most]
    shapes = parameter_shapes(module)
    compute_outputs = RowWise(module)
    inputs = torch.from_numpy(records.features[chosen])
    targets = torch.from_numpy(records.targets[chosen])
    scale = len(records.features) / max(1, len(chosen))

    @torch.no_grad()
    def estimate(parameters: torch.Tensor) -> float:
        device = parameters.device
        try:
            outputs = compute_outputs(vector_views(parameters, shapes), inputs.to(device))
            return -scale * float(records.loss(outputs, targets.to(device)))
        except Exception:
            return math.nan

    return estimate


class LocalTrace:
    """Collects rows in bounded memory; an instance is a chain's `on_step`.

    Every step is kept until the rows are full. Then every other row is dropped and half as many
    steps are looked at from there on, so that the rows stay evenly spread over the chain.

    Args:
        plan: The chain's plan; it names the prior and the site's share of it.
        log_likelihood: Parameters of the plain model, (d,) -> estimate of the log likelihood of all
            the site's records.
        max_rows: Most rows to keep, >= 2.
    """

    def __init__(
        self, plan: TrainingPlan, log_likelihood: LogLikelihood, max_rows: int = 2000
    ) -> None:
        self._plan = plan
        self._log_likelihood = log_likelihood
        self._max_rows = max_rows
        self._interval = 1
        self._steps = 0
        self._rows: list[StepTrace] = []

    @property
    def rows(self) -> tuple[StepTrace, ...]:
        """The rows so far, in the order of the steps."""
        return tuple(self._rows)

    def __call__(self, number: int, state: ChainState, clipped_sum: ClippedSum) -> None:
        """Note a step.

        Args:
            number: Of the step within the run.
            state: The state after the step.
            clipped_sum: The step's clipped sum.
        """
        if self._steps % self._interval == 0:
            if len(self._rows) == self._max_rows:
                del self._rows[1::2]
                self._interval *= 2
            if self._steps % self._interval == 0:
                self._rows.append(self._row(number, state, clipped_sum))
        self._steps += 1

    def write_csv(self, path: Path) -> None:
        """Write the rows with a header; a reader sees the old file or the new one, never half."""
        header = [field.name for field in fields(StepTrace)]
        with replaced(path, through_power_cut=False) as partial:
            # For its owner only: the figures are as confidential as the records.
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([header, *map(astuple, self._rows)])

    def _row(self, number: int, state: ChainState, clipped_sum: ClippedSum) -> StepTrace:
        sampler = self._plan.sampler
        parameters = from_state(state, sampler)["parameters"]
        log_likelihood = self._log_likelihood(parameters)
        prior = float(log_prior(sampler.prior, parameters))
        units = clipped_sum.units
        return StepTrace(
            step=number,
            units=units,
            clipped_fraction=int(clipped_sum.clipped) / units if units else math.nan,
            log_likelihood=log_likelihood,
            log_posterior=log_likelihood + self._plan.prior_share * prior,
        )
