"""A private chain on one institution's records, for any module, without Flower or a scenario.

Its whole schedule is planned, and its noise solved, before the first step. It may then run in one
go, or round by round inside a ClientApp of one's own; docs/flower.md says what is promised where no
ledger keeps count.
"""

import copy
import logging
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypedDict, Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fl_dpbayes.api.chain_release import ChainPrivacy, ChainRelease
from fl_dpbayes.api.keywords import check_keywords
from fl_dpbayes.api.labelled_records import LabelledArrays, LabelledData, labelled_arrays
from fl_dpbayes.config import (
    SGLD,
    ConstantStepSize,
    PrivacyPlan,
    SamplerSettings,
    TrainingPlan,
    read_record,
)
from fl_dpbayes.data import MAX_DECLARATION_ERROR, most_declared
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import digest, read_sealed_json, write_sealed_json
from fl_dpbayes.files.folder_lock import folder_lock
from fl_dpbayes.models import check_records_apart, parameters, repeatable, validate_module
from fl_dpbayes.posterior import PosteriorSamples
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

Position: TypeAlias = MutableMapping[str, Any]
State: TypeAlias = Mapping[str, npt.NDArray] | Mapping[str, SentArray]
UNREADABLE = (
    "the data set failed while it was read, and its error may quote a record: run "
    "[data[i] for i in range(len(data))] on this machine to see it (its log has it too)"
)
FAILED = "the chain failed after its steps were spent: see the log of this machine"
log = logging.getLogger("fl_dpbayes")


class ChainKeys(TypedDict, total=False):
    """What `PrivateChain` and `private_chain` take by name; see there."""

    units: npt.ArrayLike | None
    declared: int | None
    position: Position | Path | None
    rounds: int
    steps_per_round: int
    burn_in: int
    thinning: int
    sampler: SamplerSettings | Mapping[str, Any]
    prior_share: float


class PrivateChain:
    """A planned private chain, run in `rounds` stretches of `steps_per_round` steps."""

    def __init__(
        self,
        module: nn.Module,
        data: LabelledData,
        privacy: PrivacyPlan,
        **keys: Unpack[ChainKeys],
    ) -> None:
        """Plan the whole chain; no step is taken.

        Args:
            module: No layer may mix the records of a batch; it is not changed.
            data: A torch Dataset of (features, label), a DataLoader of one, or the two as a tuple
                of tensors or arrays; labels 0 .. classes - 1. A DataLoader's data set is read once:
                batches are drawn by `privacy.sampling_rate`.
            privacy: The budget, `Privacy(epsilon=4, delta=1e-3)`.
            **keys: Any of these.

                - `units`: The privacy unit of each record, such as a patient's number, (N,);
                  without it each record is one.
                - `declared`: A public number n of units, right to a fifth of the real one; without
                  it they are counted, and their number is then public.
                - `position`: Where the steps that are spent are written before they are taken: a
                  file in a folder of its own, or a mapping that outlives this object, such as a
                  ConfigRecord of a node's `context.state`.
                - `rounds`, `steps_per_round`: Of the whole plan; 1 and 200.
                - `burn_in`: First steps of which no sample is kept; half of all.
                - `thinning`: One state in so many is kept; 5.
                - `sampler`: Such as `DPSGLD(step_size=0.3)`; DP-SGLD at step size 0.1.
                - `prior_share`: 1/K where K sites share the prior; 1.

        Raises:
            UserError: If module, data, plan and position do not fit each other, or no noise meets
                the budget.
            RuntimeError: If the data cannot be read. No error's text holds anything of them.
        """
        names = [*ChainKeys.__annotations__, "module", "data", "privacy"]
        check_keywords("a private chain", keys, names)
        _check_budget(privacy)
        if not isinstance(module, nn.Module):
            raise UserError(f"module is {str(module)[:60]!r}: give a torch module that was built")
        validate_module(module)
        units = keys.pop("units", None)
        declared = keys.pop("declared", None)
        position = keys.pop("position", None)
        with _text_withheld(UNREADABLE):
            self._records = _training_records(labelled_arrays(data), units)
        self.units = _checked_units(self._records, declared, privacy.delta)
        self._plan = _training_plan(privacy, keys)
        steps = self._plan.total_steps
        self._module = module
        self._epsilon = self._cost(planned_stretch(self._plan, self.units, 0, steps).history)
        if self._epsilon > privacy.epsilon:
            raise UserError(
                f"this plan costs epsilon {self._epsilon:.3g}, above {privacy.epsilon}: "
                "give more noise"
            )
        labels = self._records.targets
        logits = check_records_apart(module, self._records.features.shape[1:])
        if not ((labels >= 0) & (labels < logits)).all():
            raise UserError(
                f"the module returns {logits} logits for a record: a label must name one of them"
            )
        self._position: Position | Path = {} if position is None else position
        # Under another privacy unit the same steps are another plan.
        unit = "record" if units is None else "given"
        self._plan_digest = f"{digest(self._plan)} {self.units} {unit}"
        self._last: Arrays | None = None

    def advance(self, start: State | None = None) -> ChainRelease:
        """Run the next `steps_per_round` steps, whichever round a server believes this is.

        They count as spent before the first of them is taken, and stay so if the stretch fails.

        Args:
            start: Parameter name -> array, all finite, or a message's ArrayRecord of them, which is
                bounded before it is read; None: where this object stopped, or the module's own
                parameters.

        Returns:
            The samples of this stretch, its last state, and what the chain has cost.

        Raises:
            UserError: If every planned step is spent.
            ValueError: If the start does not fit the module.
            ChainDivergedError: If the chain did. No error's text holds anything of the records.
        """
        module = copy.deepcopy(self._module)
        vector = self._start_vector(start, module)
        first = self._reserve_steps()
        size = self._plan.steps_per_round
        with _text_withheld(FAILED):
            repeatable(next(module.parameters()).device)
            result = run_chain(
                module,
                self._records,
                planned_chain(self._plan, self.units),
                range(first, first + size),
                initial_vectors(self._plan.sampler, vector),
                Streams.from_entropy().of_chain(),
            )
        stretch = planned_stretch(self._plan, self.units, first, size)
        samples = parameters.vector_to_arrays(torch.from_numpy(result.samples), module)
        last_vector = torch.from_numpy(result.last["parameters"])
        self._last = parameters.vector_to_arrays(last_vector, module)
        return ChainRelease(
            samples=PosteriorSamples(samples, stretch.weights, stretch.temperatures),
            last=self._last,
            temperature=stretch.temperature,
            step_size=stretch.last_step_size,
            privacy=self._privacy_after(stretch.reached, steps=first + size),
            module=self._module,
        )

    def _start_vector(self, start: State | None, module: nn.Module) -> torch.Tensor:
        state: Any = self._last if start is None else start
        if state is None:
            vector = parameters.to_vector(module)
        else:
            if not all(isinstance(array, np.ndarray) for array in state.values()):
                shapes = parameters.parameter_shapes(module)
                layout = {name: (shape, np.dtype(np.float32)) for name, shape in shapes.items()}
                state = read_sent_arrays(state, layout)
            vector = parameters.arrays_to_vector(state, module)
        if not vector.isfinite().all():
            raise ValueError("the start has a value that is not finite")
        return vector

    def _privacy_after(self, history: History, steps: int) -> ChainPrivacy:
        noise_multipliers = noise_of_steps(history)
        return ChainPrivacy(
            epsilon=self._cost(history),
            epsilon_planned=self._epsilon,
            budget=self._plan.privacy.epsilon,
            delta=self._plan.privacy.delta,
            noise_multipliers=(float(noise_multipliers.min()), float(noise_multipliers.max())),
            steps=steps,
            units=self.units,
        )

    def _cost(self, history: History) -> float:
        return pld_epsilon(history, self._plan.privacy.delta, self._plan.privacy.adjacency)

    def _reserve_steps(self) -> int:
        """Write down that the next stretch is spent, and return its first step."""
        if not isinstance(self._position, Path):
            return self._move(self._position)
        with folder_lock(self._position.parent):
            position = read_sealed_json(self._position) if self._position.is_file() else {}
            first = self._move(position)
            write_sealed_json(self._position, position)
        return first

    def _move(self, position: Position) -> int:
        first = position.get("steps", 0)
        if position and (position.get("plan") != self._plan_digest or not isinstance(first, int)):
            raise UserError(
                "the position is that of another plan, whose steps are spent: go on with that plan"
            )
        end = first + self._plan.steps_per_round
        if end > self._plan.total_steps:
            raise UserError(
                f"all {self._plan.total_steps} planned steps are spent: no further step is taken"
            )
        position["plan"] = self._plan_digest
        position["steps"] = end
        return first


def private_chain(
    module: nn.Module, data: LabelledData, privacy: PrivacyPlan, **keys: Unpack[ChainKeys]
) -> ChainRelease:
    """Sample the posterior of a module's parameters privately, from one institution's records.

    Randomness comes from the operating system. Each call spends its privacy anew: calls on the
    same records add up.

    Args:
        module: As of `PrivateChain`.
        data: As of `PrivateChain`.
        privacy: As of `PrivateChain`.
        **keys: All else that `PrivateChain` takes; `rounds` is 1.

    Returns:
        What the whole chain leaves.

    Raises:
        UserError: As of `PrivateChain`, or if there are more rounds than the one that is run.
    """
    chain = PrivateChain(module, data, privacy, **keys)
    if chain._plan.rounds > 1:
        raise UserError(
            f"rounds is {chain._plan.rounds}: private_chain runs all its steps in one round: write "
            f"steps_per_round={chain._plan.total_steps}, or go round by round with "
            "fl.PrivateChain(...).advance()"
        )
    return chain.advance()


@contextmanager
def _text_withheld(failure: str) -> Iterator[None]:
    """Keep an error's text here: it may quote a record, and Flower sends it to the server."""
    try:
        yield
    except (UserError, ChainDivergedError):
        raise
    except Exception:
        log.exception(failure)
        raise RuntimeError(failure) from None


def _check_budget(privacy: object) -> None:
    if isinstance(privacy, PrivacyPlan):
        return
    is_number = isinstance(privacy, int | float)
    given = f"{privacy}" if is_number else f"a {type(privacy).__name__}"
    raise UserError(
        f"privacy is {given}: a private chain needs a budget, write fl.Privacy(epsilon="
        f"{privacy if is_number else 4.0}, delta=1e-3), delta below 1 / n for n units, behind the "
        "data: a Dataset, a DataLoader or a tuple (features, labels)"
    )


def _checked_units(records: TrainingRecords, declared: int | None, delta: float) -> int:
    """Return the public number of privacy units."""
    count = len(np.unique(records.unit_index))
    units = count if declared is None else declared
    if not count or abs(count - units) > MAX_DECLARATION_ERROR * count:
        raise UserError(
            f"{units} units: there must be one, and the declared number right to a fifth"
        )
    most_units = count if declared is None else most_declared(declared)
    if delta * most_units >= 1:
        raise UserError(f"delta is {delta}: it must be below 1 / {most_units:g}, one per unit")
    return units


def _training_plan(privacy: PrivacyPlan, keys: ChainKeys) -> TrainingPlan:
    content: dict[str, Any] = {
        "rounds": 1,
        "steps_per_round": 200,
        "burn_in": 0,
        "thinning": 5,
        "sampler": SGLD(step_size=ConstantStepSize(initial=0.1)),
        **keys,
        "privacy": privacy,
        "chain_start": "broadcast",
    }
    plan = read_record(TrainingPlan, content, "private chain")
    if "burn_in" not in keys:
        content["burn_in"] = plan.total_steps // 2
        plan = read_record(TrainingPlan, content, "private chain")
    if plan.rounds > 1 and len(plan.sampler.state_vectors) > 1:
        raise UserError(
            f"only a state of parameters travels between rounds, and {plan.sampler.kind!r} has "
            "more: set rounds=1"
        )
    return plan


def _training_records(records: LabelledArrays, units: npt.ArrayLike | None) -> TrainingRecords:
    labels = records.labels
    if not np.issubdtype(labels.dtype, np.integer):
        raise UserError(
            f"the labels are of type {labels.dtype}: give one whole number from 0 for each record, "
            "such as labels.long()"
        )
    unit_names = np.arange(len(labels)) if units is None else np.asarray(units)
    unit_index = np.unique(unit_names, return_inverse=True)[1]
    if unit_index.shape != labels.shape:
        raise UserError("units has another shape: give one for each record")
    return TrainingRecords(
        features=records.features.astype(np.float32),
        targets=labels.astype(np.int64),
        unit_index=unit_index.astype(np.int64),
    )
