"""Predictions of a run's stored posterior for new records: computed here, shown elsewhere."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich.console import Console
from scipy.special import entr

from fl_dpbayes.calibration import describe, recalibrate
from fl_dpbayes.config import RecalibrationMap, as_classification
from fl_dpbayes.models import model_shapes
from fl_dpbayes.posterior import (
    PosteriorSamples,
    one_sample_warning,
    predict,
    rate_in_words,
    with_intercept,
)
from fl_dpbayes.predict.finished_run import FinishedRun
from fl_dpbayes.predict.hospital_posterior import Hospital, HospitalEffect, hospital_effect
from fl_dpbayes.predict.new_records import NewRecords
from fl_dpbayes.protocol import RECALIBRATED
from fl_dpbayes.report import CONSTANT_NOISE, SUMMARY_FILE, read_summary, sentence

Floats = npt.NDArray[np.float64]
WARNING = "warning: "
NO_SETS = "; nothing guarantees that without sets from own labelled patients (update --sets)"


@dataclass(frozen=True)
class PredictingPosterior:
    """The samples that predict, and what is done with their average.

    Attributes:
        samples: Parameters with their weights.
        predictor: "posterior", "recalibrated" or "hierarchical", as tables name it.
        notes: What a reader should know, in order.
        point_name: What the posterior is where it is a single sample; "" otherwise.
        recalibration: Is applied to the averaged probabilities; None: nothing is.
        set_threshold: Least probability of a class in sets with a guarantee; None without sets.
    """

    samples: PosteriorSamples
    predictor: str
    notes: list[str]
    point_name: str = ""
    recalibration: RecalibrationMap | None = None
    set_threshold: float | None = None

    @property
    def tells_parts(self) -> bool:
        """Whether aleatoric and epistemic uncertainty can be told apart.

        Neither one sample nor a map of averaged probabilities tells them.
        """
        return self.recalibration is None and not self.point_name


@dataclass(frozen=True)
class Prediction:
    """Predictions of N records by a stored posterior.

    Attributes:
        posterior: What predicts.
        probabilities: Class probabilities, (N, classes), recalibrated if the posterior says so.
        total: Entropy of the probabilities in nats, (N,).
        aleatoric: Averaged entropy of the samples' probabilities, (N,); NaN where the posterior
            does not tell the parts.
        epistemic: total - aleatoric, (N,); NaN likewise.
    """

    posterior: PredictingPosterior
    probabilities: Floats
    total: Floats
    aleatoric: Floats
    epistemic: Floats


def predict_new_records(run: FinishedRun, records: NewRecords, hospital: Hospital) -> Prediction:
    """Predict new records with a run's posterior.

    Args:
        run: What a run left.
        records: N records of the run's task; bad ones stay, and their prediction means nothing.
        hospital: Whose patients they are, where the run has a posterior over hospitals.

    Returns:
        Class probabilities, their uncertainty in nats, and notes for the reader.

    Raises:
        UserError: If the run's outcome is none of classes, the model cannot be built, or the
            hospital is none of the run's.
    """
    as_classification(run.task.outcome, "predicting new records")
    module = run.build_module()
    inputs = run.model_inputs(records.features)
    effect = hospital_effect(run, hospital)
    if effect is None:
        posterior = _run_posterior(run)
    else:
        good_inputs = np.delete(inputs, list(records.bad), axis=0)
        posterior = _hospital_posterior(run, effect, hospital, good_inputs)
    averaged = predict(module, posterior.samples.arrays, posterior.samples.weights, inputs)
    if posterior.tells_parts:
        return Prediction(
            posterior=posterior,
            probabilities=averaged.probabilities,
            total=averaged.total,
            aleatoric=averaged.aleatoric,
            epistemic=averaged.epistemic,
        )
    probabilities = averaged.probabilities
    if posterior.recalibration is not None:
        probabilities = recalibrate(probabilities, posterior.recalibration)
    total = entr(probabilities).sum(axis=1)
    unknown = np.full_like(total, np.nan)
    return Prediction(posterior, probabilities, total, aleatoric=unknown, epistemic=unknown)


def show_notes(notes: list[str]) -> None:
    """Print notes on the error stream, as the other one may be CSV or JSON for a program."""
    console = Console(stderr=True)
    for note in notes:
        style = "yellow" if note.startswith(WARNING) else ""
        console.print(note, style=style, markup=False, highlight=False)


def _run_posterior(run: FinishedRun) -> PredictingPosterior:
    """Return the posterior that the run stored, recalibrated where the run did so."""
    notes = []
    rule = run.scenario.aggregation.point_name
    point_name = ""
    point_warning = one_sample_warning(len(run.stored.samples.weights), rule)
    if point_warning is not None:
        point_name = f"point estimate ({rule or 'one sample'})"
        notes.append(f"{WARNING}{sentence(point_warning)}")
    if run.scenario.sampler.is_private and run.scenario.privacy.coupling == "constant":
        notes.append(CONSTANT_NOISE)
    recalibration = run.stored.metadata.recalibration
    if recalibration is not None:
        noise = _recalibration_noise(run)
        if noise:
            notes.append(f"{WARNING}{noise}. The probabilities here are the posterior's own.")
            recalibration = None
        else:
            notes.append(
                f"probabilities are recalibrated by {describe(recalibration)}, the average over "
                "the training sites; their uncertainty has no aleatoric and epistemic part"
            )
    return PredictingPosterior(
        samples=run.stored.samples,
        predictor="posterior" if recalibration is None else RECALIBRATED,
        point_name=point_name,
        recalibration=recalibration,
        notes=notes,
    )


def _hospital_posterior(
    run: FinishedRun, effect: HospitalEffect, hospital: Hospital, inputs: npt.NDArray
) -> PredictingPosterior:
    """Return the posterior for one hospital, in many samples of its effect."""
    rate = effect.model.rate(effect.effect, with_intercept(inputs))
    quantity = rate_in_words(run.class_names, patients="these records", hospital=str(hospital))
    guarantee = NO_SETS if effect.set_threshold is None else ""
    return PredictingPosterior(
        samples=effect.model.samples(effect.effect, model_shapes(run.model, run.task)),
        predictor="hierarchical",
        set_threshold=effect.set_threshold,
        notes=[f"{rate.words(quantity)}{guarantee}"],
    )


def _recalibration_noise(run: FinishedRun) -> str:
    """Say that the run found its recalibration to be mostly noise; "" where it did not."""
    # A posterior may be used without the records of its run.
    if not (run.folder / SUMMARY_FILE).is_file():
        return ""
    return read_summary(run.folder).recalibration_noise
