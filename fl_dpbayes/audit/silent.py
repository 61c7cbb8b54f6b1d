"""Sites whose records stay silent: they release their start, their prior and noise."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from fl_dpbayes.audit.canary_site import CanaryRecords, CanarySite, write_canary_site
from fl_dpbayes.audit.directions import state_size
from fl_dpbayes.config import Scenario

Array = npt.NDArray[np.float64]

# Units that the silent site declares, and holds: noise that follows from the real number would
# show.
UNITS = 20
HELD = 17
# Where a coordinate starts: far enough from 0 that a prior's gradient keeps its sign.
START = 2e-4
# exp(-10000) is zero in float32: a record of the favoured class has a gradient of exactly zero.
SILENT_LOGIT = 1e4


def silent_site(folder: Path, scenario: Scenario, *, delta: float) -> CanarySite:
    """Write a site of black records of class 0, fewer than it declares.

    Args:
        folder: To write it into.
        scenario: Whose task it has.
        delta: Of its ledger.

    Returns:
        A site of HELD units that declares UNITS.
    """
    task = scenario.data.source.task
    records = CanaryRecords(
        task=task,
        features=np.zeros((HELD, *task.input_shape), np.uint8),
        labels=np.zeros(HELD, np.int64),
    )
    return write_canary_site(folder, scenario, records, UNITS, delta=delta)


def silent_start(scenario: Scenario, *, low_biases: bool) -> dict[str, Array]:
    """Return a state in which records of class 0 have no gradient.

    Args:
        scenario: Whose model it is for.
        low_biases: Whether the biases of all classes but 0 are low; else that of class 0 is high.

    Returns:
        Parameters and spread, shape (d,) each.
    """
    vector = np.full(state_size(scenario), START)
    # The last parameter is the output layer's bias; every record is of class 0.
    bias = vector[-scenario.data.source.task.outcome.outputs :]
    if low_biases:
        bias[1:] = -SILENT_LOGIT
    else:
        bias[0] = SILENT_LOGIT
    return {"parameters": vector, "spread": np.full(len(vector), START)}
