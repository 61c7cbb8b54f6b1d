"""What single posterior samples predict for one picture: Zhang et al., figure 7.

fl-dpbayes study zhang-figure-7 --keep-runs --out runs/figure-7
python benchmarks/zhang_histograms.py runs/figure-7 --to figure-7.svg

The picture is the test record of the digit 3 of whose class the average of the first private run is
least sure.
"""

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fl_dpbayes.config import load_study
from fl_dpbayes.data import load_unscaled
from fl_dpbayes.errors import UserError
from fl_dpbayes.posterior.predictive import predict
from fl_dpbayes.predict.finished_run import FinishedRun, read_run
from fl_dpbayes.report import figure_style as look
from fl_dpbayes.report.figure_style import drawn_figure
from fl_dpbayes.study.cell import RUNS_FOLDER
from fl_dpbayes.study.grid import study_cells

Floats = npt.NDArray[np.float64]
DIGIT = 3
PROBABILITY_BINS = 10
MOST_RECORDS = 2000
ROW_INCHES = 1.35


def kept_runs(folder: Path) -> dict[str, FinishedRun]:
    """Read the runs that a study kept, of its first seed.

    Args:
        folder: The study's folder.

    Returns:
        Algorithm -> run, in the study's order.

    Raises:
        UserError: If the folder holds no study, or no run was kept.
    """
    runs: dict[str, FinishedRun] = {}
    for cell in study_cells(load_study(str(folder / "study.toml"))):
        run_folder = folder / RUNS_FOLDER / cell.digest
        if run_folder.is_dir():
            runs.setdefault(str(cell.labels["algorithm"]), read_run(run_folder))
    if not runs:
        raise UserError(f"{folder} holds no kept run: make it with  fl-dpbayes study --keep-runs")
    return runs


def sample_probabilities(run: FinishedRun, records: npt.NDArray[np.float32]) -> Floats:
    """Predict records under each posterior sample by itself.

    Args:
        run: A run with M samples.
        records: N records as the source has them.

    Returns:
        Class probabilities, shape (M, N, classes).
    """
    module = run.build_module()
    inputs = run.model_inputs(records)
    samples = run.stored.samples
    predictions = []
    for number in range(len(samples)):
        sample = {name: values[number : number + 1] for name, values in samples.arrays.items()}
        predictions.append(predict(module, sample, np.ones(1), inputs).probabilities)
    return np.stack(predictions)


def least_sure(run: FinishedRun, records: npt.NDArray[np.float32]) -> int:
    """Return the position of the record whose largest average probability is smallest."""
    average = sample_probabilities(run, records).mean(axis=0)
    return int(average.max(axis=1).argmin())


def histogram(probabilities: Floats) -> Floats:
    """Count how often a class has a probability.

    Args:
        probabilities: Of one record under each of M samples, shape (M, classes).

    Returns:
        Share of the samples by class and tenth of the probability, shape (classes, 10).
    """
    counts = [
        np.histogram(of_class, bins=PROBABILITY_BINS, range=(0.0, 1.0))[0]
        for of_class in probabilities.T
    ]
    return np.stack(counts) / len(probabilities)


def draw(picture: npt.NDArray[np.float32], shares: Mapping[str, Floats], label: int) -> Figure:
    """Draw a picture, and for each algorithm its histogram of every class.

    Args:
        picture: Grey levels, shape (height, width).
        shares: Algorithm -> what `histogram` returns.
        label: The picture's class.
    """
    columns = 2
    panels = 1 + len(shares)
    rows = -(-panels // columns)
    figure = look.titled_figure(
        "What the samples of each posterior predict for one picture",
        f"a {label} of the test records; across: probability of each class; "
        "darker: more of the samples",
        body_inches=ROW_INCHES * rows,
    )
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    grid[0].imshow(picture, cmap="Greys")
    for axes, (name, share) in zip(grid[1:], shares.items(), strict=False):
        _draw_histogram(axes, name=name, share=share, label=label)
    for axes in (grid[0], *grid[panels:]):
        axes.set_axis_off()
    return figure


def _draw_histogram(axes: Axes, *, name: str, share: Floats, label: int) -> None:
    axes.imshow(share, cmap="Blues", aspect="auto", vmin=0.0, vmax=1.0, extent=(0, 1, 9.5, -0.5))
    axes.set_title(name, color=look.INK, size=6.5)
    axes.set_xticks((0.0, 0.5, 1.0))
    axes.set_yticks(range(len(share)))
    axes.tick_params(labelsize=5.5, length=0)
    axes.get_yticklabels()[label].set(color=look.VERMILLION, fontweight="bold")


def main() -> None:
    """Draw the figure of a study's kept runs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path, help="folder of the study, with its runs kept")
    parser.add_argument("--data-dir", type=Path, help="data folder; default: FL_DPBAYES_DATA")
    parser.add_argument("--to", type=Path, default=Path("zhang-figure-7.svg"), help="SVG file")
    asked = parser.parse_args()
    try:
        runs = kept_runs(asked.study)
    except UserError as error:
        parser.error(str(error))
    first = next(iter(run for run in runs.values() if run.scenario.sampler.is_private), None)
    if first is None:
        parser.error(
            f"{asked.study} holds no private run: keep one of DP-SGLD, which chooses the picture"
        )
    test = load_unscaled(first.scenario.data.source.located(asked.data_dir), "test")
    candidates = np.flatnonzero(test.labels == DIGIT)[:MOST_RECORDS]
    features = test.features[candidates]
    position = least_sure(first, features)
    chosen = features[position : position + 1]
    shares = {
        name: histogram(sample_probabilities(run, chosen)[:, 0]) for name, run in runs.items()
    }
    figure = drawn_figure(
        name="zhang-figure-7",
        description="Histograms of the class probabilities of single samples.",
        draw=partial(draw, chosen[0, 0], shares, DIGIT),
    )
    if figure is not None:
        asked.to.write_text(figure.svg, encoding="utf-8")
    samples = len(first.stored.samples)
    print(f"test record {candidates[position]}, {samples} samples each: {asked.to}")
    for name, share in shares.items():
        surest = share[:, PROBABILITY_BINS // 2 :].sum(axis=1)
        print(f"{name}: share of samples that give {DIGIT} more than 1/2: {surest[DIGIT]:.2f}")


if __name__ == "__main__":
    main()
