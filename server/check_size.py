"""Do the planned replies fit into a message each? Asked before the first round: no privacy is spent in vain."""

import math

from fl_dpbayes.errors import UserError
from fl_dpbayes.protocol.plan import TrainingPlan
from fl_dpbayes.protocol.train import MAX_REPLY_BYTES, reply_bytes
from server.fixed import Federation


def check_reply_size(plan: TrainingPlan, federation: Federation) -> None:
    """Check that no round's reply is larger than a message may be; rounds are the chunks in which samples travel.

    Args:
        plan: the plan of every site's chain.
        federation: model and precision.

    Raises:
        UserError: with the largest reply's size and the remedies.
    """
    parameters = sum(math.prod(shape) for shape in federation.shapes.values())
    precision = federation.scenario.transport.precision
    largest = max(
        reply_bytes(plan, number * plan.steps_per_round, plan.steps_per_round, parameters, precision)
        for number in range(plan.total_rounds)
    )
    if largest > MAX_REPLY_BYTES:
        raise UserError(
            f"a round's reply would hold {largest // 2**20} MiB ({parameters} parameters, precision {precision}), a "
            f"message holds {MAX_REPLY_BYTES // 2**20} MiB: keep fewer samples in a round (raise training.thinning, or "
            "take fewer steps_per_round in more rounds), or set transport.precision to 'bfloat16' or 'int8'"
        )
