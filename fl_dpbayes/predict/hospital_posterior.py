"""Whose patients new records are: a training hospital's, a new one's, or one's that has updated its own level."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveFloat

from fl_dpbayes.config import Scenario, Task, import_apps
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import DAMAGED, Config, check_values, digest
from fl_dpbayes.models import model_shapes
from fl_dpbayes.posterior import (
    FACTS,
    HOSPITALS,
    REACH,
    Distribution,
    HospitalModel,
    PosteriorBank,
    fit_hospitals,
    mixed,
    site_means,
)

MOST_BYTES = 2**16
# In log odds: no level is as far out, and none as sure.
LARGEST_LEVEL = 1e4
SMALLEST_SD = 1e-6
MOST_UNITS = 10**9
MOST_ROUNDS = 10**6
SMALLEST_WEIGHT = float(np.finfo(np.float32).tiny)
PUT_BACK = "put back a copy of the run folder, or run its scenario again"
WORDS = {"site": "hospital", "group": "a new hospital of", "update": "the hospital updated in"}
OfRun: TypeAlias = tuple[HospitalModel, Distribution, float | None, str]


class UpdatedHospital(Config):
    """A hospital's own effect as `update` writes it, a normal posterior in the model of this run.

    `epsilon`: what the release of sums over `units` patients cost; null where nothing left the
    hospital. `threshold`: the least probability of a class in sets of that `level`, both null where
    the patients told the effect instead.
    """

    run: Annotated[str, Field(max_length=64)]
    mean: Annotated[float, Field(ge=-LARGEST_LEVEL, le=LARGEST_LEVEL)]
    sd: Annotated[float, Field(ge=SMALLEST_SD, le=LARGEST_LEVEL)]
    units: Annotated[int, Field(ge=1, le=MOST_UNITS)]
    epsilon: PositiveFloat | None
    level: Annotated[float, Field(gt=0, lt=1)] | None = None
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None

    def _check_keys(self) -> None:
        if (self.level is None) != (self.threshold is None):
            raise ValueError("level and threshold are given together or not at all")


@dataclass(frozen=True)
class Hospital:
    """A training hospital by name, a new one of a known `group` or of any, or what `update` wrote of one."""

    site: str | None = None
    group: str | None = None
    update: Path | None = None

    def of(self, run_dir: Path, scenario: Scenario, task: Task) -> OfRun | None:
        """Return a run's posterior over hospitals, this one's effect, its sets' threshold if any, and the run's name.

        None where the run has none and none is named. Raises UserError if one is, or if it is none
        of the run's.
        """
        given = {key: value for key, value in vars(self).items() if value is not None}
        if scenario.hierarchical is None and not given:
            return None
        if scenario.hierarchical is None or len(given) > 1:
            said = (
                "give one of --site, --group and --update, and that for a run of a scenario "
                "with [hierarchical]"
            )
            raise UserError(f"--{' and --'.join(given)} cannot be used with {run_dir}: {said}")
        model = load_hospitals(run_dir, scenario, task)
        # Runs of one scenario differ in their noise.
        run = hashlib.sha256(digest(scenario).encode() + model.state.tobytes()).hexdigest()
        for key, known in (("site", model.sites), ("group", model.groups)):
            if key in given and given[key] not in known:
                shown = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "") or "none"
                said = (
                    f"--{key} {str(given[key])[:60]!r} is none of the run's training "
                    f"hospitals' ({shown})"
                )
                raise UserError(f"{said}: give one of them, or leave it out for a new one")
        if self.update is None:
            return model, checked_effect(model.effect(self.site, self.group), run_dir), None, run
        try:
            if self.update.stat().st_size > MOST_BYTES:
                raise ValueError
            found = UpdatedHospital.model_validate_json(self.update.read_bytes())
        except (OSError, ValueError):
            raise UserError(
                f"--update {self.update} is not what  fl-dpbayes update  writes: write it again"
            ) from None
        if found.run != run:
            raise UserError(
                f"--update {self.update} was made for another run than {run_dir}: update this one"
            )
        return (
            model,
            mixed(np.ones(1), np.array([found.mean]), np.array([found.sd**2])),
            found.threshold,
            run,
        )

    def __str__(self) -> str:
        named = (f"{WORDS[key]} {value}" for key, value in vars(self).items() if value is not None)
        return next(named, "an unknown hospital (see --site and --group)")


def load_hospitals(run_dir: Path, scenario: Scenario, task: Task) -> HospitalModel:
    """Fit the posterior over hospitals of a finished run.

    UserError if its sums are not there, or damaged.
    """
    import_apps()
    from server.checkpoint import BANK_FOLDER

    width = FACTS + 2 * sum(map(math.prod, model_shapes(scenario.model, task).values()))
    folder = run_dir / BANK_FOLDER
    try:
        rows = PosteriorBank(folder).last(HOSPITALS, 0) or {}
        _check_sums(rows, scenario, width)
        # What is beyond all bounds may end in any of these, and in numbers that are none.
        with np.errstate(all="ignore"):
            model = fit_hospitals(rows, scenario)
        check_values("conditional", model.conditional)
        check_values("covariates", model.covariates)
        if not model.covariates[:, 1:].std() >= SMALLEST_WEIGHT:
            raise ValueError("the run's features have no spread")
    except (*DAMAGED, ArithmeticError, IndexError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"the sums of hospitals in {folder} cannot be read ({reason}): {PUT_BACK}"
        ) from None
    return model


def checked_effect(effect: Distribution, run_dir: Path) -> Distribution:
    """Return a hospital's effect on the level of its outcome, of a run of which nothing is taken on trust.

    Args:
        effect: As the run's posterior has it.
        run_dir: The run, for the error.

    Returns:
        The effect.

    Raises:
        UserError: If its mean or standard deviation is none of log odds.
    """
    # Whatever patients tell of it, it stays within REACH standard deviations.
    if not (effect.sd > 0 and abs(effect.mean) + REACH * effect.sd <= LARGEST_LEVEL):
        told = f"mean {effect.mean:g}, standard deviation {effect.sd:g}"
        allowed = f"allowed is up to {LARGEST_LEVEL:g}, {REACH:g} deviations included"
        raise UserError(f"{run_dir} tells a hospital's level by {told}: {allowed}; {PUT_BACK}")
    return effect


def _check_sums(rows: Mapping[str, npt.NDArray], scenario: Scenario, width: int) -> None:
    table = np.array(list(rows.values()), np.float64)
    named = rows.keys() <= scenario.sites.keys()
    if not (rows and named and table.shape == (len(rows), width)):
        raise ValueError("they are not those of its sites")
    units, rounds, weights, squares = table[:, :FACTS].T
    whole = (
        (units >= rounds) & (rounds >= 1) & (rounds <= MOST_ROUNDS) & (rounds == np.floor(rounds))
    )
    sized = (units <= MOST_UNITS * rounds) & (weights >= SMALLEST_WEIGHT) & (squares >= 0)
    if not (whole & sized).all():
        raise ValueError("they are not those of its sites' rounds")
    # Sums over weights are what was float32.
    means = site_means(rows)
    check_values("states", means.states)
    check_values("gradients", means.gradients)


NEW_HOSPITAL = Hospital()
