"""What a run keeps for its posterior over hospitals: one small file beside the stored posterior."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveFloat

from fl_dpbayes.config.base import Config, digest
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.files.array_file import DAMAGED, check_seal, read_arrays, seal, sealable, write_arrays
from fl_dpbayes.config.files.atomic_file import replaced_atomically
from fl_dpbayes.config.names import GroupText, SiteName
from fl_dpbayes.config.scenario import Scenario
from fl_dpbayes.config.task import Task
from fl_dpbayes.posterior.hierarchical.covariates import public_covariates
from fl_dpbayes.posterior.hierarchical.model import HospitalModel, fit_hospitals
from fl_dpbayes.posterior.hierarchical.sums import HospitalSums
from fl_dpbayes.protocol.arrays import prefixed, without_prefix

HOSPITALS_FILE = "hospitals.safetensors"
_KEY, _COVARIATES, _SUMS = "hospitals", "covariates", "sums"


class HospitalsMetadata(Config):
    """What belongs to the sums: whose scenario, each site's `groups` (called `group`), clip norm C, prior.

    `clip_norm` is null where nothing was clipped.
    """

    format: Literal[1] = 1
    scenario_hash: Annotated[str, Field(max_length=128)]
    group: GroupText | None
    groups: dict[SiteName, SiteName]
    clip_norm: PositiveFloat | None
    largest_sd: PositiveFloat


@dataclass(frozen=True)
class StoredHospitals:
    """The sums of a run's sites, and the public covariates (N, D) that its scores are averaged over."""

    metadata: HospitalsMetadata
    sums: HospitalSums
    covariates: npt.NDArray[np.float64]

    @cached_property
    def model(self) -> HospitalModel:
        """The posterior over hospitals, fitted when it is first asked for, the same every time."""
        said = self.metadata
        clip_norm = np.inf if said.clip_norm is None else said.clip_norm
        return fit_hospitals(self.sums.means(), said.groups, self.covariates, clip_norm, said.largest_sd)


def described(hospitals: StoredHospitals, level: float = 0.9) -> dict[str, Any]:
    """Say what a run found out about its hospitals, as the summary's `hospitals` has it."""
    model, group = hospitals.model, hospitals.metadata.group
    found = {"hospitals": model.posterior.between_hospitals}
    found |= {f"groups ({group})": model.posterior.between_groups} if group else {}
    effects = {f"a new one of {name}": model.effect(group=name) for name in model.group_names}
    new = {"a new one": model.effect()} | effects
    rates = [
        [{"hospital": name, "rate": rate, "interval": ends} for name, effect in which.items()
         for rate, *ends in [model.rate_interval(effect, level)]]
        for which in (new, {site: model.effect(site) for site in model.sites})
    ]  # fmt: skip
    spreads = [
        {"between": name, "count": spread.count, "identified": spread.identified, "median": spread.quantile(0.5),
         "interval": spread.interval(level)}
        for name, spread in found.items()
    ]  # fmt: skip
    return {"level": level, "spreads": spreads, "new": rates[0], "sites": rates[1]}


def empty_hospitals(scenario: Scenario, task: Task) -> StoredHospitals | None:
    """Begin a run's sums; None where its scenario asks for no posterior over hospitals.

    Raises UserError if its public inputs cannot be read, or the records have more than two classes.
    """
    section = scenario.hierarchical
    if section is None:
        return None
    if task.classes != 2:
        raise UserError(f"[hierarchical] is for 2 classes, the records have {task.classes}: remove the section")
    groups = {name: site.group for name, site in scenario.sites.items() if site.group is not None}
    said = HospitalsMetadata(
        scenario_hash=digest(scenario), group=section.group, groups=groups, clip_norm=scenario.privacy.clip_norm,
        largest_sd=section.largest_sd,
    )  # fmt: skip
    return StoredHospitals(said, HospitalSums(), public_covariates(section.public, task, scenario.model))


def save_hospitals(path: Path, hospitals: StoredHospitals) -> None:
    """Write the file, with a checksum; UserError if it cannot be written."""
    rows = dict(sorted(hospitals.sums.rows.items()))
    arrays: Mapping[str, npt.NDArray] = {_COVARIATES: hospitals.covariates, **prefixed(_SUMS, rows)}
    with replaced_atomically(path) as partial:
        write_arrays(partial, arrays, sealable({_KEY: hospitals.metadata.model_dump_json()}))
        seal(partial)


def load_hospitals(run_dir: Path, scenario_hash: str) -> StoredHospitals | None:
    """Read the file of a run, None if it has none; UserError if it is damaged or of another scenario."""
    path = run_dir / HOSPITALS_FILE
    if not path.is_file():
        return None
    try:
        check_seal(path)
        metadata, arrays = read_arrays(path)
        said = HospitalsMetadata.model_validate_json(metadata.get(_KEY, ""))
        covariates, rows = arrays.get(_COVARIATES, np.zeros(0)), without_prefix(_SUMS, arrays)
        width = 4 + 2 * (2 * covariates.shape[-1] + 2)
        if covariates.ndim != 2 or not rows or any(row.shape != (width,) for row in rows.values()):
            raise ValueError("its arrays are not those of a run")
        if any(array.dtype != np.float64 or not np.isfinite(array).all() for array in (covariates, *rows.values())):
            raise ValueError("an array has a value that is not finite, or another type than float64")
        facts = np.array([row[[0, 1, 3]] for row in rows.values()])
        if (facts <= 0).any() or (said.groups and not rows.keys() <= said.groups.keys()):
            raise ValueError("a site has no units, no rounds or no group")
        if said.scenario_hash != scenario_hash:
            raise ValueError("it is of another scenario than the posterior beside it")
        return StoredHospitals(said, HospitalSums(rows), covariates)
    except DAMAGED as error:
        raise UserError(f"{path} cannot be read ({str(error).splitlines()[0]}): put back a copy of it") from None
