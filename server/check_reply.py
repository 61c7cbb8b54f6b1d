"""Is a training reply what was asked for, can a chain have got there, and do a round's replies fit message and disk?"""

import math
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from flwr.app import Message

from fl_dpbayes.config import TrainingPlan
from fl_dpbayes.data import most_declared
from fl_dpbayes.errors import UserError
from fl_dpbayes.posterior import PosteriorSamples, distance
from fl_dpbayes.privacy import (
    NOISE_TOLERANCE,
    PlannedStretch,
    checked_statement,
    planned_chain,
    planned_stretch,
    reply_metrics,
)
from fl_dpbayes.protocol import (
    MAX_REPLY_BYTES,
    Arrays,
    PrivacyStatement,
    SiteCard,
    TrainReply,
    TrainRequest,
    prefixed,
    reply_bytes,
    without_prefix,
)
from fl_dpbayes.samplers.displacement_bound import displacement_bound
from server.exchange import check_steps
from server.messages import read_arrays
from server.roster import Federation

# Sites compute in float32.
ROUNDING = 1.001
SINGLE_PRECISION = 2.0**-24
# A chain that gets there has diverged. Averages, draws around them and sums over rounds of what is
# accepted stay in float32's range.
LARGEST_VALUE = 1e15
# Of a site in a round, beside samples: rows, headers, a ledger's pages and their log.
ROUND_BYTES = 2**14


@dataclass(frozen=True)
class CheckedReply:
    """A reply that matches its request: samples, last state, cost, the plan's stretch, and its public numbers."""

    samples: PosteriorSamples
    last: Arrays
    last_step: int
    stretch: PlannedStretch
    privacy: PrivacyStatement
    metrics: dict[str, int | float]


def check_train_reply(
    reply: Message,
    record: TrainReply,
    request: TrainRequest,
    card: SiteCard,
    shapes: dict[str, tuple[int, ...]],
    previous: PrivacyStatement | None,
) -> CheckedReply:
    """Check a reply that answers its request, and decode its arrays.

    `shapes`: of the model's parameters. `previous`: the last accepted statement of the site's
    spending in this run. Raises ValueError naming the first difference; nothing of the reply may
    then be used.
    """
    if (
        record.privacy.units != card.units
        or record.privacy.adjacency != request.plan.privacy.adjacency
    ):
        raise ValueError("its privacy statement does not fit the site's card or the request")
    check_steps(record, request)
    try:
        stretch = planned_stretch(request.plan, card.units, record.first_step, record.steps)
    except UserError:
        raise ValueError(
            "no noise meets the plan's budget at its size: no step of it can have run"
        ) from None
    delta = request.plan.privacy.delta
    own, reached, planned = stretch.history, stretch.reached, stretch.planned
    privacy = checked_statement(record.privacy, own, reached, previous, delta, planned)
    kept = len(stretch.weights)
    samples = {name: (kept, *shape) for name, shape in shapes.items()} if kept else {}
    last = request.plan.sampler.state_shapes(shapes)
    arrays = read_arrays(reply, prefixed("samples", samples) | prefixed("last", last))
    if any(np.abs(array).max(initial=0.0) > LARGEST_VALUE for array in arrays.values()):
        raise ValueError(f"a value is beyond {LARGEST_VALUE:.0e}: its chain has diverged")
    return CheckedReply(
        samples=PosteriorSamples(
            without_prefix("samples", arrays), stretch.weights, stretch.temperatures
        ),
        last=without_prefix("last", arrays),
        last_step=record.first_step + record.steps - 1,
        stretch=stretch,
        # Not those that came beside it, which only say the same again.
        privacy=privacy,
        metrics=reply_metrics(record, stretch),
    )


def check_displacement(
    reply: CheckedReply, request: TrainRequest, units: int, start: Arrays
) -> None:
    """Reject samples and states that lie farther from the start than clipping and the planned noise let a chain get.

    Everything in the bound is public: the request, its start, and the units that the site declares.
    An honest chain stays within it but for one stretch in 10^12. Raises ValueError naming how far
    the state lies.
    """
    steps = reply.last_step + 1 - request.first_step
    bound = displacements(request, units, start, steps)
    if bound is None:
        return
    began = without_prefix("parameters", start)
    kept = [step for step in range(steps) if request.plan.is_kept(request.first_step + step)]
    for index, row in enumerate(kept):
        sample = {name: array[index] for name, array in reply.samples.arrays.items()}
        _check(f"sample {index + 1}", distance(sample, began), bound[row, 0])
    last = {name: without_prefix(name, reply.last) for name in ("parameters", "momentum")}
    _check("its last state", distance(last["parameters"], began), bound[-1, 0])
    _check("its momentum", _norm(last["momentum"].values()), bound[-1, 1])


def displacements(
    request: TrainRequest, units: int, start: Arrays, steps: int
) -> npt.NDArray[np.float64] | None:
    """Bound how far from its start an honest site can be after each of the request's first `steps` steps.

    `units`: what the site declares, above zero. Returns shape (steps, 2): the greatest distance of
    the parameters, and the greatest norm of the momentum. None where there is no such bound
    (`displacement_bound`), or no noise fits the site's budget.
    """
    began = {name: without_prefix(name, start) for name in ("parameters", "momentum")}
    return _displacements(
        request.plan,
        units,
        range(request.first_step, request.first_step + steps),
        sum(array.size for array in began["parameters"].values()),
        (_norm(began["parameters"].values()), _norm(began["momentum"].values())),
    )


# Sites of one size that go on from one state have one bound.
@lru_cache(maxsize=1024)
def _displacements(
    plan: TrainingPlan, units: int, steps: range, parameters: int, norms: tuple[float, float]
) -> npt.NDArray[np.float64] | None:
    try:
        chain = planned_chain(plan, units)
    except UserError:
        # The site says in its own refusal that no noise fits; what it would have done is not known
        # here.
        return None
    bound = displacement_bound(
        replace(chain, noise_multipliers=(1 + NOISE_TOLERANCE) * chain.noise_multipliers),
        steps,
        most_units=most_declared(units),
        parameters=parameters,
        start_norm=norms[0],
        start_momentum=norms[1],
    )
    # Each of the steps rounds every value once or twice, however short it is.
    rounding = 4 * len(steps) * SINGLE_PRECISION
    return (
        None
        if bound is None
        else bound + rounding * (np.array(norms) + np.array([bound[-1, 0], 0.0]))
    )


def _check(what: str, distance: float, bound: float) -> None:
    if distance > ROUNDING * bound:
        raise ValueError(
            f"{what} lies {distance:.3g} from the start, farther than any chain's {bound:.3g}"
        )


def _norm(arrays: Iterable[npt.NDArray]) -> float:
    return math.sqrt(sum(float(np.square(array, dtype=np.float64).sum()) for array in arrays))


def check_reply_size(plan: TrainingPlan, federation: Federation) -> None:
    """Check that no round's reply is larger than a message may be, or raise UserError with its size and remedies."""
    largest = _largest_reply(plan, federation.parameters)
    if largest > MAX_REPLY_BYTES:
        raise UserError(
            f"a round's reply would hold {largest // 2**20} MiB ({federation.parameters} "
            "parameters), a message "
            f" holds {MAX_REPLY_BYTES // 2**20} MiB: keep fewer samples in a round (raise "
            "training.thinning, or "
            "take fewer steps_per_round in more rounds)"
        )


def check_disk_space(plan: TrainingPlan, federation: Federation, sites: int) -> None:
    """Raise UserError, before privacy is spent, if a round of so many sites, made-up ledgers too, may fill the disk."""
    needed = (2 * sites + 1) * (_largest_reply(plan, federation.parameters) + ROUND_BYTES)
    free = shutil.disk_usage(federation.run_folder).free
    if free < needed:
        raise UserError(
            f"a round writes up to {math.ceil(needed / 2**10)} KiB to {federation.run_folder}, "
            "whose disk has "
            f"{free // 2**10} KiB left: free space on it"
        )


def _largest_reply(plan: TrainingPlan, parameters: int) -> int:
    starts = range(0, plan.total_rounds * plan.steps_per_round, plan.steps_per_round)
    return max(
        reply_bytes(plan, first_step, plan.steps_per_round, parameters) for first_step in starts
    )
