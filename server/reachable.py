"""Could a chain have got to where a reply says it is? What lies beyond its reach did not come from the plan."""

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from fl_dpbayes.data.declared_units import MAX_DECLARATION_ERROR
from fl_dpbayes.errors import UserError
from fl_dpbayes.privacy.planned_noise import NOISE_TOLERANCE, planned_noise
from fl_dpbayes.protocol.arrays import Arrays, without_prefix
from fl_dpbayes.protocol.precision import rounding_error
from fl_dpbayes.protocol.train import TrainRequest
from fl_dpbayes.schedules.reach import reach
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
    plan, began = request.plan, {slot: without_prefix(slot, start) for slot in ("parameters", "momentum")}
    try:
        noise = (1 + NOISE_TOLERANCE) * planned_noise(plan, units)
    except UserError:
        # The site says in its own refusal that no noise fits; what it would have done is not known here.
        return
    bound = reach(
        plan,
        noise,
        units=units,
        most_units=units / (1 - MAX_DECLARATION_ERROR),
        first_step=request.first_step,
        steps=reply.last_step + 1 - request.first_step,
        parameters=sum(array.size for array in began["parameters"].values()),
        start_norm=_norm(began["parameters"].values()),
        start_momentum=_norm(began["momentum"].values()),
    )
    if bound is None:
        return
    kept = [step - request.first_step for step in range(request.first_step, reply.last_step + 1) if plan.is_kept(step)]
    # Each of the steps rounds every value once or twice, however short it is.
    magnitude = _norm(began["parameters"].values()) + float(bound[-1, 0])
    bound = bound + 4 * len(bound) * SINGLE_PRECISION * np.array([magnitude, _norm(began["momentum"].values())])
    for index, row in enumerate(kept):
        sample = {name: array[index] for name, array in reply.samples.arrays.items()}
        slack = rounding_error(sample, request.precision)
        _check(f"sample {index + 1}", _distance(sample, began["parameters"]), bound[row, 0] + slack)
    last = {slot: without_prefix(slot, reply.last) for slot in ("parameters", "momentum")}
    _check("its last state", _distance(last["parameters"], began["parameters"]), bound[-1, 0])
    _check("its momentum", _norm(last["momentum"].values()), bound[-1, 1])


def _check(what: str, distance: float, bound: float) -> None:
    if distance > ROUNDING * bound:
        raise ValueError(f"{what} lies {distance:.3g} from the start, farther than any chain's {bound:.3g}")


def _distance(state: Arrays, start: Arrays) -> float:
    return _norm(state[name].astype(np.float64) - start[name] for name in start)


def _norm(arrays: Iterable[npt.NDArray]) -> float:
    return math.sqrt(sum(float(np.square(array, dtype=np.float64).sum()) for array in arrays))
