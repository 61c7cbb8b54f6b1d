"""Could a chain have got to where a reply says it is? What lies beyond its reach did not come from the plan."""

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.data.declared_units import MAX_DECLARATION_ERROR
from fl_dpbayes.privacy.planned_noise import NOISE_TOLERANCE, planned_chain
from fl_dpbayes.protocol.arrays import Arrays, without_prefix
from fl_dpbayes.protocol.train import TrainRequest
from fl_dpbayes.samplers.displacement_bound import displacement_bound
from server.check_reply import CheckedReply

# Sites compute in float32.
ROUNDING = 1.001
SINGLE_PRECISION = 2.0**-24


def check_reachable(reply: CheckedReply, request: TrainRequest, units: int, start: Arrays) -> None:
    """Reject samples and states that lie farther from the start than clipping and the planned noise let a chain get.

    Everything in the bound is public. An honest chain stays within it but for one stretch in 10^12.

    Args:
        reply: a reply that otherwise fits its request.
        request: what was asked.
        units: number of privacy units that the site declares, above zero.
        start: the state that the request carried.

    Raises:
        ValueError: naming how far the state lies and how far a chain can get.
    """
    steps = reply.last_step + 1 - request.first_step
    bound = reachable(request, units, start, steps)
    if bound is None:
        return
    began = without_prefix("parameters", start)
    kept = [step for step in range(steps) if request.plan.is_kept(request.first_step + step)]
    for index, row in enumerate(kept):
        sample = {name: array[index] for name, array in reply.samples.arrays.items()}
        _check(f"sample {index + 1}", _distance(sample, began), bound[row, 0])
    last = {slot: without_prefix(slot, reply.last) for slot in ("parameters", "momentum")}
    _check("its last state", _distance(last["parameters"], began), bound[-1, 0])
    _check("its momentum", _norm(last["momentum"].values()), bound[-1, 1])


def reachable(request: TrainRequest, units: int, start: Arrays, steps: int) -> npt.NDArray[np.float64] | None:
    """Bound how far from its start an honest site can be after each of the request's first steps.

    Args:
        request: what is asked.
        units: number of privacy units that the site declares, above zero.
        start: the state that the request carries.
        steps: how many of its steps.

    Returns:
        Shape (steps, 2): the greatest distance of the parameters, and the greatest norm of the momentum. None where
        there is no such bound (`displacement_bound`), or no noise fits the site's budget.
    """
    plan, began = request.plan, {slot: without_prefix(slot, start) for slot in ("parameters", "momentum")}
    try:
        chain = planned_chain(plan, units)
    except UserError:
        # The site says in its own refusal that no noise fits; what it would have done is not known here.
        return None
    norms = np.array([_norm(began[slot].values()) for slot in ("parameters", "momentum")])
    bound = displacement_bound(
        replace(chain, noise_multipliers=(1 + NOISE_TOLERANCE) * chain.noise_multipliers),
        range(request.first_step, request.first_step + steps),
        most_units=units / (1 - MAX_DECLARATION_ERROR),
        parameters=sum(array.size for array in began["parameters"].values()),
        start_norm=norms[0],
        start_momentum=norms[1],
    )
    if bound is None:
        return None
    # Each of the steps rounds every value once or twice, however short it is.
    return bound + 4 * steps * SINGLE_PRECISION * (norms + np.array([bound[-1, 0], 0.0]))


def _check(what: str, distance: float, bound: float) -> None:
    if distance > ROUNDING * bound:
        raise ValueError(f"{what} lies {distance:.3g} from the start, farther than any chain's {bound:.3g}")


def _distance(state: Arrays, start: Arrays) -> float:
    return _norm(state[name].astype(np.float64) - start[name] for name in start)


def _norm(arrays: Iterable[npt.NDArray]) -> float:
    return math.sqrt(sum(float(np.square(array, dtype=np.float64).sum()) for array in arrays))
