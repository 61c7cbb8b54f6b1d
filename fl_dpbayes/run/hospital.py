"""Whose patients new records are: a training hospital's, a new one's, or one's that has updated its own level."""

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import numpy as np
from pydantic import Field

from fl_dpbayes.config.base import Config, digest
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.files.array_file import DAMAGED
from fl_dpbayes.config.kinds import import_apps
from fl_dpbayes.config.scenario import Scenario
from fl_dpbayes.config.task import Task
from fl_dpbayes.models.build import model_shapes
from fl_dpbayes.posterior.hierarchical.distribution import Distribution, mixed
from fl_dpbayes.posterior.hierarchical.effects import FACTS, HOSPITALS
from fl_dpbayes.posterior.hierarchical.model import HospitalModel, fit_hospitals
from fl_dpbayes.posterior.sample_store import PosteriorBank

MOST_BYTES = 2**16
WORDS = {"site": "hospital", "group": "a new hospital of", "update": "the hospital updated in"}
OfRun: TypeAlias = tuple[HospitalModel, Distribution, float | None, str]


class UpdatedHospital(Config):
    """A hospital's own effect as `update` writes it, a normal posterior in the model of this run.

    `epsilon`: what the release of sums over `units` patients cost; null where nothing left the hospital. `threshold`:
    the least probability of a class in sets of that `level`, both null where the patients told the effect instead.
    """

    run: str
    mean: Annotated[float, Field(ge=-1e4, le=1e4)]
    sd: Annotated[float, Field(gt=0, le=1e4)]
    units: int
    epsilon: float | None
    level: float | None = None
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None


@dataclass(frozen=True)
class Hospital:
    """A training hospital by name, a new one of a known `group` or of any, or what `update` wrote of one."""

    site: str | None = None
    group: str | None = None
    update: Path | None = None

    def of(self, run_dir: Path, scenario: Scenario, task: Task) -> OfRun | None:
        """Return a run's posterior over hospitals, this one's effect, its sets' threshold if any, and the run's name.

        None where the run has none and none is named. Raises UserError if one is, or if it is none of the run's.
        """
        given = {key: value for key, value in vars(self).items() if value is not None}
        if scenario.hierarchical is None and not given:
            return None
        if scenario.hierarchical is None or len(given) > 1:
            said = "give one of --site, --group and --update, and that for a run of a scenario with [hierarchical]"
            raise UserError(f"--{' and --'.join(given)} cannot be used with {run_dir}: {said}")
        model = load_hospitals(run_dir, scenario, task)
        # Runs of one scenario differ in their noise.
        run = hashlib.sha256(digest(scenario).encode() + model.state.tobytes()).hexdigest()
        for key, known in (("site", model.sites), ("group", model.groups)):
            if key in given and given[key] not in known:
                shown = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "") or "none"
                said = f"--{key} {str(given[key])[:60]!r} is none of the run's training hospitals' ({shown})"
                raise UserError(f"{said}: give one of them, or leave it out for a new one")
        if self.update is None:
            return model, model.effect(self.site, self.group), None, run
        try:
            if self.update.stat().st_size > MOST_BYTES:
                raise ValueError
            found = UpdatedHospital.model_validate_json(self.update.read_bytes())
        except (OSError, ValueError):
            raise UserError(f"--update {self.update} is not what  fl-dpbayes update  writes: write it again") from None
        if found.run != run:
            raise UserError(f"--update {self.update} was made for another run than {run_dir}: update this one")
        return model, mixed(np.ones(1), np.array([found.mean]), np.array([found.sd**2])), found.threshold, run

    def __str__(self) -> str:
        named = (f"{WORDS[key]} {value}" for key, value in vars(self).items() if value is not None)
        return next(named, "an unknown hospital (see --site and --group)")


def load_hospitals(run_dir: Path, scenario: Scenario, task: Task) -> HospitalModel:
    """Fit the posterior over hospitals of a finished run; UserError if its sums are not there, or damaged."""
    import_apps()
    from server.checkpoint import BANK_FOLDER

    width, folder = FACTS + 2 * sum(map(math.prod, model_shapes(scenario.model, task).values())), run_dir / BANK_FOLDER
    try:
        rows = PosteriorBank(folder).last(HOSPITALS, 0) or {}
        table, named = np.array(list(rows.values()), np.float64), rows.keys() <= scenario.sites.keys()
        fits = named and table.shape == (len(rows), width) and np.isfinite(table).all()
        if not fits or (table[:, :FACTS] < (1, 1, 1e-300, 0)).any():
            raise ValueError("they are not those of its sites")
    except DAMAGED as error:
        found = str(error).splitlines()[0]
        raise UserError(f"the sums of hospitals in {folder} cannot be read ({found}): put back a copy") from None
    return fit_hospitals(rows, scenario)


NEW_HOSPITAL = Hospital()
