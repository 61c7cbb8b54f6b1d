"""Whose patients new records are: a training hospital's, a new one's, or one's that has updated its own level."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from fl_dpbayes.config.base import Config, digest
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.names import SiteName
from fl_dpbayes.config.scenario import Scenario
from fl_dpbayes.config.task import Task
from fl_dpbayes.posterior.hierarchical.file import load_hospitals
from fl_dpbayes.posterior.hierarchical.mixture import NormalMixture
from fl_dpbayes.posterior.hierarchical.model import HospitalModel
from fl_dpbayes.report.numbers import decimal

LEVEL = 0.9
MOST_BYTES = 2**16


class UpdatedHospital(Config):
    """A hospital's own effect as `update` writes it, a normal posterior in the model of this scenario's run.

    `epsilon` and `delta`: what the release of `units` patients cost; null where nothing left the hospital.
    """

    scenario: str
    site: SiteName | None
    group: SiteName | None
    mean: float
    sd: Annotated[float, Field(gt=0)]
    units: int
    epsilon: float | None
    delta: float | None


@dataclass(frozen=True)
class Hospital:
    """A training hospital by name, a new one of a known `group` or of any, or what `update` wrote of one."""

    site: str | None = None
    group: str | None = None
    update: Path | None = None

    def model(self, run_dir: Path, scenario: Scenario, task: Task) -> HospitalModel | None:
        """Return a run's posterior over hospitals; None where it has none and nobody asks for a hospital.

        Raises UserError if it has none and a hospital is named, or the name is none of the run's.
        """
        found = load_hospitals(run_dir, scenario, task)
        given = [key for key in ("site", "group", "update") if getattr(self, key) is not None]
        if found is None:
            if given:
                said = f"{run_dir} has no posterior over hospitals, which --{given[0]} is for"
                raise UserError(f"{said}: leave it out, or run a scenario with [hierarchical]")
            return None
        if len(given) > 1:
            raise UserError(f"--{given[0]} and --{given[1]} both say whose patients they are: give one of them")
        for key, known in (("site", list(found.sites)), ("group", found.group_names)):
            if key in given and getattr(self, key) not in known:
                shown = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "") or "none"
                said = f"--{key} {str(getattr(self, key))[:60]!r} is none of the run's training hospitals' ({shown})"
                raise UserError(f"{said}: give one of them, or leave it out for a new one")
        if self.update is not None and _read(self.update).scenario != digest(scenario):
            raise UserError(f"--update {self.update} was made for another run than {run_dir}: update this one")
        return found

    def effect(self, model: HospitalModel) -> NormalMixture:
        """Return the posterior of this hospital's effect."""
        if self.update is None:
            return model.effect(self.site, self.group)
        found = _read(self.update)
        return NormalMixture(np.ones(1), np.array([found.mean]), np.array([found.sd**2]))

    def sentence(self, model: HospitalModel, inputs: npt.NDArray) -> str:
        """Say whose posterior it is, and what rate of the outcome it expects among records of these inputs, (N, D)."""
        covariates = np.column_stack([np.ones(len(inputs)), inputs]) if len(inputs) else None
        rate, low, high = model.rate_interval(self.effect(model), LEVEL, covariates)
        whose = f"hospital {self.site}" if self.site else f"a new hospital in {self.group}" if self.group else ""
        whose = whose or ("the updated hospital" if self.update else "an unknown hospital (see --site and --group)")
        ends = f"{LEVEL:.0%}: {decimal(low)} to {decimal(high)}"
        return f"{whose}: rate of class 1 among these records {decimal(rate)} ({ends})"


def _read(path: Path) -> UpdatedHospital:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        return UpdatedHospital.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        reason = "its keys are others" if isinstance(error, ValidationError) else error
        raise UserError(f"--update {path} is not what  fl-dpbayes update  writes ({reason}): write it again") from None


NEW_HOSPITAL = Hospital()
