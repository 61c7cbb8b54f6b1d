"""Sites of groups of units whose clipped gradients the auditor knows.

Each group's units hold the same records, so the released sum is  y = sum_g c_g clip_C(g_g) / C +
sigma xi  with c_g the number of them that joined.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fl_dpbayes.audit import gradients as auditor
from fl_dpbayes.audit.canary_site import CanaryRecords, CanarySite, write_canary_site
from fl_dpbayes.audit.plans import own_plan
from fl_dpbayes.config import Scenario

Array = npt.NDArray[np.float64]

RECORDS_PER_UNIT = (1, 3)
# Below it the noise would be amplified too much when the groups are told apart.
LEAST_SINGULAR_VALUE = 0.15
# Scale of weight draws, before the softplus, that makes each draw the mean.
NO_SPREAD = -20.0


@dataclass(frozen=True)
class Crowd:
    """A canary site and what the auditor knows of its units.

    Attributes:
        site: That trains.
        start: State to train from, name -> vector of shape (d,).
        labels: Of its records, as far as an auditor looks for them in last bits.
        clip_norm: C.
        sizes: Units n_g of each group, shape (G,).
        shares: Clipped gradient of a unit of each group over C, shape (G, d).
    """

    site: CanarySite
    start: dict[str, Array]
    labels: npt.NDArray[np.int64]
    clip_norm: float
    sizes: Array
    shares: Array


def write_crowd(
    scenario: Scenario,
    folder: Path,
    generator: np.random.Generator,
    *,
    groups: int,
    units: int,
    records_per_unit: int = 1,
    declared_share: float = 1.0,
) -> Crowd:
    """Write a site of groups of equally many units whose gradients can be told apart.

    Args:
        scenario: Whose model, sampler and clipping it is.
        folder: To write it into.
        generator: Draws a record for each group, and a start from which it reaches every layer.
        groups: Number of groups, at most: those whose gradients can be told apart.
        units: Of all groups together, at least.
        records_per_unit: Equal ones.
        declared_share: Declared over real number of units.

    Returns:
        The site, and what is known of it.

    Raises:
        UserError: If no start lets gradients reach every layer.
    """
    task = scenario.data.source.task
    plan = own_plan(scenario, pre_noise=0.0)
    levels, labels = auditor.synthetic_records(task, generator, groups)
    # Masks of hidden units are the site's own secret: from a zero start they reach no gradient.
    if plan.sampler.needs_hidden_units:
        start = auditor.start_vector(scenario.model, task, generator, 0.0)
    else:
        start = auditor.reaching_start(scenario, folder, generator, levels[0], int(labels[0]))
    gradients = [
        records_per_unit
        * auditor.unit_gradient(scenario, folder, start, levels[group], int(labels[group]))
        for group in range(groups)
    ]
    longest = max(float(np.linalg.norm(gradient)) for gradient in gradients)
    clip_norm = auditor.clip_norm_for(plan.privacy, longest)
    has_spread = "spread" in plan.sampler.position
    clipped = [
        auditor.clipped(gradient, scenario, clip_norm, spread=has_spread) for gradient in gradients
    ]
    shares = np.stack(clipped) / clip_norm
    chosen = _independent_groups(shares)
    group_size = math.ceil(units / len(chosen))
    rows = np.repeat(chosen, group_size * records_per_unit)
    records = CanaryRecords(
        task=task,
        features=levels[rows],
        labels=labels[rows],
        units=[f"unit-{number // records_per_unit}" for number in range(len(rows))],
    )
    declared = round(declared_share * group_size * len(chosen))
    return Crowd(
        site=write_canary_site(folder / "site", scenario, records, declared),
        start={"parameters": start, "spread": np.full(len(start), NO_SPREAD)},
        labels=labels[rows],
        clip_norm=clip_norm,
        sizes=np.full(len(chosen), float(group_size)),
        shares=shares[chosen],
    )


def _independent_groups(shares: Array) -> list[int]:
    """Choose as many groups, from the first on, as can be told apart."""
    groups: list[int] = []
    for group in range(len(shares)):
        if np.linalg.svd(shares[[*groups, group]], compute_uv=False)[-1] >= LEAST_SINGULAR_VALUE:
            groups.append(group)
    return groups
