"""Is a training reply what was asked for, can a chain get there, and is there room for it?"""

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
    RecalibrateRequest,
    SiteCard,
    StepsReply,
    TrainReply,
    TrainRequest,
    prefixed,
    reply_bytes,
    without_prefix,
)
from fl_dpbayes.samplers.displacement_bound import displacement_bound
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
NO_SAMPLES = PosteriorSamples(arrays={}, weights=np.zeros(0), temperatures=np.zeros(0))


@dataclass(frozen=True)
class CheckedReply:
    """A training reply that matches its request.

    Attributes:
        samples: Posterior samples of the round.
        last: The chain's last state, `<vector>/<name>`.
        last_step: Number of its last step in the plan, from 0.
        stretch: The public constants of its steps.
        privacy: What the site has spent.
        metrics: Its public numbers.
    """

    samples: PosteriorSamples
    last: Arrays
    last_step: int
    stretch: PlannedStretch
    privacy: PrivacyStatement
    metrics: dict[str, int | float]


def check_train_reply(
    message: Message,
    reply: TrainReply,
    request: TrainRequest,
    card: SiteCard,
    shapes: dict[str, tuple[int, ...]],
    previous: PrivacyStatement | None,
) -> CheckedReply:
    """Check a reply that answers its request, and decode its arrays.

    Args:
        message: The message that carries the reply.
        reply: The reply's header.
        request: The request.
        card: The site's card.
        shapes: Shapes of the model's parameters, by name.
        previous: The last accepted statement of the site's spending in this run.

    Raises:
        ValueError: Names the first difference; nothing of the reply may then be used.
    """
    privacy_plan = request.plan.privacy
    if reply.privacy.units != card.units or reply.privacy.adjacency != privacy_plan.adjacency:
        raise ValueError("its privacy statement does not fit the site's card or the request")
    check_steps(reply, request)
    try:
        stretch = planned_stretch(request.plan, card.units, reply.first_step, reply.steps)
    except UserError:
        raise ValueError(
            "no noise meets the plan's budget at its size: no step of it can have run"
        ) from None
    privacy = checked_statement(
        reply.privacy,
        stretch.history,
        stretch.reached,
        previous,
        privacy_plan.delta,
        stretch.planned,
    )
    arrays = _read_chain(message, request, sample_count=len(stretch.weights), shapes=shapes)
    return CheckedReply(
        samples=PosteriorSamples(
            without_prefix("samples", arrays), stretch.weights, stretch.temperatures
        ),
        last=without_prefix("last", arrays),
        last_step=reply.first_step + reply.steps - 1,
        stretch=stretch,
        privacy=privacy,
        # Not those that came beside the reply, which only say the same again.
        metrics=reply_metrics(reply, stretch),
    )


def check_steps(reply: StepsReply, request: TrainRequest | RecalibrateRequest) -> None:
    """Check that a reply's steps are the request's, or a prefix of them where it says so.

    Raises:
        ValueError: Names the difference.
    """
    if reply.first_step != request.first_step or reply.steps > request.steps:
        raise ValueError(
            f"it ran steps {reply.first_step}+{reply.steps}, not "
            f"{request.first_step}+{request.steps}"
        )
    if (reply.status == "OK") != (reply.steps == request.steps):
        raise ValueError(
            f"status {reply.status} does not fit {reply.steps} of {request.steps} steps"
        )


def _read_chain(
    message: Message,
    request: TrainRequest,
    sample_count: int,
    shapes: dict[str, tuple[int, ...]],
) -> Arrays:
    """Decode a chain's samples `samples/<name>` and last state `last/<vector>/<name>`."""
    expected = prefixed("last", request.plan.sampler.state_shapes(shapes))
    if sample_count:
        samples = {name: (sample_count, *shape) for name, shape in shapes.items()}
        expected = prefixed("samples", samples) | expected
    arrays = read_arrays(message, expected)
    if any(np.abs(array).max(initial=0.0) > LARGEST_VALUE for array in arrays.values()):
        raise ValueError(f"a value is beyond {LARGEST_VALUE:.0e}: its chain has diverged")
    return arrays


def check_displacement(
    reply: CheckedReply, request: TrainRequest, units: int, start: Arrays
) -> None:
    """Reject samples and states farther from the start than clipping and noise let a chain get.

    Everything in the bound is public. An honest chain stays within it but for one stretch in 10^12.

    Args:
        reply: The reply.
        request: The request.
        units: What the site declares, above zero.
        start: The request's start state, `<vector>/<name>`.

    Raises:
        ValueError: Names how far the state lies.
    """
    steps = reply.last_step + 1 - request.first_step
    bound = displacements(request, units=units, start=start, steps=steps)
    if bound is None:
        return
    start_parameters = without_prefix("parameters", start)
    sampled_steps = [
        step for step in range(steps) if request.plan.is_kept(request.first_step + step)
    ]
    for index, step in enumerate(sampled_steps):
        sample = {name: array[index] for name, array in reply.samples.arrays.items()}
        _check_distance(
            f"sample {index + 1}", distance(sample, start_parameters), largest=bound[step, 0]
        )
    last_parameters = without_prefix("parameters", reply.last)
    last_momentum = without_prefix("momentum", reply.last)
    _check_distance(
        "its last state", distance(last_parameters, start_parameters), largest=bound[-1, 0]
    )
    _check_distance("its momentum", _norm(last_momentum.values()), largest=bound[-1, 1])


def displacements(
    request: TrainRequest, units: int, start: Arrays, steps: int
) -> npt.NDArray[np.float64] | None:
    """Bound how far an honest site can be from its start after each of a request's steps.

    Args:
        request: The request.
        units: What the site declares, above zero.
        start: The request's start state, `<vector>/<name>`.
        steps: Number of first steps of the request.

    Returns:
        Shape (steps, 2): the greatest distance of the parameters, and the greatest norm of the
        momentum. None where there is no such bound (`displacement_bound`), or no noise fits the
        site's budget.
    """
    parameters = without_prefix("parameters", start)
    momentum = without_prefix("momentum", start)
    return _displacements(
        plan=request.plan,
        units=units,
        steps=range(request.first_step, request.first_step + steps),
        parameters=sum(array.size for array in parameters.values()),
        start_norm=_norm(parameters.values()),
        start_momentum=_norm(momentum.values()),
    )


# Sites of one size that go on from one state have one bound.
@lru_cache(maxsize=1024)
def _displacements(
    plan: TrainingPlan,
    units: int,
    steps: range,
    parameters: int,
    start_norm: float,
    start_momentum: float,
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
        start_norm=start_norm,
        start_momentum=start_momentum,
    )
    if bound is None:
        return None
    # Each of the steps rounds every value once or twice, however short it is.
    rounding = 4 * len(steps) * SINGLE_PRECISION
    largest_start = np.array([start_norm, start_momentum])
    largest_move = np.array([bound[-1, 0], 0.0])
    return bound + rounding * (largest_start + largest_move)


def _check_distance(what: str, distance: float, largest: float) -> None:
    if distance > ROUNDING * largest:
        raise ValueError(
            f"{what} lies {distance:.3g} from the start, farther than any chain's {largest:.3g}"
        )


def _norm(arrays: Iterable[npt.NDArray]) -> float:
    return math.sqrt(sum(float(np.square(array, dtype=np.float64).sum()) for array in arrays))


def check_reply_size(plan: TrainingPlan, federation: Federation) -> None:
    """Check that no round's reply is larger than a message may be.

    Raises:
        UserError: Names the size and the remedies.
    """
    largest = _largest_reply(plan, federation.parameters)
    if largest > MAX_REPLY_BYTES:
        raise UserError(
            f"a round's reply would hold {largest // 2**20} MiB ({federation.parameters} "
            "parameters), a message "
            f" holds {MAX_REPLY_BYTES // 2**20} MiB: keep fewer samples in a round (raise "
            "training.thinning, or take fewer steps_per_round in more rounds)"
        )


def check_disk_space(plan: TrainingPlan, federation: Federation, sites: int) -> None:
    """Check, before privacy is spent, that a round of so many sites cannot fill the disk.

    Simulated sites' ledgers lie on the same disk.

    Raises:
        UserError: Names the room that is needed.
    """
    needed = (2 * sites + 1) * (_largest_reply(plan, federation.parameters) + ROUND_BYTES)
    free = shutil.disk_usage(federation.run_folder).free
    if free < needed:
        raise UserError(
            f"a round writes up to {math.ceil(needed / 2**10)} KiB to {federation.run_folder}, "
            f"whose disk has {free // 2**10} KiB left: free space on it"
        )


def _largest_reply(plan: TrainingPlan, parameters: int) -> int:
    first_steps = range(0, plan.total_rounds * plan.steps_per_round, plan.steps_per_round)
    return max(
        reply_bytes(plan, first_step, plan.steps_per_round, parameters)
        for first_step in first_steps
    )
