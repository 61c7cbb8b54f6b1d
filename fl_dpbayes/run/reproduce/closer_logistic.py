"""Calibration of private logistic regression on two Gaussian classes, against the known Bayes probability."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fl_dpbayes.calibration.metrics.errors import reliability_bins
from fl_dpbayes.calibration.statistics import from_batch
from fl_dpbayes.calibration.summarise import summarise
from fl_dpbayes.config.plan import NoPrivacyPlan, PrivacyPlan, TrainingPlan
from fl_dpbayes.config.sampler import SGD, ConstantStepSize, FlatPrior
from fl_dpbayes.config.task import LogisticModel, Task
from fl_dpbayes.models.build import build_model
from fl_dpbayes.posterior.predictive import predictive_probabilities
from fl_dpbayes.privacy.events import History
from fl_dpbayes.privacy.solve import solve_multiplier
from fl_dpbayes.privacy.streams import Streams
from fl_dpbayes.run.reproduce.closer_logistic_figures import (
    CLIP_ONLY,
    DP,
    NOISE_ONLY,
    NON_PRIVATE,
    logistic_figures,
)
from fl_dpbayes.run.reproduce.experiment import Cell, Experiment, Measurement, Metric, Row
from fl_dpbayes.run.reproduce.gaussian_classes import bayes_probability, draw_records, linear_truth
from fl_dpbayes.run.reproduce.train import train

RECORDS, TEST_RECORDS = 10_000, 10_000
CLIP_NORMS = (0.1, 0.5, 1.0, 10.0)
EPSILON, DELTA = 8.0, 1e-5
EXPECTED_BATCH = 4_000
# 100 passes over the records. The paper does not say how long it trained; from a step size of 1 on every chain has
# come to rest, so the numbers show where the clipped gradient vanishes and not where training was stopped.
STEPS = 250
STEP_SIZE = 3.0

BAYES = "Bayes classifier"


def logistic_cells(seed: int, full: bool) -> list[Cell]:
    """List the cells of a seed: every method at every clip norm, and the references.

    Args:
        seed: number of the repetition.
        full: has no effect, the paper's size takes seconds.

    Returns:
        The cells.
    """
    common = {
        "records": RECORDS, "test_records": TEST_RECORDS, "epsilon": EPSILON, "delta": DELTA,
        "sampling_rate": EXPECTED_BATCH / RECORDS, "steps": STEPS, "step_size": STEP_SIZE,
    }  # fmt: skip
    references = [Cell(method, seed, {**common, "method": method}) for method in (BAYES, NON_PRIVATE)]
    return references + [
        Cell(f"{method} C={norm:g}", seed, {**common, "method": method, "clip_norm": norm})
        for norm in CLIP_NORMS
        for method in (DP, CLIP_ONLY, NOISE_ONLY)
    ]


def measure_logistic(cell: Cell, data_dir: Path | None) -> Measurement:
    """Train one classifier and compare its probabilities with fresh labels and with the Bayes probability.

    Args:
        cell: one of `logistic_cells`.
        data_dir: not used.

    Returns:
        One row; ECE on fresh records, and by quadrature the calibration error that it estimates.
    """
    settings = cell.settings
    # All methods of a seed see the same records.
    data = Streams.from_insecure_seed(cell.seed, "closer-logistic data")
    features, labels = draw_records(settings["records"], data.generator("train"))
    test_features, test_labels = draw_records(settings["test_records"], data.generator("test"))
    method, norm = settings["method"], settings.get("clip_norm")
    if method == BAYES:
        positive = bayes_probability(test_features)
        return _measured(cell, np.column_stack([1 - positive, positive]), test_labels, np.array([1.5, -1.5]), 0.0, None)
    task = Task(input_shape=(2,), classes=2)
    module = build_model(LogisticModel(), task, seed=cell.seed)
    streams = Streams.from_insecure_seed(cell.seed, f"closer-logistic {cell.label}")
    trained = train(module, features, labels, _plan(method, norm, settings), streams)
    arrays = trained.last.arrays
    probabilities = predictive_probabilities(module, arrays, trained.last.weights, test_features)
    weights, biases = (array[0].astype(np.float64) for array in arrays.values())
    return _measured(
        cell, probabilities, test_labels, weights[1] - weights[0], float(biases[1] - biases[0]), trained.history
    )


def _plan(method: str, norm: float | None, settings: Mapping[str, Any]) -> TrainingPlan:
    rate, steps = settings["sampling_rate"], settings["steps"]
    if method == DP:
        assert norm is not None
        privacy: PrivacyPlan | NoPrivacyPlan = PrivacyPlan(
            epsilon=settings["epsilon"], delta=settings["delta"], clip_norm=norm, sampling_rate=rate
        )
    else:
        noise = 0.0
        if method == NOISE_ONLY:
            assert norm is not None
            # The noise that private training at this clip norm has.
            noise = norm * solve_multiplier(settings["epsilon"], settings["delta"], rate, steps)
        privacy = NoPrivacyPlan(
            kind="none",
            sampling_rate=rate,
            clip_norm=norm if method == CLIP_ONLY else None,
            noise_standard_deviation=noise,
        )
    return TrainingPlan(
        rounds=1,
        steps_per_round=steps,
        burn_in=steps - 1,
        thinning=1,
        sampler=SGD(
            kind="dp-sgd" if method == DP else "sgd",
            step_size=ConstantStepSize(initial=settings["step_size"]),
            prior=FlatPrior(),
        ),
        privacy=privacy,
        chain_start="broadcast",
    )


def _measured(
    cell: Cell,
    probabilities: npt.NDArray[np.float64],
    labels: npt.NDArray[np.int64],
    weight: npt.NDArray[np.float64],
    bias: float,
    history: History | None,
) -> Measurement:
    statistics = from_batch(probabilities, labels)
    summary = summarise(statistics, np.random.default_rng(cell.seed))
    truth = linear_truth(weight, bias)
    values = {
        "accuracy": truth.accuracy,
        "ece": summary.ece,
        "ece_if_calibrated": summary.ece_if_calibrated,
        "calibration_error": truth.calibration_error,
        "confidence": truth.confidence,
        "confident_share": truth.confident_share,
    }
    norm = cell.settings.get("clip_norm")
    row = Row(
        method=cell.settings["method"],
        setting="" if norm is None else f"C = {norm:g}",
        values=values,
        history=history,
        delta=None if history is None else cell.settings["delta"],
    )
    bins = [part.as_row() for part in reliability_bins(statistics)]
    return Measurement((row,), details={"reliability": bins, "weight": weight.tolist(), "bias": bias})


EXPERIMENT = Experiment(
    name="closer-logistic",
    title="Clipping alone makes private logistic regression overconfident",
    source="A closer look at the calibration of differentially private learners, figures 1 and 4, appendix B.1",
    metrics=(
        Metric("accuracy", "accuracy", 3),
        Metric("ece", "ECE"),
        Metric("calibration_error", "true error"),
        Metric("confidence", "confidence", 3),
        Metric("confident_share", "share > .95", 3),
    ),
    cells=logistic_cells,
    measure=measure_logistic,
    paper_epsilon={(DP, f"C = {norm:g}"): EPSILON for norm in CLIP_NORMS},
    paper_accounting="rdp",
    figures=logistic_figures,
    notes=(
        "The paper prints no numbers for these figures. Accuracy, true error (the calibration error on infinitely many "
        "records), mean confidence and the share of confidences above .95 are exact for each trained classifier; ECE "
        "is on 10,000 fresh records, where a calibrated model shows about .01.",
    ),
)
