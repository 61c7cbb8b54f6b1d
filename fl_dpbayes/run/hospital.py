"""Whose patients new records are: a training hospital's, a new one's, or one's that has updated its own effect."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from fl_dpbayes.config.base import Config
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.names import SiteName
from fl_dpbayes.posterior.hierarchical.file import load_hospitals
from fl_dpbayes.posterior.hierarchical.mixture import NormalMixture
from fl_dpbayes.posterior.hierarchical.model import HospitalModel, check_known
from fl_dpbayes.posterior.store import PosteriorMetadata
from fl_dpbayes.report.numbers import decimal

LEVEL = 0.9
MOST_BYTES = 2**20


class UpdatedHospital(Config):
    """A hospital's own posterior, as `update` writes it: a mixture of normals, of the run with this scenario hash.

    `epsilon` and `delta`: what the release cost; null where nothing left the hospital.
    """

    scenario_hash: str = Field(max_length=128)
    site: SiteName | None
    group: SiteName | None
    units: int
    epsilon: float | None
    delta: float | None
    weights: tuple[float, ...] = Field(max_length=2000)
    means: tuple[float, ...] = Field(max_length=2000)
    variances: tuple[float, ...] = Field(max_length=2000)

    def _check_keys(self) -> None:
        if not 0 < len(self.weights) == len(self.means) == len(self.variances):
            raise ValueError("weights, means and variances must be of one length above 0")
        if min(self.weights) < 0 or not max(self.weights) > 0 or not min(self.variances) > 0:
            raise ValueError("weights must be 0 or more and not all 0, variances above 0")

    @property
    def effect(self) -> NormalMixture:
        """The posterior of the hospital's effect."""
        return NormalMixture(*(np.array(part) for part in (self.weights, self.means, self.variances)))


@dataclass(frozen=True)
class Hospital:
    """A training hospital by name, a new one of a known `group` or of any, or what `update` wrote of one."""

    site: str | None = None
    group: str | None = None
    update: Path | None = None

    def model(self, run_dir: Path, metadata: PosteriorMetadata) -> HospitalModel | None:
        """Return a run's posterior over hospitals; None where it has none and nobody asks for a hospital.

        Raises UserError if it has none and a hospital is named, or the name is none of the run's.
        """
        found = load_hospitals(run_dir, metadata.scenario_hash)
        if found is None:
            if self != NEW_HOSPITAL:
                remedy = "leave out --site, --group and --update, or run a scenario with [hierarchical]"
                raise UserError(f"{run_dir} has no posterior over hospitals: {remedy}")
            return None
        check_known(found.model, self.site, self.group)
        if self.update is not None:
            if self.site is not None or self.group is not None:
                raise UserError("--update already says whose patients they are: leave out --site and --group")
            if self._updated().scenario_hash != metadata.scenario_hash:
                raise UserError(f"--update {self.update} was made for another run than {run_dir}: update this one")
        return found.model

    def effect(self, model: HospitalModel) -> NormalMixture:
        """Return the posterior of this hospital's effect."""
        return self._updated().effect if self.update is not None else model.effect(self.site, self.group)

    def sentence(self, model: HospitalModel, effect: NormalMixture, inputs: npt.NDArray) -> str:
        """Say whose posterior it is, and what rate of the outcome it expects among these records (N, D)."""
        covariates = np.column_stack([np.ones(len(inputs)), inputs]) if len(inputs) else None
        rate, low, high = model.rate_interval(effect, LEVEL, covariates)
        whose = f"hospital {self.site}" if self.site else f"a new hospital in {self.group}" if self.group else ""
        whose = whose or ("the updated hospital" if self.update else "an unknown hospital (see --site and --group)")
        ends = f"{LEVEL:.0%}: {decimal(low)} to {decimal(high)}"
        return f"{whose}: rate of class 1 among these records {decimal(rate)} ({ends})"

    def _updated(self) -> UpdatedHospital:
        assert self.update is not None
        try:
            if self.update.stat().st_size > MOST_BYTES:
                raise ValueError(f"it has more than {MOST_BYTES} bytes")
            return UpdatedHospital.model_validate(json.loads(self.update.read_text(encoding="utf-8")))
        except ValidationError as error:
            reason = error.errors(include_url=False, include_input=False)[0]["msg"]
        except (OSError, ValueError) as error:
            reason = str(error)
        raise UserError(f"--update {self.update} is not what  fl-dpbayes update  writes ({reason}): write it again")


NEW_HOSPITAL = Hospital()
