"""Label noise, what is measured while training, and runs that are not run twice."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import closer_training as script
from benchmarks.closer_training import (
    CLASSES,
    CORRUPTED_TEST,
    DROPOUT,
    PLAIN,
    PRIVATE,
    TEST,
    TRAINING,
    Data,
    Measured,
    Run,
    corrupted,
    measure,
    planned_runs,
    run_all,
    scenario_of,
    summary,
)
from fl_dpbayes.config import MLPModel, Scenario, Task

RECORDS = 400


def small(algorithm: str) -> Scenario:
    """Return a method's scenario with a narrow network and two passes over the records."""
    scenario = scenario_of(algorithm)
    training = scenario.training.model_copy(
        update={"steps_per_round": 40, "burn_in": 39, "thinning": 1}
    )
    return scenario.model_copy(update={"model": MLPModel(hidden=(16,)), "training": training})


@pytest.fixture(scope="module")
def data() -> Data:
    """Ten overlapping clouds of points, one for each class."""
    generator = np.random.default_rng(0)
    centers = 2 * generator.standard_normal((CLASSES, 5))
    labels = generator.integers(CLASSES, size=2 * RECORDS)
    features = centers[labels] + generator.standard_normal((2 * RECORDS, 5))
    return Data(
        features[:RECORDS].astype(np.float32),
        labels[:RECORDS],
        features[RECORDS:].astype(np.float32),
        labels[RECORDS:],
        Task.model_validate({"input_shape": (5,), "classes": CLASSES}),
    )


def test_settings_are_those_of_the_study() -> None:
    private, plain, dropout = (scenario_of(name) for name in (PRIVATE, PLAIN, DROPOUT))
    assert (private.privacy.epsilon, private.privacy.clip_norm) == (8.0, 0.1)
    assert (plain.sampler.kind, dropout.sampler.kind) == ("sgd", "mc-dropout")
    assert dropout.sampler.model_dump()["rate"] == 0.2
    assert dropout.sampler.step_size == plain.sampler.step_size


@pytest.mark.parametrize("probability", [0.6, 0.8])
def test_a_corrupted_label_is_a_uniform_class_with_that_probability(probability: float) -> None:
    count = 100_000
    labels = np.full(count, 3)
    after = corrupted(labels, probability, np.random.default_rng(0))
    shares = np.bincount(after, minlength=CLASSES) / count
    expected = np.full(CLASSES, probability / CLASSES)
    expected[3] += 1 - probability
    assert (np.abs(shares - expected) < 4 * np.sqrt(expected * (1 - expected) / count)).all()


def test_clean_labels_are_measured_after_every_pass(data: Data) -> None:
    rows, bins = vars(measure(small(PLAIN), data, Run(PLAIN, 0.0, 1))).values()
    assert rows[["step", "place"]].to_numpy().tolist() == [
        [step, place] for step in (20, 40) for place in (TRAINING, TEST)
    ]
    assert (np.diff(rows["nll"][rows["place"] == TRAINING]) < 0).all()
    for place in (TRAINING, TEST):
        last = rows[(rows["place"] == place) & (rows["step"] == 40)].iloc[0]
        of_place = bins[(bins["place"] == place) & (bins["n"] > 0)]
        assert of_place["n"].sum() == RECORDS
        for metric in ("accuracy", "confidence"):
            assert np.average(of_place[metric], weights=of_place["n"]) == pytest.approx(
                last[metric]
            )


@pytest.mark.slow
def test_data_are_a_seed_s_draw_of_standardised_pixels(data_folder: Path) -> None:
    first, again, second = (
        script.load_data(scenario_of(PLAIN), seed, data_folder) for seed in (1, 1, 2)
    )
    assert (len(first.labels), len(first.test_labels)) == (10_000, 10_000)
    assert abs(first.features.mean()) < 0.01
    assert abs(first.features.std() - 1) < 0.01
    np.testing.assert_array_equal(first.labels, again.labels)
    assert (first.labels != second.labels).any()


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [PRIVATE, DROPOUT])
def test_corrupted_test_labels_hide_what_the_network_knows(algorithm: str, data: Data) -> None:
    run = Run(algorithm, 0.6, 1)
    rows = measure(small(algorithm), data, run).rows.set_index("place")
    assert rows.index.tolist() == [TRAINING, TEST, CORRUPTED_TEST]
    assert rows["confidence"][TEST] == rows["confidence"][CORRUPTED_TEST]
    true, seen = rows["accuracy"][[TEST, CORRUPTED_TEST]]
    # A label stays as it was with probability .4, and else meets the prediction in one of ten.
    error = 4 * np.sqrt(0.25 / RECORDS)
    assert abs(seen - (0.4 * true + 0.06)) < error
    assert true > 1 / CLASSES + error
    assert measure(small(algorithm), data, run).rows.set_index("place").equals(rows)


@pytest.mark.slow
def test_a_run_that_is_written_is_not_run_again(
    tmp_path: Path,
    data: Data,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ran: list[Run] = []
    most = 3

    def measured(scenario: Scenario, records: Data, run: Run) -> Measured:
        if len(ran) == most:
            raise KeyboardInterrupt
        ran.append(run)
        return measure(small(run.algorithm), records, run)

    monkeypatch.setattr(script, "load_data", lambda *_: data)
    monkeypatch.setattr(script, "measure", measured)
    runs = planned_runs(1)
    with pytest.raises(KeyboardInterrupt):
        run_all(runs, tmp_path, None)
    # A kill between the two files leaves the bins of a run whose rows are missing.
    rows = pd.read_csv(tmp_path / "training.csv")
    rows[rows["corruption"] == 0].to_csv(tmp_path / "training.csv", index=False)
    most = 10
    monkeypatch.setattr(sys, "argv", ["closer_training.py", "--out", str(tmp_path), "--seeds", "1"])
    script.main()
    assert ran == [*runs[:3], *runs[2:]]
    bins = pd.read_csv(tmp_path / "bins.csv")
    assert not bins.duplicated([*script.RUN, "place", "low"]).any()
    assert {path.name for path in tmp_path.glob("*.svg")} == {
        "calibration-while-training.svg",
        "label-noise.svg",
    }
    assert DROPOUT in capsys.readouterr().out


def test_the_table_is_of_the_last_step_over_seeds() -> None:
    rows = pd.DataFrame(
        {"algorithm": PLAIN, "corruption": 0.0, "seed": seed, "step": step, "place": TEST}
        | {"ece": seed / 10 + step}
        for seed in (1, 2, 3)
        for step in (1, 2)
    )
    (row,) = summary(rows).to_dict("records")
    assert row["ece"] == "2.2000 ± 0.1000"
    (row,) = summary(rows[rows["seed"] == 1]).to_dict("records")
    assert row["ece"] == "2.1000"


def test_the_page_quotes_what_was_measured() -> None:
    folder = Path(__file__).parents[2] / "docs" / "results" / "closer-training"
    page = (folder / "README.md").read_text(encoding="utf-8")
    rows = pd.read_csv(folder / "training.csv").query("step == 360")
    assert rows["seed"].nunique() == 3
    quoted = rows[(rows["corruption"] == 0) | (rows["place"] != TRAINING)]
    for labels, values in quoted.groupby(["corruption", "algorithm", "place"])["ece"]:
        text = f"{values.mean():.3f} ± {values.std():.3f}".replace("0.", ".")
        assert text in page, labels
