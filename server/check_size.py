"""Do a round's replies fit into a message each, and on the disk? Asked before it: no privacy is spent in vain."""

import math
import shutil

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.plan import TrainingPlan
from fl_dpbayes.protocol.train import MAX_REPLY_BYTES, reply_bytes
from server.fixed import Federation

# Of a site in a round, beside samples: rows, headers, a ledger's pages and their log.
ROUND_BYTES = 2**14


def check_reply_size(plan: TrainingPlan, federation: Federation) -> None:
    """Check that no round's reply is larger than a message may be; rounds are the chunks in which samples travel.

    Args:
        plan: the plan of every site's chain.
        federation: the model.

    Raises:
        UserError: with the largest reply's size and the remedies.
    """
    parameters = sum(math.prod(shape) for shape in federation.shapes.values())
    largest = _largest_reply(plan, parameters)
    if largest > MAX_REPLY_BYTES:
        raise UserError(
            f"a round's reply would hold {largest // 2**20} MiB ({parameters} parameters), a message "
            f" holds {MAX_REPLY_BYTES // 2**20} MiB: keep fewer samples in a round (raise training.thinning, or "
            "take fewer steps_per_round in more rounds)"
        )


def check_room(plan: TrainingPlan, federation: Federation, sites: int) -> None:
    """Check that the disk holds what a round adds to the run directory, and as much for the ledgers of a simulation.

    Args:
        plan: the plan of every site's chain.
        federation: model and run directory.
        sites: how many are asked.

    Raises:
        UserError: with the folder, the space that is left and the space that it takes.
    """
    parameters = sum(math.prod(shape) for shape in federation.shapes.values())
    needed = (2 * sites + 1) * (_largest_reply(plan, parameters) + ROUND_BYTES)
    free = shutil.disk_usage(federation.run_folder).free
    if free < needed:
        raise UserError(
            f"a round writes up to {math.ceil(needed / 2**10)} KiB to {federation.run_folder}, whose disk has "
            f"{free // 2**10} KiB left: free space on it"
        )


def _largest_reply(plan: TrainingPlan, parameters: int) -> int:
    return max(
        reply_bytes(plan, number * plan.steps_per_round, plan.steps_per_round, parameters)
        for number in range(plan.total_rounds)
    )
