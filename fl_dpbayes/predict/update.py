"""The work behind `update`: a hospital's own level, or prediction sets."""

from dataclasses import dataclass
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
    in_fixed_pieces,
    private_threshold,
    set_counts,
    set_sensitivity,
)
from fl_dpbayes.config import site_name
from fl_dpbayes.data import MAX_DECLARATION_ERROR
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import write_atomically
from fl_dpbayes.models import model_shapes
from fl_dpbayes.posterior import (
    Distribution,
    HospitalModel,
    predict,
    rate_in_words,
    with_intercept,
)
from fl_dpbayes.predict.finished_run import FinishedRun, read_run
from fl_dpbayes.predict.hospital_posterior import (
    SMALLEST_SD,
    Hospital,
    HospitalEffect,
    UpdatedHospital,
    checked_effect,
    hospital_effect,
    normal_effect,
)
from fl_dpbayes.predict.paid_release import HospitalRecords, read_hospital_records


@dataclass(frozen=True)
class EffectUpdate:
    """A hospital's effect, in log odds, before and after its patients told of it."""

    before: Distribution
    after: Distribution


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

    Args:
        run_dir: A run with a posterior over hospitals.
        data: Labelled records, which stay here, or a site file (.toml), which releases noisy sums
            of its records once.
        hospital: The hospital before the update.
        epsilon: What the release costs, paid for in the site's ledger; None without a site file.
        sets: Level of prediction sets, in (0, 1), to make in place of an update: sets hold what
            they say only for predictions that these patients have not changed.
        out: The file to write; None: `update-<data>.json` in the run's folder.
        console: Told what came out.

    Raises:
        UserError: If the run has no posterior over hospitals, the records do not fit, they are
            too few for sets, the ledger refuses, or the file exists.
    """
    target = out or run_dir / f"update-{site_name(data.stem)}.json"
    if target.exists():
        raise UserError(f"{target} exists already: give another --out, nothing is overwritten")
    run = read_run(run_dir)
    effect = _required_effect(run, hospital)
    records = read_hospital_records(data, run, epsilon)
    _check_site_is_new(records, hospital, effect.model)
    threshold = None
    if sets is None:
        update = update_effect(effect, records, hospital, run.folder)
    else:
        update = EffectUpdate(before=effect.effect, after=effect.effect)
        threshold = calibrate_sets(run, effect, records, sets)
    updated = UpdatedHospital(
        run=effect.run_digest,
        mean=update.after.mean,
        sd=max(update.after.sd, SMALLEST_SD),
        units=records.units,
        epsilon=epsilon,
        level=sets,
        threshold=threshold,
    )
    write_atomically(target, updated.model_dump_json(indent=2) + "\n")
    quantity = rate_in_words(
        run.class_names, patients="patients as declared", hospital=str(hospital)
    )
    before = effect.model.rate(update.before)
    console.print(f"before: {before.words(quantity)}", highlight=False, markup=False)
    if threshold is None:
        after = effect.model.rate(update.after)
        console.print(
            f"after {records.units} patients: {after.words(quantity)}",
            highlight=False,
            markup=False,
        )
    else:
        console.print(
            f"sets of level {sets:g}, if patients are exchangeable and none trained: "
            f"classes of probability {threshold:.4f} and more",
            soft_wrap=True,
            highlight=False,
        )
    destination = "nothing left this machine: keep the file here"
    if epsilon is not None:
        destination = f"released at epsilon {epsilon:g}"
    console.print(f"written: {target} ({destination})", soft_wrap=True, markup=False)


def update_effect(
    effect: HospitalEffect, records: HospitalRecords, hospital: Hospital, run_dir: Path
) -> EffectUpdate:
    """Compute a hospital's effect given its labelled patients.

    Args:
        effect: What the run tells of the hospital.
        records: Its patients; with a payer, one noisy sum of their residuals is released.
        hospital: The hospital by name, group or file.
        run_dir: The run, for errors.

    Returns:
        The effect before and after.

    Raises:
        UserError: If the effect is none of log odds, or the ledger refuses.
    """
    model = effect.model
    before = effect.effect
    if records.payer is None:
        if hospital.site:
            # A training hospital has released what it knows of these very patients already.
            before = checked_effect(model.without(hospital.site), run_dir)
        after = before.given_labels(_log_odds(model, records), records.labels)
        return EffectUpdate(before=before, after=after)
    log_odds = _log_odds(model, records) + before.mean
    residuals = residual_sum(log_odds, records.labels, records.unit_index)
    # The effect at which residuals are taken is a part of what is asked.
    question = f"{effect.run_digest} {before.mean}"
    release = records.release("update", question, residuals)
    after = before.given_release(
        float(release.sums[0]),
        release.noise_std,
        records.units,
        model.covariates @ model.state,
    )
    return EffectUpdate(before=before, after=after)


def calibrate_sets(
    run: FinishedRun, effect: HospitalEffect, records: HospitalRecords, level: float
) -> float:
    """Find the threshold of prediction sets from a hospital's labelled patients.

    Args:
        run: The run that predicts.
        effect: What it tells of the hospital.
        records: The patients; with a payer, one noisy table of counts is released.
        level: Share of patients whose label is in its set, in (0, 1).

    Returns:
        The least probability of a class in a set.

    Raises:
        UserError: If the patients are too few at this noise, or the ledger refuses.
    """
    # Sets are calibrated on the very predictions that `predict --update` will make of the file.
    mean = effect.effect.mean
    sd = effect.effect.sd
    samples = effect.model.samples(normal_effect(mean, sd), model_shapes(run.model, run.task))
    prediction = predict(records.module, samples.arrays, samples.weights, records.inputs)
    _check_enough_units(records, level)
    of_label = prediction.probabilities[np.arange(len(records.labels)), records.labels]
    bins = EXACT_BINS if records.payer is None else NOISED_BINS
    counts = set_counts(of_label, records.unit_index, bins, level)
    question = f"{effect.run_digest} {mean} {sd} {level}"
    release = records.release("sets", question, counts)
    return private_threshold(release.sums, release.noise_std, level)


def residual_sum(
    log_odds: Floats, labels: npt.NDArray[np.int64], units: npt.NDArray[np.int64]
) -> BoundedSum:
    """Sum the units' mean residuals: a unit moves the sum by at most 1.

        sum_u mean over the records i of unit u of (y_i - sigmoid(x_i))

    Args:
        log_odds: x_i at a public effect, (n,).
        labels: y_i, 0 or 1, (n,).
        units: The unit of each record, 0, 1, ..., (n,).

    Returns:
        The sum, (1,), and its sensitivity.
    """
    means = np.bincount(units, labels - expit(log_odds)) / np.bincount(units)
    return bounded_sum(means[:, None], 1.0)


def _required_effect(run: FinishedRun, hospital: Hospital) -> HospitalEffect:
    effect = hospital_effect(run, hospital)
    if effect is None:
        raise UserError(
            f"{run.folder} has no posterior over hospitals: run a scenario with [hierarchical]"
        )
    return effect


def _check_site_is_new(records: HospitalRecords, hospital: Hospital, model: HospitalModel) -> None:
    if records.payer is None:
        return
    name = hospital.site or records.payer.site.name
    if name in model.sites:
        raise UserError(
            f"site {name!r} has released its states already: this release is for a new hospital"
        )


def _check_enough_units(records: HospitalRecords, level: float) -> None:
    noise = OVERSHOOT * records.noise_multiplier * set_sensitivity(level)
    # The theorem's least number of units; a site may hold fewer than it declares.
    least = np.ceil((noise / (1 - level) - 1) * (1 + MAX_DECLARATION_ERROR))
    if not records.units >= least:
        raise UserError(
            f"sets of level {level:g} need {least:.0f} patients at this epsilon: raise it"
        )


def _log_odds(model: HospitalModel, records: HospitalRecords) -> Floats:
    inputs = with_intercept(records.inputs)
    return in_fixed_pieces(lambda rows: rows @ model.state, inputs)
