"""Histograms of single posterior samples count what each sample predicts."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import zhang_histograms as histograms
from fl_dpbayes.config.study_file import study_of, write_study
from fl_dpbayes.errors import UserError
from fl_dpbayes.study.cell import CellJob, run_cell
from fl_dpbayes.study.grid import study_cells

CONTENT = {
    "name": "tiny",
    "axes": {"seed": [1]},
    "variants": {"algorithm": {"DP-SGD": {"privacy.clip_norm": 1.0}}},
    "data": {"source": {"kind": "logistic-2d", "sites": 1, "records": 200}, "test_fraction": 0.0},
    "sites": {"hospital": {"role": "train"}, "fresh": {"role": "held_out", "part": "test"}},
    "model": {"kind": "logistic"},
    "sampler": {"kind": "dp-sgd", "step_size": {"kind": "constant", "initial": 2.0}},
    "training": {"rounds": 1, "steps_per_round": 12, "burn_in": 4, "thinning": 2},
    "privacy": {"epsilon": 4.0, "delta": 1e-4, "sampling_rate": 0.5},
    "aggregation": {"rule": "mixture"},
}


def test_a_histogram_counts_samples_by_class_and_probability() -> None:
    probabilities = np.array([[0.05, 0.95], [0.08, 0.92], [0.55, 0.45], [0.0, 1.0]])
    shares = histograms.histogram(probabilities)
    assert shares.shape == (2, 10)
    assert shares[0, 0] == 0.75
    assert shares[0, 5] == 0.25
    assert shares[1, 9] == 0.75
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)


def test_the_least_sure_record_has_the_smallest_largest_average(monkeypatch) -> None:
    # Records 0 and 1 are unsure in each sample; of record 2 the samples contradict each other.
    samples = np.array([[[0.6, 0.4], [0.7, 0.3], [1.0, 0.0]], [[0.6, 0.4], [0.7, 0.3], [0.0, 1.0]]])
    monkeypatch.setattr(histograms, "sample_probabilities", lambda *_: samples)
    assert histograms.least_sure(None, np.zeros((3, 2), np.float32)) == 2


def test_a_folder_without_kept_runs_says_how_to_keep_them(tmp_path: Path) -> None:
    write_study(study_of(CONTENT, "study"), tmp_path / "study.toml")
    with pytest.raises(UserError, match="--keep-runs"):
        histograms.kept_runs(tmp_path)


@pytest.mark.slow
def test_samples_of_a_kept_run_average_to_its_prediction(tmp_path: Path) -> None:
    study = study_of(CONTENT, "study")
    write_study(study, tmp_path / "study.toml")
    (cell,) = study_cells(study)
    outcome = run_cell(CellJob(cell=cell, folder=tmp_path, data_dir=None, keep_run=True))
    assert not outcome.error, outcome.trace
    (run,) = histograms.kept_runs(tmp_path).values()
    records = np.random.default_rng(0).normal(size=(7, 2)).astype(np.float32)
    probabilities = histograms.sample_probabilities(run, records)
    assert probabilities.shape == (4, 7, 2)
    assert np.ptp(probabilities, axis=0).max() > 1e-3
    samples = run.stored.samples
    average = histograms.predict(
        run.build_module(), samples.arrays, samples.weights, run.model_inputs(records)
    )
    np.testing.assert_allclose(probabilities.mean(axis=0), average.probabilities, atol=1e-6)
