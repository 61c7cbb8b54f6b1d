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
    notes = []
    if effect is None:
        samples = run.stored.samples
        recalibration, recalibration_note = _usable_recalibration(run)
    else:
        samples = effect.model.samples(effect.effect, model_shapes(run.model, run.task))
        recalibration, recalibration_note = None, None
        notes.append(_rate_note(effect, hospital, np.delete(inputs, list(records.bad), axis=0)))
    point_name, point_note = _point_estimate(run, samples)
    notes += [note for note in (point_note, recalibration_note) if note is not None]

    averaged = predict(module, samples.arrays, samples.weights, inputs)
    probabilities = averaged.probabilities
    if recalibration is not None:
        probabilities = recalibrate(probabilities, recalibration)
    if recalibration is None and not point_name:
        uncertainty = Uncertainty(
            total=averaged.total, aleatoric=averaged.aleatoric, epistemic=averaged.epistemic
        )
    else:
        # Neither one sample nor a map of averaged probabilities tells aleatoric from epistemic.
        uncertainty = Uncertainty(total=entr(probabilities).sum(axis=1))
    return Prediction(
        probabilities=probabilities,
        uncertainty=uncertainty,
        predictor=_predictor(effect, recalibration),
        point_name=point_name,
        set_threshold=None if effect is None else effect.set_threshold,
        notes=notes,
    )


def show_notes(notes: list[Note]) -> None:
    """Print notes on the error stream, as the other one may be CSV or JSON for a program."""
    console = Console(stderr=True)
    for note in notes:
        style = "yellow" if note.is_warning else ""
        console.print(note.text, style=style, markup=False, highlight=False)


def _predictor(effect: HospitalEffect | None, recalibration: RecalibrationMap | None) -> str:
    if effect is not None:
        return "hierarchical"
    return "posterior" if recalibration is None else RECALIBRATED


def _rate_note(effect: HospitalEffect, hospital: Hospital, inputs: npt.NDArray) -> Note:
    rate = effect.model.said_rate(effect.effect, with_intercept(inputs))
    guarantee = NO_SETS if effect.set_threshold is None else ""
    return Note(f"{hospital}: {rate} among these records{guarantee}")


def _point_estimate(run: FinishedRun, samples: PosteriorSamples) -> tuple[str, Note | None]:
    """Return a name and a note for a posterior that is a single sample; "" and None otherwise."""
    rule = run.scenario.aggregation.point_name
    warning = one_sample_warning(len(samples.weights), rule)
    if warning is None:
        return "", None
    note = Note(f"warning: {sentence(warning)}", is_warning=True)
    return f"point estimate ({rule or 'one sample'})", note


def _usable_recalibration(run: FinishedRun) -> tuple[RecalibrationMap | None, Note | None]:
    """Return the run's map, unless the run found it to be mostly noise, and a note about it."""
    recalibration = run.stored.metadata.recalibration
    if recalibration is None:
        return None, None
    # A posterior may be used without the records of its run.
    if (run.folder / SUMMARY_FILE).is_file():
        noise = read_summary(run.folder).recalibration_noise
        if noise:
            text = f"warning: {noise}. The probabilities here are the posterior's own."
            return None, Note(text, is_warning=True)
    text = (
        f"probabilities are recalibrated by {describe(recalibration)}, the average over the "
        "training sites; their uncertainty has no aleatoric and epistemic part"
    )
    return recalibration, Note(text)
