"""The sums of a run's hospitals on disk: one small file beside the stored posterior, whose scenario it belongs to."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.base import digest
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.files.array_file import DAMAGED, check_seal, read_arrays, seal, sealable, write_arrays
from fl_dpbayes.config.files.atomic_file import replaced_atomically
from fl_dpbayes.config.scenario import Scenario
from fl_dpbayes.config.task import Task
from fl_dpbayes.models.build import model_shapes
from fl_dpbayes.posterior.hierarchical.model import HospitalModel, fit_hospitals, public_covariates
from fl_dpbayes.posterior.hierarchical.sums import FACTS, HospitalSums

HOSPITALS_FILE = "hospitals.safetensors"
_HASH = "scenario_hash"


def save_sums(run_dir: Path, rows: Mapping[str, npt.NDArray], scenario: Scenario) -> None:
    """Write what a run has summed up of its sites, with a checksum; UserError if it cannot be written."""
    with replaced_atomically(run_dir / HOSPITALS_FILE) as partial:
        write_arrays(partial, dict(sorted(rows.items())), sealable({_HASH: digest(scenario)}))
        seal(partial)


def load_hospitals(run_dir: Path, scenario: Scenario, task: Task) -> HospitalModel | None:
    """Fit the posterior over hospitals of a finished run; None where its scenario asks for none.

    Raises UserError if the file is missing, damaged or of another scenario, or its public inputs are gone.
    """
    path, section = run_dir / HOSPITALS_FILE, scenario.hierarchical
    if section is None:
        return None
    width = FACTS + 2 * sum(int(np.prod(shape)) for shape in model_shapes(scenario.model, task).values())
    try:
        check_seal(path)
        metadata, rows = read_arrays(path)
        if metadata.get(_HASH) != digest(scenario) or not rows or not rows.keys() <= scenario.sites.keys():
            raise ValueError("it is of another scenario")
        for row in rows.values():
            if row.shape != (width,) or row.dtype != np.float64 or not np.isfinite(row).all() or (row[:3] <= 0).any():
                raise ValueError("its arrays are not those of a run")
    except DAMAGED as error:
        raise UserError(f"{path} cannot be read ({str(error).splitlines()[0]}): put back a copy of it") from None
    return fit_hospitals(HospitalSums(rows).means(), scenario, public_covariates(scenario, task))
