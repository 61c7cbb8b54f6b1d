"""What a site counts of its predictions: all test records, and each subgroup of them by itself."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from fl_dpbayes.calibration.statistics import CalibrationStatistics, empty, from_batch, to_arrays
from fl_dpbayes.data.site import SiteSplit
from fl_dpbayes.protocol.evaluate import EvaluateRequest, Group, most_groups, subgroup_prefix


def measured_groups(groups: Mapping[str, npt.NDArray], request: EvaluateRequest) -> tuple[tuple[Group, ...], int]:
    """Choose the subgroups that fit into a reply: whole attributes, in order.

    Args:
        groups: attribute -> subgroup of each test record, (N,) text.
        request: its predictors and classes say how large the tables of one subgroup are.

    Returns:
        The subgroups (attribute, value), and how many are left out.
    """
    tables = to_arrays(empty(request.task.classes)).values()
    most = most_groups(len(request.measured) * sum(table.nbytes for table in tables))
    chosen: list[Group] = []
    left_out = 0
    for attribute, values in groups.items():
        found = [(attribute, str(value)) for value in np.unique(values)]
        if len(chosen) + len(found) <= most:
            chosen += found
        else:
            left_out += len(found)
    return tuple(chosen), left_out


def count_predictions(
    predictor: str,
    part: SiteSplit,
    groups: Sequence[Group],
    probabilities: npt.NDArray,
    **uncertainty: npt.NDArray,
) -> dict[str, CalibrationStatistics]:
    """Count the predictions for a part's records, and for those of each subgroup.

    Args:
        predictor: its name.
        part: labelled records.
        groups: subgroups of them.
        probabilities: class probabilities, (N, C).
        uncertainty: epistemic, aleatoric and total uncertainty of each record, (N,), nats, or none of them.

    Returns:
        `<predictor>` -> statistics of all records, `group-<i>/<predictor>` -> those of subgroup i.
    """

    def counted(chosen: slice | npt.NDArray[np.bool_]) -> CalibrationStatistics:
        truth = None if part.truth is None else part.truth[chosen]
        parts = {name: values[chosen] for name, values in uncertainty.items()}
        return from_batch(probabilities[chosen], part.labels[chosen], truth=truth, **parts)

    measured = {predictor: counted(slice(None))}
    for number, (attribute, value) in enumerate(groups):
        measured[f"{subgroup_prefix(number)}/{predictor}"] = counted(part.groups[attribute] == value)
    return measured
