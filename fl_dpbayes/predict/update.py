"""The work behind `update` and `alarm`: what a hospital's own patients tell of its level, of sets, of its case mix."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from scipy.special import expit

from fl_dpbayes.calibration import (
    EXACT_BINS,
    NOISED_BINS,
    OVERSHOOT,
    BoundedSum,
    Floats,
    bounded_sum,
    clipped_inputs,
    in_fixed_pieces,
    private_threshold,
    set_counts,
    set_sensitivity,
)
from fl_dpbayes.calibration.case_mix import case_mix
from fl_dpbayes.config import site_name
from fl_dpbayes.data import MAX_DECLARATION_ERROR
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import write_atomically
from fl_dpbayes.models import model_shapes
from fl_dpbayes.posterior import HospitalModel, StoredPosterior, mixed, predict, with_intercept
from fl_dpbayes.predict.hospital_posterior import (
    NEW_HOSPITAL,
    SMALLEST_SD,
    Hospital,
    OfRun,
    UpdatedHospital,
    checked_effect,
)
from fl_dpbayes.predict.own_records import OwnRecords, read_own
from fl_dpbayes.predict.stored_posterior import read_run


def update_hospital(
    run_dir: Path,
    data: Path,
    hospital: Hospital,
    epsilon: float | None,
    sets: float | None,
    out: Path | None,
    console: Console,
) -> None:
    """Write a hospital's posterior given its own labelled patients, which `predict --update` reads.

    `data`: labelled records, which stay here, or a site file (.toml), of whose training records
    (its test records, at a site that does not train) noisy sums are released once at `epsilon`,
    paid for in the site's ledger. `sets`: the level of prediction sets, in (0, 1); the hospital's
    effect then stays as it was, since sets hold what they say only for predictions that these
    patients have not changed. Raises UserError if the run has no posterior over hospitals, the
    records do not fit, they are too few for sets, or the ledger refuses.
    """
    target = out or run_dir / f"update-{site_name(data.stem)}.json"
    if target.exists():
        raise UserError(f"{target} exists already: give another --out, nothing is overwritten")
    own, stored, (model, before, _, run) = _read(run_dir, data, hospital, epsilon)
    if own.site is not None and (name := hospital.site or own.site[1].name) in model.sites:
        raise UserError(
            f"site {name!r} has released its states already: this release is for a new hospital"
        )
    after, threshold = before, None
    if sets is not None:
        # As the file will have it: sets are of the very predictions that they were calibrated on.
        effect = mixed(np.ones(1), np.array([before.mean]), np.array([before.sd**2]))
        samples = model.samples(effect, model_shapes(stored.metadata.model, stored.metadata.task))
        probabilities = predict(
            own.module, samples.arrays, samples.weights, own.inputs
        ).probabilities
        threshold = _threshold(own, probabilities, sets, f"{run} {before.mean} {before.sd} {sets}")
    elif epsilon is None:
        # What a training hospital released tells of these very patients.
        before = checked_effect(model.without(hospital.site), run_dir) if hospital.site else before
        after = before.given_labels(_log_odds(model, own), own.labels)
    else:
        residuals = residual_sum(_log_odds(model, own) + before.mean, own.labels, own.unit_index)
        # What is asked: the effect at which residuals are taken is a part of it.
        sent, noise = own.released("update", f"{run} {before.mean}", residuals)
        after = before.given_release(
            float(sent[0]), noise, own.units, model.covariates @ model.conditional
        )
    sd = max(after.sd, SMALLEST_SD)
    found = UpdatedHospital(
        run=run,
        mean=after.mean,
        sd=sd,
        units=own.units,
        epsilon=epsilon,
        level=sets,
        threshold=threshold,
    )
    write_atomically(target, found.model_dump_json(indent=2) + "\n")
    for said, effect in (("before", before), (f"after {own.units} patients", after))[
        : 2 if sets is None else 1
    ]:
        console.print(
            f"{said}: {model.said_rate(effect)} in the declared population", highlight=False
        )
    if threshold is not None:
        told = f"sets of level {sets:g}, if patients are exchangeable and none trained"
        console.print(
            f"{told}: classes of probability {threshold:.4f} and more",
            soft_wrap=True,
            highlight=False,
        )
    left = (
        "nothing left this machine: keep the file here"
        if epsilon is None
        else f"released at epsilon {epsilon:g}"
    )
    console.print(f"written: {target} ({left})", soft_wrap=True, markup=False)


def compare_patients(run_dir: Path, data: Path, epsilon: float | None, console: Console) -> None:
    """Print how far patients, whose labels are not read, are from those that the run declares.

    Raises as above.

    `data`: records, or a site file (.toml), which releases the sum of its patients' clipped
    features at `epsilon`.
    """
    own, _, (model, *_, run) = _read(run_dir, data, NEW_HOSPITAL, epsilon, labelled=False)
    public, slopes = model.covariates[:, 1:], model.conditional[1:]
    shares, norm = clipped_inputs(with_intercept(own.inputs)[:, 1:], own.unit_index, public)
    sent, noise = own.released("alarm", run, bounded_sum(shares, norm))
    found = case_mix(sent, noise, own.units, public)
    shift, sd = slopes @ found.difference, np.sqrt(slopes @ found.covariance @ slopes)
    chance = (
        f"about {len(slopes)} +- {np.sqrt(2 * len(slopes)):.0f} by chance, p = {found.p_value:.2g}"
    )
    console.print(
        f"distance of {own.units} patients from the declared ones: {found.statistic:.1f} ({chance})"
    )
    console.print(
        f"difference of their mean log odds of class 1: {shift:+.2f} (+- {sd:.2f} by chance)"
    )
    console.print("of their outcomes nothing is known: without labels there is no guarantee")


def _read(
    run_dir: Path, data: Path, hospital: Hospital, epsilon: float | None, *, labelled: bool = True
) -> tuple[OwnRecords, StoredPosterior, OfRun]:
    stored, scenario = read_run(run_dir)
    if (found := hospital.of(run_dir, scenario, stored.metadata.task)) is None:
        raise UserError(
            f"{run_dir} has no posterior over hospitals: run a scenario with [hierarchical]"
        )
    own = read_own(data, stored, scenario.data.source, epsilon, labelled=labelled)
    return own, stored, found


def residual_sum(
    log_odds: Floats, labels: npt.NDArray[np.int64], units: npt.NDArray[np.int64]
) -> BoundedSum:
    """Return sum_u (mean of y_i - sigmoid(x_i) over the records of unit u), (1,): a unit moves it by at most 1.

    `log_odds`: x_i at a public effect, (n,). `units`: the unit of each record, 0, 1, ..., (n,).
    """
    means = np.bincount(units, labels - expit(log_odds)) / np.bincount(units)
    return bounded_sum(means[:, None], 1.0)


def _log_odds(model: HospitalModel, own: OwnRecords) -> Floats:
    return in_fixed_pieces(lambda rows: rows @ model.conditional, with_intercept(own.inputs))


def _threshold(own: OwnRecords, probabilities: Floats, level: float, request: str) -> float:
    bins = NOISED_BINS if own.site else EXACT_BINS
    # The theorem's least number; a site may hold fewer than it declares. Asked before anything is
    # spent.
    least = OVERSHOOT * own.noise_multiplier * set_sensitivity(level) / (1 - level) - 1
    if not own.units >= (declared := np.ceil(least * (1 + MAX_DECLARATION_ERROR))):
        raise UserError(
            f"sets of level {level:g} need {declared:.0f} patients at this epsilon: raise it"
        )
    counts = set_counts(
        probabilities[np.arange(len(own.labels)), own.labels], own.unit_index, bins, level
    )
    return private_threshold(*own.released("sets", request, counts), level)
