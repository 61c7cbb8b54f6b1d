"""A site whose parts (test, recalibration, training) can be told apart by what it releases.

The records of each part are alike and unlike those of the others, and the auditor's posterior
predicts each kind in a bin of its own.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from fl_dpbayes.audit import canary_site
from fl_dpbayes.audit.gradients import model_features, start_vector, synthetic_records
from fl_dpbayes.audit.requests import PosteriorRequests
from fl_dpbayes.calibration import FINE_BINS, INNER_EDGES, count_bin
from fl_dpbayes.config import Scenario
from fl_dpbayes.errors import UserError
from fl_dpbayes.models import build_model, vector_to_arrays

Array = npt.NDArray[np.float64]

UNITS = 40
RECORDS_PER_UNIT = 4
# Records of a unit that are counted.
CAP = 2
BINS = 15
ATTEMPTS = 2000
# Distance of a probability from the edge of its bin, in bins.
LEAST_DISTANCE = 0.02


@dataclass(frozen=True)
class PartedSite:
    """A canary site of UNITS units of RECORDS_PER_UNIT records in each part.

    Attributes:
        scenario: Whose model, privacy and noise the requests have.
        site: That answers.
        delta: Of its ledger.
        requests: About the auditor's posterior.
        predictions: Part -> class probabilities of each of its records, shape (classes,).
        labels: Part -> label of each of its records.
    """

    scenario: Scenario
    site: canary_site.CanarySite
    delta: float
    requests: PosteriorRequests
    predictions: dict[str, Array]
    labels: dict[str, int]


def write_parted(scenario: Scenario, folder: Path, generator: np.random.Generator) -> PartedSite:
    """Write the site, and choose a posterior that tells its parts apart.

    Args:
        scenario: Whose model and privacy it has.
        folder: To write the site into.
        generator: Draws its records and the posterior.

    Returns:
        The site, and what is known of it.

    Raises:
        UserError: If no weights predict the parts in bins of their own.
    """
    task = scenario.data.source.task
    parts = list(canary_site.PARTS)
    levels, _ = synthetic_records(task, generator, len(parts))
    features = model_features(scenario, folder, levels)
    vector, probabilities = _choose_posterior(scenario, features, generator)
    # Right in the recalibration part and wrong elsewhere: the gradients of a descent then point
    # against each other.
    right = np.array([part == "recalibration" for part in parts])
    labels = np.where(right, probabilities.argmax(axis=1), probabilities.argmin(axis=1))
    kinds = np.repeat(np.arange(len(parts)), UNITS * RECORDS_PER_UNIT)
    names = canary_site.names_by_part(UNITS)
    units = np.repeat([name for part in parts for name in names[part]], RECORDS_PER_UNIT)
    delta = min(scenario.privacy.delta, 0.5 / UNITS)
    site = canary_site.write_parted_site(
        folder / "parts",
        scenario,
        canary_site.CanaryRecords(
            task=task, features=levels[kinds], labels=labels[kinds], units=units.tolist()
        ),
        UNITS,
        delta=delta,
        max_test_records_per_unit=CAP,
    )
    sample = vector_to_arrays(vector, build_model(scenario.model, task, seed=0))
    return PartedSite(
        scenario=scenario,
        site=site,
        delta=delta,
        requests=PosteriorRequests(task=task, model=scenario.model, sample=sample),
        predictions=dict(zip(parts, probabilities, strict=True)),
        labels=dict(zip(parts, labels.tolist(), strict=True)),
    )


def _choose_posterior(
    scenario: Scenario, features: npt.NDArray[np.float32], generator: np.random.Generator
) -> tuple[torch.Tensor, Array]:
    """Draw weights until the kinds of records fall into bins of their own.

    Both by the largest probability and, of two classes, by p_1. Returns the weights and the class
    probabilities of each kind.
    """
    task = scenario.data.source.task
    module = build_model(scenario.model, task, seed=0)
    records = torch.from_numpy(features).double()
    for attempt in range(ATTEMPTS):
        start = start_vector(scenario.model, task, generator, 1.5 ** (attempt % 12))
        module.float()
        torch.nn.utils.vector_to_parameters(torch.from_numpy(start).float(), module.parameters())
        vector = torch.nn.utils.parameters_to_vector(module.parameters()).detach().clone()
        with torch.no_grad():
            probabilities = torch.softmax(module.double()(records), dim=1).numpy()
        binned = [probabilities.max(axis=1)]
        if task.outcome.is_event:
            binned.append(probabilities[:, 1])
        # Noised evaluations count the last of them.
        in_bins = all(_in_distinct_bins(values) for values in binned)
        if in_bins and _in_distinct_count_bins(binned[-1]):
            return vector, probabilities
    raise UserError(
        "the audit found no weights that tell three made-up records apart: is the model's "
        "output constant?"
    )


def _in_distinct_count_bins(values: Array) -> bool:
    if len(set(count_bin(values).tolist())) < len(values):
        return False
    edges = INNER_EDGES / FINE_BINS
    return bool(np.abs(values[:, None] - edges).min() * BINS > LEAST_DISTANCE)


def _in_distinct_bins(values: Array) -> bool:
    places = values * BINS
    if len(set(np.floor(places))) < len(values):
        return False
    return bool(np.abs(places - np.round(places)).min() > LEAST_DISTANCE)
