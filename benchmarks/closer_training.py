"""Calibration while training and under label noise: "A closer look", figures 6 and 7, on MNIST.

python benchmarks/closer_training.py --out docs/results/closer-training

No federation: one chain on the records, network and step sizes of `closer-regularisers`. A run is
written when it is done, and not run again. Seeds are insecure: nothing here is private.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import nn

from fl_dpbayes.calibration import METRICS, from_batch, reliability_bins
from fl_dpbayes.config import Scenario, Task, load_study, training_plan
from fl_dpbayes.data import load_unscaled
from fl_dpbayes.models import build_model, to_vector, vector_loader
from fl_dpbayes.models.feature_map import feature_map
from fl_dpbayes.privacy import Streams, solve_plan
from fl_dpbayes.report import figure_style as look
from fl_dpbayes.report.study.paper_figures import pooled_bins
from fl_dpbayes.samplers import (
    ChainState,
    TrainingRecords,
    initial_vectors,
    run_chain,
    summed_cross_entropy,
)
from fl_dpbayes.samplers.gradients.clipping import ClippedSum
from fl_dpbayes.schedules import PlannedChain
from fl_dpbayes.study.grid import study_cells

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

STUDY = "closer-regularisers"
PRIVATE, PLAIN, DROPOUT = "DP-SGD, epsilon 8", "SGD", "dropout 0.2"
CORRUPTIONS = (0.6, 0.8)
CLASSES = 10
TRAINING, TEST, CORRUPTED_TEST = "training", "test", "test, corrupted"
RUN = ["algorithm", "corruption", "seed"]
BIN = {"low", "high", "n", "confidence", "accuracy"}
SURE = 0.95
# Of a bin whose accuracy is drawn.
FEWEST = 50
COLOURS = {PRIVATE: look.VERMILLION, PLAIN: look.BLUE, DROPOUT: look.BLUE}


@dataclass(frozen=True)
class Run:
    """One chain.

    Attributes:
        algorithm: A method of the study.
        corruption: With this probability a training label is replaced by a random class.
        seed: Seed of records, start, labels and chain.
    """

    algorithm: str
    corruption: float
    seed: int


@dataclass(frozen=True)
class Data:
    """Records as the network takes them, with their true labels.

    Attributes:
        features: Of the training records, shape (n, *input_shape).
        labels: Theirs, shape (n,).
        test_features: Of the test records, shape (N, *input_shape).
        test_labels: Theirs, shape (N,).
        task: The records' shape and number of classes.
    """

    features: npt.NDArray[np.float32]
    labels: Labels
    test_features: npt.NDArray[np.float32]
    test_labels: Labels
    task: Task


@dataclass(frozen=True)
class Measured:
    """What a run shows.

    Attributes:
        rows: A row for each measured step and place: accuracy, ECE, loss, confidence.
        bins: The bins of the last step's reliability diagrams, a row for each place and bin.
    """

    rows: pd.DataFrame
    bins: pd.DataFrame


def planned_runs(seeds: int) -> list[Run]:
    """Return the runs of both figures, those of a seed together."""
    runs = []
    for seed in range(1, seeds + 1):
        runs += [Run(name, 0.0, seed) for name in (PRIVATE, PLAIN)]
        runs += [Run(name, p, seed) for p in CORRUPTIONS for name in (PRIVATE, DROPOUT)]
    return runs


def scenario_of(algorithm: str) -> Scenario:
    """Return the scenario of a method of the study."""
    cells = study_cells(load_study(STUDY))
    return next(cell.scenario for cell in cells if cell.labels["algorithm"] == algorithm)


def load_data(scenario: Scenario, seed: int, folder: Path | None) -> Data:
    """Draw a seed's training records, and load all test records.

    Args:
        scenario: It names the source, the number of training records and the features.
        seed: Seed of the draw.
        folder: The data folder; None: the environment's.
    """
    source = scenario.data.source.located(folder)
    train, test = (load_unscaled(source, part) for part in ("train", "test"))
    generator = Streams.from_insecure_seed(seed, "closer-training data").generator("data")
    drawn = generator.choice(len(train), scenario.data.records or len(train), replace=False)
    features = scenario.model.features
    assert features is not None, "the study's network takes standardised pixels"
    prepare = feature_map(features, train.task.input_shape)
    parts = [records.scaled() for records in (train.subset(np.sort(drawn)), test)]
    prepared = [prepare(part.features) for part in parts]
    return Data(prepared[0], parts[0].labels, prepared[1], parts[1].labels, train.task)


def corrupted(labels: Labels, probability: float, generator: np.random.Generator) -> Labels:
    """Replace each label by a uniform random class with a probability.

    The true label is left with probability 1 - p + p / 10: no classifier can rightly be surer.

    Args:
        labels: Shape (n,), in 0 .. 9.
        probability: p.
        generator: Source of the draws.

    Source: "A closer look", appendix B.4.
    """
    is_replaced = generator.random(len(labels)) < probability
    return np.where(is_replaced, generator.integers(CLASSES, size=len(labels)), labels)


def measure(scenario: Scenario, data: Data, run: Run) -> Measured:
    """Train a chain, and measure its state after every pass over clean labels, else after the last.

    The network of a state is the plain one: dropout masks nothing when it predicts.

    Args:
        scenario: Its model, sampler, training and privacy.
        data: The records.
        run: The method's name, the corruption and the seed.
    """
    plan = training_plan(scenario, prior_share=1.0, chain_start="own_last")
    count = len(data.labels)
    streams = Streams.from_insecure_seed(run.seed, f"closer-training {run}")
    # Methods meet the same labels.
    labels_context = f"closer-training labels {run.corruption:g}"
    generator = Streams.from_insecure_seed(run.seed, labels_context).generator("labels")
    labels, test_labels = (
        corrupted(true, run.corruption, generator) for true in (data.labels, data.test_labels)
    )
    module, shown = (build_model(scenario.model, data.task, run.seed) for _ in range(2))
    load_parameters = vector_loader(shown)
    pass_steps = round(1 / plan.privacy.sampling_rate)
    last_step = plan.total_steps - 1
    rows: list[dict[str, Any]] = []
    bins: list[dict[str, Any]] = []

    def on_step(number: int, state: ChainState, clipped: ClippedSum) -> None:
        is_last = number == last_step
        if not is_last and (run.corruption or (number + 1) % pass_steps):
            return
        load_parameters(state.parameters)
        tested = probabilities(shown, data.test_features)
        places = [
            (TRAINING, probabilities(shown, data.features), labels),
            (TEST, tested, data.test_labels),
        ]
        if run.corruption:
            places.append((CORRUPTED_TEST, tested, test_labels))
        for place, predicted, outcomes in places:
            rows.append({"step": number + 1, "place": place, **scores(predicted, outcomes)})
            if is_last:
                statistics = from_batch(predicted, outcomes)
                bins.extend(
                    {"place": place, **part.model_dump(include=BIN)}
                    for part in reliability_bins(statistics)
                )

    solved = solve_plan(plan, count)
    run_chain(
        module,
        TrainingRecords(data.features, labels, np.arange(count), summed_cross_entropy),
        PlannedChain(plan, count, solved.noise_multipliers),
        range(plan.total_steps),
        initial_vectors(plan.sampler, to_vector(module)),
        streams.of_chain(),
        on_step,
    )
    tables = [pd.DataFrame(table).assign(**vars(run)) for table in (rows, bins)]
    return Measured(
        *(table[[*RUN, *table.columns.difference(RUN, sort=False)]] for table in tables)
    )


def probabilities(module: nn.Module, features: npt.NDArray[np.float32]) -> Floats:
    """Return the predicted probabilities, shape (N, C)."""
    with torch.no_grad():
        return module(torch.from_numpy(features)).double().softmax(dim=1).numpy()


def scores(predicted: Floats, labels: Labels) -> dict[str, float]:
    """Measure predictions.

    Args:
        predicted: Probabilities, shape (N, C).
        labels: Shape (N,).

    Returns:
        Accuracy, ECE (15 bins), mean negative log-likelihood, mean confidence, and the share of
        confidences above .95.
    """
    sums = from_batch(predicted, labels)
    measured = {name: METRICS[name].measure(sums) for name in ("accuracy", "ece", "nll")}
    confidence = predicted.max(axis=1)
    return {
        **{name: number.value for name, number in measured.items() if number is not None},
        "confidence": float(confidence.mean()),
        "sure": float((confidence > SURE).mean()),
    }


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Return mean and standard deviation over seeds at the last step."""
    last = rows[rows["step"] == rows.groupby(RUN)["step"].transform("max")]
    grouped = last.drop(columns=["seed", "step"]).groupby(
        ["corruption", "algorithm", "place"], sort=False
    )
    means, deviations = grouped.mean(), grouped.std()
    texts = means.map("{:.4f}".format)
    if deviations.notna().all(axis=None):
        texts += deviations.map(" ± {:.4f}".format)
    return texts.rename(columns={"sure": f"share > {SURE:g}"}).reset_index()


def dynamics_figure(rows: pd.DataFrame) -> Figure:
    """Draw ECE and loss on training and test records by passes over the records."""
    clean = rows[rows["corruption"] == 0]
    figure = look.titled_figure(
        "Calibration while training",
        f"MNIST, {clean['seed'].nunique()} seeds: mean, and the range over seeds",
        4.2,
    )
    panels = figure.subplots(2, 1, sharex=True)
    for axes, metric, title in zip(
        panels, ("ece", "nll"), ("ECE", "negative log-likelihood"), strict=True
    ):
        look.quiet_grid(axes, "y")
        axes.set(title=title)
        for (algorithm, place), of_line in clean.groupby(["algorithm", "place"], sort=False):
            by_step = of_line.groupby("step")[metric].agg(["mean", "min", "max"])
            passes = by_step.index / by_step.index.min()
            colour = COLOURS[algorithm]
            style = "-" if place == TEST else (0, (3, 2))
            axes.plot(
                passes,
                by_step["mean"],
                color=colour,
                linestyle=style,
                label=f"{algorithm}: {place}",
            )
            axes.fill_between(
                passes, by_step["min"], by_step["max"], color=colour, alpha=0.15, linewidth=0
            )
        axes.set_ylim(bottom=0)
    panels[-1].set(xlabel="passes over the training records")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    look.add_legend(figure)
    return figure


def noise_figure(bins: pd.DataFrame) -> Figure:
    """Draw reliability and confidences of models that were trained on corrupted labels."""
    figure = look.titled_figure(
        "Label noise: what a model is sure of",
        "accuracy by confidence, above the histogram of confidences, %\n"
        "vertical line: no record's label is surer than that",
        5.6,
    )
    panels = figure.subplots(4, 2, height_ratios=(3, 1, 3, 1), sharex=True)
    for pair, corruption in enumerate(CORRUPTIONS):
        for column, algorithm in enumerate((PRIVATE, DROPOUT)):
            chosen = bins[(bins["corruption"] == corruption) & (bins["algorithm"] == algorithm)]
            diagram, histogram = panels[2 * pair : 2 * pair + 2, column]
            _draw_diagram(diagram, chosen, COLOURS[algorithm])
            _draw_histogram(histogram, chosen[chosen["place"] == TEST], COLOURS[algorithm])
            for axes in (diagram, histogram):
                axes.axvline(1 - corruption + corruption / CLASSES, color=look.INK, linewidth=0.8)
            diagram.set(title=f"{algorithm}, p = {corruption:g}")
    for axes in panels[-1]:
        axes.set(xlim=(0, 1), xlabel="confidence")
    look.add_legend(figure)
    return figure


def _draw_diagram(axes: Axes, bins: pd.DataFrame, colour: str) -> None:
    look.quiet_grid(axes, "y")
    axes.plot([0, 1], [0, 1], color=look.MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
    for place, colour_of_place, marker, words in (
        (CORRUPTED_TEST, colour, "o", "corrupted test labels"),
        (TEST, look.MUTED, "s", "true test labels"),
    ):
        points = pooled_bins(bins[bins["place"] == place]).query("n >= @FEWEST")
        axes.plot(
            points["confidence"],
            points["accuracy"],
            color=colour_of_place,
            marker=marker,
            markersize=3,
            linewidth=1,
            label=words,
        )
    axes.set(xlim=(0, 1), ylim=(0, 1))


def _draw_histogram(axes: Axes, bins: pd.DataFrame, colour: str) -> None:
    look.quiet_grid(axes, "y")
    points = pooled_bins(bins)
    axes.bar(
        points["low"],
        100 * points["n"] / points["n"].sum(),
        width=0.92 * (points["high"] - points["low"]),
        align="edge",
        color=colour,
    )


def run_all(runs: Sequence[Run], out: Path, data_dir: Path | None) -> Measured:
    """Run what the folder does not hold yet, each written when it is done.

    Args:
        runs: The runs.
        out: The folder of `training.csv` and `bins.csv`.
        data_dir: The data folder; None: the environment's.

    Returns:
        All rows of the folder.
    """
    out.mkdir(parents=True, exist_ok=True)
    files = out / "training.csv", out / "bins.csv"
    kept = [pd.read_csv(file) if file.is_file() else pd.DataFrame(columns=RUN) for file in files]
    for run in runs:
        if _is_of(kept[0], run).any():
            continue
        scenario = scenario_of(run.algorithm)
        measured = measure(scenario, load_data(scenario, run.seed, data_dir), run)
        # The rows that say that a run is done come last.
        for place in (1, 0):
            table = (measured.rows, measured.bins)[place]
            others = kept[place][~_is_of(kept[place], run)]
            kept[place] = pd.concat([others, table]) if len(others) else table
            kept[place].to_csv(files[place], index=False)
    return Measured(*kept)


def _is_of(table: pd.DataFrame, run: Run) -> pd.Series:
    return (table[RUN] == pd.Series(vars(run))).all(axis=1)


def main() -> None:
    """Run what is missing, draw both figures and print the last steps, mean over seeds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of tables and figures")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: 3)")
    parser.add_argument("--data-dir", type=Path, help="data folder; default: FL_DPBAYES_DATA")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    measured = run_all(planned_runs(asked.seeds), asked.out, asked.data_dir)
    drawn = (
        look.drawn_figure(
            "calibration-while-training",
            "ECE and loss on training and test records by passes over the records",
            lambda: dynamics_figure(measured.rows),
        ),
        look.drawn_figure(
            "label-noise",
            "Reliability and confidences of models trained on corrupted labels",
            lambda: noise_figure(measured.bins),
        ),
    )
    for figure in drawn:
        assert figure is not None
        (asked.out / f"{figure.name}.svg").write_text(figure.svg, encoding="utf-8")
    print(summary(measured.rows).to_string(index=False))


if __name__ == "__main__":
    main()
