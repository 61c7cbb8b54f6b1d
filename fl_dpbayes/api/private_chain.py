"""A private chain on one institution's records, for a module of one's own and without Flower or a scenario.

Its whole schedule is planned, and its noise solved, before the first step. It may then run in one
go, or round by round inside a ClientApp of one's own; docs/flower.md says what is promised where no
ledger keeps count.
"""

import copy
import logging
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils.data import Dataset

from fl_dpbayes.config import SGLD, ConstantStepSize, PrivacyPlan, TrainingPlan, read_record
from fl_dpbayes.data import MAX_DECLARATION_ERROR, most_declared
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import digest, read_sealed_json, write_sealed_json
from fl_dpbayes.files.folder_lock import folder_lock
from fl_dpbayes.models import check_records_apart, parameters, repeatable, validate_module
from fl_dpbayes.posterior import PosteriorSamples, predict
from fl_dpbayes.privacy import (
    History,
    Streams,
    noise_of_steps,
    planned_chain,
    planned_stretch,
    pld_epsilon,
)
from fl_dpbayes.protocol import Arrays, SentArray, read_sent_arrays
from fl_dpbayes.samplers import ChainDivergedError, TrainingRecords, initial_vectors, run_chain

Values: TypeAlias = npt.ArrayLike | torch.Tensor
Pair = tuple[Values, Values]
Position = MutableMapping[str, Any]
log = logging.getLogger("fl_dpbayes")


@dataclass(frozen=True)
class ChainPrivacy:
    """What the steps of a chain have cost so far.

    `epsilon`: of the steps until now, by their privacy-loss distribution; it holds if the number of
    steps was fixed beforehand. `epsilon_planned`: of the whole plan, which holds whoever stops it,
    and when. `noise_multipliers`: least and greatest sigma_t, the noise on the sum over the clip
    norm. `units`: n, taken to be public.
    """

    epsilon: float
    epsilon_planned: float
    delta: float
    noise_multipliers: tuple[float, float]
    steps: int
    units: int


@dataclass(frozen=True)
class ChainRelease:
    """What a stretch of a private chain leaves: all of it may be published at the cost that `privacy` states.

    `samples`: posterior samples that the plan keeps of this stretch, parameter name -> (M, *shape);
    M may be 0. `last`: the last state, parameter name -> float32 array. `temperature`: mean of T_t
    over the stretch, weighted by step size; 1 is the posterior, 0 says that the sampler has none.
    `step_size`: of the last step.
    """

    samples: PosteriorSamples
    last: Arrays
    temperature: float
    step_size: float
    privacy: ChainPrivacy
    module: nn.Module

    @property
    def metrics(self) -> dict[str, int | float]:
        """The public and accounted numbers that a reply carries in its MetricRecord."""
        return {
            "num-examples": self.privacy.units,
            "epsilon": self.privacy.epsilon,
            "delta": self.privacy.delta,
            "epsilon-planned": self.privacy.epsilon_planned,
            "steps": self.privacy.steps,
            "temperature": self.temperature,
            "step-size": self.step_size,
        }

    def predict_proba(self, features: Values) -> npt.NDArray[np.float64]:
        """Return `predict_proba` of the stretch's samples; raises UserError if it kept none."""
        if not len(self.samples):
            raise UserError("this stretch kept no posterior sample: lower burn_in or thinning")
        return predict_proba(self.module, self.samples, features)


class PrivateChain:
    """A planned private chain: `rounds` stretches of `steps_per_round` steps, each from a state that is given."""

    def __init__(
        self,
        module: nn.Module,
        data: Dataset | Pair,
        privacy: PrivacyPlan,
        *,
        units: npt.ArrayLike | None = None,
        declared: int | None = None,
        position: Position | Path | None = None,
        **plan: Any,
    ) -> None:
        """Plan the whole chain; no step is taken.

        `module`: no layer may mix the records of a batch; it is not changed. `data`: a torch
        Dataset of (features, label), or the two as tensors or arrays, labels 0 .. classes - 1.
        `units`: the privacy unit of each record, such as a patient's number, shape (N,); None: each
        record is one. `declared`: n, a public number of units, right to a fifth of the real one;
        None counts them, and their number is then public. `position`: where the steps that are
        spent are written before they are taken: a file in a folder of its own, or a mapping that
        outlives this object, such as a ConfigRecord of a node's `context.state`. `plan`: fields of
        `TrainingPlan`: rounds (1), steps_per_round (200), burn_in (half), thinning (5), sampler
        (DP-SGLD at step size 0.1), and prior_share, 1/K where K sites share the prior. Raises
        UserError if module, data, plan and position do not fit each other, or no noise meets the
        budget, and RuntimeError if the data cannot be read. No error's text holds anything of them.
        """
        if not isinstance(privacy, PrivacyPlan):
            raise UserError(
                f"privacy is {type(privacy).__name__}: a private chain needs a budget, "
                "fl.Privacy(...)"
            )
        validate_module(module)
        with _untold("the records cannot be read"):
            self._records = _records(data, units)
        count = len(np.unique(self._records.unit_index))
        self.units = count if declared is None else declared
        if not count or abs(count - self.units) > MAX_DECLARATION_ERROR * count:
            raise UserError(
                f"{self.units} units: there must be one, and the declared number right to a fifth"
            )
        most = count if declared is None else most_declared(declared)
        if privacy.delta * most >= 1:
            raise UserError(
                f"delta is {privacy.delta}: it must be below 1 / {most:g}, one per unit"
            )
        steps = plan.get("rounds", 1) * plan.get("steps_per_round", 200)
        sampler = SGLD(step_size=ConstantStepSize(initial=0.1))
        defaults = {
            "rounds": 1,
            "steps_per_round": 200,
            "burn_in": steps // 2,
            "thinning": 5,
            "sampler": sampler,
        }
        fixed = {"privacy": privacy, "chain_start": "broadcast"}
        self._plan = read_record(TrainingPlan, defaults | plan | fixed, "TrainingPlan")
        if self._plan.chains > 1 or (
            self._plan.rounds > 1 and len(self._plan.sampler.state_vectors) > 1
        ):
            named = self._plan.sampler.kind
            raise UserError(
                f"only a state of parameters travels between rounds: {named!r} and chains "
                "> 1 have more"
            )
        self._module = module
        self._epsilon = self._cost(planned_stretch(self._plan, self.units, 0, steps).history)
        if self._epsilon > privacy.epsilon:
            raise UserError(
                f"this plan costs epsilon {self._epsilon:.3g}, above {privacy.epsilon}: "
                "give more noise"
            )
        labels, shape = self._records.targets, self._records.features.shape[1:]
        classes = check_records_apart(module, shape)
        if not ((labels >= 0) & (labels < classes)).all():
            raise UserError(
                f"the module returns {classes} logits for a record: a label must name one of them"
            )
        self._position: Position | Path = {} if position is None else position
        # Under another privacy unit the same steps are another plan.
        self._plan_digest = (
            f"{digest(self._plan)} {self.units} {'record' if units is None else 'given'}"
        )
        self._last: Arrays | None = None

    def advance(
        self, start: Mapping[str, npt.NDArray] | Mapping[str, SentArray] | None = None
    ) -> ChainRelease:
        """Run the next `steps_per_round` steps, whichever round a server believes this is.

        They count as spent before the first of them is taken, and stay so if the stretch fails.

        `start`: parameter name -> array, all finite, or a message's ArrayRecord of them, which is
        bounded before it is read; None: where this object stopped, or the module's own parameters.
        Raises UserError if every planned step is spent, ValueError if the start does not fit the
        module, ChainDivergedError if the chain did. The text of an error holds nothing of the
        records.
        """
        begun: Any = self._last if start is None else start
        if begun is not None and not all(isinstance(array, np.ndarray) for array in begun.values()):
            shapes = parameters.parameter_shapes(self._module)
            begun = read_sent_arrays(
                begun, {name: (shape, np.dtype(np.float32)) for name, shape in shapes.items()}
            )
        module, own = copy.deepcopy(self._module), parameters.to_vector(self._module)
        vector = own if begun is None else parameters.arrays_to_vector(begun, module)
        if not vector.isfinite().all():
            raise ValueError("the start has a value that is not finite")
        first, size = self._reserved(), self._plan.steps_per_round
        with _untold("the chain failed after its steps were spent"):
            repeatable(own.device)
            chain, vectors = (
                planned_chain(self._plan, self.units),
                initial_vectors(self._plan.sampler, vector),
            )
            streams = Streams.from_entropy().of_chain()
            result = run_chain(
                module, self._records, chain, range(first, first + size), vectors, streams
            )
        stretch, privacy = planned_stretch(self._plan, self.units, first, size), self._plan.privacy
        sigmas = noise_of_steps(stretch.reached)
        self._last = parameters.vector_to_arrays(
            torch.from_numpy(result.last["parameters"]), module
        )
        samples = parameters.vector_to_arrays(torch.from_numpy(result.samples), module)
        return ChainRelease(
            PosteriorSamples(samples, stretch.weights, stretch.temperatures),
            self._last,
            stretch.temperature,
            stretch.last_step_size,
            ChainPrivacy(
                epsilon=self._cost(stretch.reached),
                epsilon_planned=self._epsilon,
                delta=privacy.delta,
                noise_multipliers=(float(sigmas.min()), float(sigmas.max())),
                steps=first + size,
                units=self.units,
            ),
            self._module,
        )

    def _cost(self, history: History) -> float:
        return pld_epsilon(history, self._plan.privacy.delta, self._plan.privacy.adjacency)

    def _reserved(self) -> int:
        if not isinstance(self._position, Path):
            return self._first_reserved(self._position)
        with folder_lock(self._position.parent):
            kept = read_sealed_json(self._position) if self._position.is_file() else {}
            first = self._first_reserved(kept)
            write_sealed_json(self._position, kept)
        return first

    def _first_reserved(self, position: Position) -> int:
        first, end = position.get("steps", 0), self._plan.total_steps
        if position and (position.get("plan") != self._plan_digest or not isinstance(first, int)):
            raise UserError(
                "the position is that of another plan, whose steps are spent: go on with that plan"
            )
        if first + self._plan.steps_per_round > end:
            raise UserError(f"all {end} planned steps are spent: no further step is taken")
        position["plan"], position["steps"] = self._plan_digest, first + self._plan.steps_per_round
        return first


def private_chain(
    module: nn.Module, data: Dataset | Pair, privacy: PrivacyPlan, **keys: Any
) -> ChainRelease:
    """Sample the posterior of a module's parameters privately, from one institution's records.

    Arguments and errors are those of `PrivateChain`; randomness comes from the operating system.
    Each call spends its privacy anew: calls on the same records add up.
    """
    return PrivateChain(module, data, privacy, **keys).advance()


def predict_proba(
    module: nn.Module, samples: PosteriorSamples, features: Values
) -> npt.NDArray[np.float64]:
    """Return a module's class probabilities averaged over posterior samples, shape (N, classes)."""
    rows, device = np.asarray(features, np.float32), next(module.parameters()).device
    return predict(module, samples.arrays, samples.weights, rows, device=device).probabilities


@contextmanager
def _untold(what: str) -> Iterator[None]:
    """Keep an error's text on this machine: it may quote a record, and Flower sends it to the server."""
    try:
        yield
    except (UserError, ChainDivergedError):
        raise
    except Exception:
        log.exception(what)
        raise RuntimeError(f"{what}: see the log of this machine") from None


def _records(data: Dataset | Pair, units: npt.ArrayLike | None) -> TrainingRecords:
    columns: Any = data
    if not isinstance(data, tuple):
        rows = [data[at] for at in range(len(data))]  # type: ignore[arg-type]
        columns = (np.stack([np.asarray(row[part]) for row in rows]) for part in range(2))
    features, labels = map(np.asarray, columns)
    if (
        labels.ndim != 1
        or len(labels) != len(features)
        or not np.issubdtype(labels.dtype, np.integer)
    ):
        raise UserError("give one label for each record, all whole numbers")
    owners = np.unique(
        np.arange(len(labels)) if units is None else np.asarray(units), return_inverse=True
    )[1]
    if owners.shape != labels.shape:
        raise UserError("units has another shape: give one for each record")
    return TrainingRecords(
        features.astype(np.float32), labels.astype(np.int64), owners.astype(np.int64)
    )
