"""Predictions of a run's stored posterior for new records: computed here, shown elsewhere."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich.console import Console
from scipy.special import entr

from fl_dpbayes.calibration import describe, recalibrate
from fl_dpbayes.config import RecalibrationMap
from fl_dpbayes.models import model_shapes
from fl_dpbayes.posterior import PosteriorSamples, one_sample_warning, predict, with_intercept
from fl_dpbayes.predict.finished_run import FinishedRun
from fl_dpbayes.predict.hospital_posterior import Hospital, HospitalEffect, hospital_effect
from fl_dpbayes.predict.new_records import NewRecords
from fl_dpbayes.protocol import RECALIBRATED
from fl_dpbayes.report import SUMMARY_FILE, read_summary, sentence

Floats = npt.NDArray[np.float64]
NO_SETS = "; nothing guarantees that without sets from own labelled patients (update --sets)"


@dataclass(frozen=True)
class Note:
    """What a reader should know of a prediction.

    Attributes:
        text: One or two sentences.
        is_warning: Whether it is a warning.
    """

    text: str
    is_warning: bool = False


@dataclass(frozen=True)
class Uncertainty:
    """Entropies of predictions in nats, each (N,).

    Attributes:
        total: Entropy of the averaged probabilities.
        aleatoric: Averaged entropy of the samples' probabilities; None where it cannot be told.
        epistemic: total - aleatoric; None where it cannot be told.
    """

    total: Floats
    aleatoric: Floats | None = None
    epistemic: Floats | None = None

    @property
    def has_parts(self) -> bool:
        """Whether aleatoric and epistemic uncertainty are told apart."""
        return self.epistemic is not None

    def columns(self) -> dict[str, Floats]:
        """Return a table's columns `<part>_uncertainty`, NaN where a part cannot be told."""
        unknown = np.full_like(self.total, np.nan)
        return {
            "total_uncertainty": self.total,
            "aleatoric_uncertainty": unknown if self.aleatoric is None else self.aleatoric,
            "epistemic_uncertainty": unknown if self.epistemic is None else self.epistemic,
        }


@dataclass(frozen=True)
class Prediction:
    """Predictions of N records by a stored posterior.

    Attributes:
        probabilities: Class probabilities, (N, classes), recalibrated if `predictor` says so.
        uncertainty: How uncertain they are.
        predictor: "posterior", "recalibrated" or "hierarchical", as tables name it.
        point_name: What the posterior is where it is a single sample; "" otherwise.
        set_threshold: Least probability of a class in sets with a guarantee; None without sets.
        notes: What a reader should know, in order.
    """

    probabilities: Floats
    uncertainty: Uncertainty
    predictor: str
    point_name: str
    set_threshold: float | None
    notes: list[Note]


@dataclass(frozen=True)
class _ChosenPosterior:
    """The samples that predict, and what is done with their average."""

    samples: PosteriorSamples
    predictor: str
    notes: list[Note]
    point_name: str = ""
    recalibration: RecalibrationMap | None = None
    set_threshold: float | None = None


def predict_new_records(run: FinishedRun, records: NewRecords, hospital: Hospital) -> Prediction:
    """Predict new records with a run's posterior.

    Args:
        run: What a run left.
        records: N records of the run's task; bad ones stay, and their prediction means nothing.
        hospital: Whose patients they are, where the run has a posterior over hospitals.

    Returns:
        Class probabilities, their uncertainty in nats, and notes for the reader.

    Raises:
        UserError: If the model cannot be built, or the hospital is none of the run's.
    """
    module = run.build_module()
    inputs = run.model_inputs(records.features)
    effect = hospital_effect(run, hospital)
    if effect is None:
        posterior = _run_posterior(run)
    else:
        good_inputs = np.delete(inputs, list(records.bad), axis=0)
        posterior = _hospital_posterior(run, effect, hospital, good_inputs)
    averaged = predict(module, posterior.samples.arrays, posterior.samples.weights, inputs)
    probabilities = averaged.probabilities
    uncertainty = Uncertainty(
        total=averaged.total, aleatoric=averaged.aleatoric, epistemic=averaged.epistemic
    )
    if posterior.recalibration is not None:
        probabilities = recalibrate(probabilities, posterior.recalibration)
    if posterior.recalibration is not None or posterior.point_name:
        # Neither one sample nor a map of averaged probabilities tells aleatoric from epistemic.
        uncertainty = Uncertainty(total=entr(probabilities).sum(axis=1))
    return Prediction(
        probabilities=probabilities,
        uncertainty=uncertainty,
        predictor=posterior.predictor,
        point_name=posterior.point_name,
        set_threshold=posterior.set_threshold,
        notes=posterior.notes,
    )


def show_notes(notes: list[Note]) -> None:
    """Print notes on the error stream, as the other one may be CSV or JSON for a program."""
    console = Console(stderr=True)
    for note in notes:
        style = "yellow" if note.is_warning else ""
        console.print(note.text, style=style, markup=False, highlight=False)


def _run_posterior(run: FinishedRun) -> _ChosenPosterior:
    """Return the posterior that the run stored, recalibrated where the run did so."""
    notes = []
    rule = run.scenario.aggregation.point_name
    point_name = ""
    point_warning = one_sample_warning(len(run.stored.samples.weights), rule)
    if point_warning is not None:
        point_name = f"point estimate ({rule or 'one sample'})"
        notes.append(Note(f"warning: {sentence(point_warning)}", is_warning=True))
    recalibration = run.stored.metadata.recalibration
    if recalibration is not None:
        noise = _recalibration_noise(run)
        if noise:
            text = f"warning: {noise}. The probabilities here are the posterior's own."
            notes.append(Note(text, is_warning=True))
            recalibration = None
        else:
            text = (
                f"probabilities are recalibrated by {describe(recalibration)}, the average over "
                "the training sites; their uncertainty has no aleatoric and epistemic part"
            )
            notes.append(Note(text))
    return _ChosenPosterior(
        samples=run.stored.samples,
        predictor="posterior" if recalibration is None else RECALIBRATED,
        point_name=point_name,
        recalibration=recalibration,
        notes=notes,
    )


def _hospital_posterior(
    run: FinishedRun, effect: HospitalEffect, hospital: Hospital, inputs: npt.NDArray
) -> _ChosenPosterior:
    """Return the posterior for one hospital, in many samples of its effect."""
    rate = effect.model.rate(effect.effect, with_intercept(inputs))
    guarantee = NO_SETS if effect.set_threshold is None else ""
    return _ChosenPosterior(
        samples=effect.model.samples(effect.effect, model_shapes(run.model, run.task)),
        predictor="hierarchical",
        set_threshold=effect.set_threshold,
        notes=[Note(f"{hospital}: {rate.words} among these records{guarantee}")],
    )


def _recalibration_noise(run: FinishedRun) -> str:
    """Say that the run found its recalibration to be mostly noise; "" where it did not."""
    # A posterior may be used without the records of its run.
    if not (run.folder / SUMMARY_FILE).is_file():
        return ""
    return read_summary(run.folder).recalibration_noise
