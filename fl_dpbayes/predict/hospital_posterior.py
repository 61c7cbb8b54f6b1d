"""Whose patients new records are: a training hospital's, a new one's, or an updated one's."""

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, PositiveFloat

from fl_dpbayes.config import Scenario, Task
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import STORE_FILE, Config, RunStore, check_values, digest
from fl_dpbayes.models import model_shapes
from fl_dpbayes.posterior import (
    HOSPITALS,
    POOLED_ROUNDS,
    REACH,
    Distribution,
    HospitalModel,
    PosteriorBank,
    check_sums,
    checked_rounds,
    fit_hospitals,
    mixed,
)
from fl_dpbayes.predict.finished_run import FinishedRun

# Of a file that `update` wrote.
MOST_BYTES = 2**16
# In log odds: no hospital's level is as far out, and none is known as surely.
LARGEST_LEVEL = 1e4
SMALLEST_SD = 1e-6
MOST_UNITS = 10**9
SMALLEST_SPREAD = float(np.finfo(np.float32).tiny)
MOST_NAMES_SHOWN = 20
PUT_BACK = "put back a copy of the run folder, or run its scenario again"


class UpdatedHospital(Config):
    """A hospital's effect as `update` writes it: a normal posterior in the model of one run.

    Attributes:
        run: Digest of the run's scenario and averaged state.
        mean: Posterior mean of the effect, in log odds.
        sd: Its posterior standard deviation, in log odds.
        units: Number of patients that it was made from.
        epsilon: What the release of sums over these patients cost; None: nothing was released.
        level: Coverage of the prediction sets, in (0, 1); None where the patients told the effect.
        threshold: Least probability of a class in these sets; None together with `level`.
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
    """Where records come from: at most one field is given, none for an unknown hospital.

    Attributes:
        site: Name of a training hospital.
        group: The group of a new hospital, such as its country.
        update: The file that `update` wrote of the hospital.
    """

    site: str | None = None
    group: str | None = None
    update: Path | None = None

    def options(self) -> list[str]:
        """Return the command line's options for what is given, such as `--site`."""
        return [f"--{name}" for name, value in vars(self).items() if value is not None]

    def __str__(self) -> str:
        if self.site is not None:
            return f"hospital {self.site}"
        if self.group is not None:
            return f"a new hospital of {self.group}"
        if self.update is not None:
            return f"the hospital updated in {self.update}"
        return "an unknown hospital (see --site and --group)"


NEW_HOSPITAL = Hospital()


@dataclass(frozen=True)
class HospitalEffect:
    """What a run tells of one hospital.

    Attributes:
        model: The run's posterior over hospitals, and the model that their effects shift.
        effect: Posterior of this hospital's effect, in log odds.
        set_threshold: Least probability of a class in sets with a guarantee; None without sets.
        run_digest: Digest of the run's scenario and averaged state.
    """

    model: HospitalModel
    effect: Distribution
    set_threshold: float | None
    run_digest: str


def hospital_effect(run: FinishedRun, hospital: Hospital) -> HospitalEffect | None:
    """Find what a run tells of a hospital.

    Args:
        run: The run.
        hospital: The hospital, by name, by group or by the file that `update` wrote.

    Returns:
        The hospital's effect; None where the run has no posterior over hospitals and no hospital
        is named.

    Raises:
        UserError: If a hospital is named that is none of the run's, or more than one.
    """
    options = hospital.options()
    if run.scenario.hierarchical is None and not options:
        return None
    if run.scenario.hierarchical is None or len(options) > 1:
        raise UserError(
            f"{' and '.join(options)} cannot be used with {run.folder}: give one of --site, "
            "--group and --update, and that for a run of a scenario with [hierarchical]"
        )
    model = load_hospitals(run.folder, run.scenario, run.task)
    _check_name("site", hospital.site, model.sites)
    _check_name("group", hospital.group, model.groups)
    # Runs of one scenario differ in their noise, hence in their states.
    content = digest(run.scenario).encode() + model.state.tobytes()
    run_digest = hashlib.sha256(content).hexdigest()
    if hospital.update is None:
        effect = checked_effect(model.effect(hospital.site, hospital.group), run.folder)
        return HospitalEffect(model=model, effect=effect, set_threshold=None, run_digest=run_digest)
    updated = _read_update(hospital.update)
    if updated.run != run_digest:
        raise UserError(
            f"--update {hospital.update} was made for another run than {run.folder}: update "
            "this one"
        )
    return HospitalEffect(
        model=model,
        effect=normal_effect(mean=updated.mean, sd=updated.sd),
        set_threshold=updated.threshold,
        run_digest=run_digest,
    )


def normal_effect(mean: float, sd: float) -> Distribution:
    """Return the effect N(mean, sd^2), in log odds."""
    return mixed(np.ones(1), np.array([mean]), np.array([sd**2]))


def load_hospitals(run_dir: Path, scenario: Scenario, task: Task) -> HospitalModel:
    """Fit the posterior over hospitals of a finished run.

    Args:
        run_dir: The run's folder, whose store holds sums over the rounds of every site.
        scenario: The run's scenario, with [hierarchical].
        task: The run's task.

    Returns:
        The model, all of whose values are finite.

    Raises:
        UserError: If the sums are not there, or damaged.
    """
    parameters = sum(map(math.prod, model_shapes(scenario.model, task).values()))
    with RunStore.open(run_dir, to_read=True) as store:
        bank = PosteriorBank(store)
        sums = bank.last(HOSPITALS, 0) or {}
        pooled = bank.last(POOLED_ROUNDS, 0) or {}
    try:
        check_sums(sums, scenario, parameters)
        training = scenario.training
        # A run may end before its last round, but not within its burn-in.
        counts = range(training.burn_in + 1, training.rounds * training.chains + 1)
        rounds = checked_rounds(pooled, counts, parameters)
        # Sums beyond all bounds may end in any floating-point error, and in NaN.
        with np.errstate(all="ignore"):
            model = fit_hospitals(sums, rounds, scenario)
        check_values("conditional", model.conditional)
        check_values("covariates", model.covariates)
        if not model.covariates[:, 1:].std() >= SMALLEST_SPREAD:
            raise ValueError("the run's features have no spread")
    except (ValueError, ArithmeticError, IndexError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"the sums of hospitals in {run_dir / STORE_FILE} cannot be read ({reason}): {PUT_BACK}"
        ) from None
    return model


def checked_effect(effect: Distribution, run_dir: Path) -> Distribution:
    """Return a hospital's effect if it is one that patients can have, as no run folder is trusted.

    Args:
        effect: As the run's posterior has it.
        run_dir: The run, for the error.

    Returns:
        The effect.

    Raises:
        UserError: If its mean or standard deviation is none of log odds.
    """
    # Whatever patients tell of the effect, it stays within REACH standard deviations.
    if not (effect.sd > 0 and abs(effect.mean) + REACH * effect.sd <= LARGEST_LEVEL):
        level = f"mean {effect.mean:g}, standard deviation {effect.sd:g}"
        allowed = f"allowed is up to {LARGEST_LEVEL:g}, {REACH:g} deviations included"
        raise UserError(f"{run_dir} tells a hospital's level by {level}: {allowed}; {PUT_BACK}")
    return effect


def _check_name(key: str, name: str | None, names: tuple[str, ...]) -> None:
    if name is None or name in names:
        return
    listed = ", ".join(names[:MOST_NAMES_SHOWN]) or "none"
    if len(names) > MOST_NAMES_SHOWN:
        listed += ", ..."
    raise UserError(
        f"--{key} {name[:60]!r} is none of the run's training hospitals' ({listed}): give one of "
        "them, or leave it out for a new one"
    )


def _read_update(path: Path) -> UpdatedHospital:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError
        return UpdatedHospital.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        raise UserError(
            f"--update {path} is not what  fl-dpbayes update  writes: write it again"
        ) from None
