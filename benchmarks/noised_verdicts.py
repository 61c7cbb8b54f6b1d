"""What a hospital learns from noised test results: coverage, width, and agreement with exact ones.

python -m benchmarks.noised_verdicts --draws 100 --to docs/results/noised-verdicts

No federation and no training: risks with normal log odds, two models of them. Each draw is another
test set of n patients and another noised table, one event of epsilon at delta 1e-3.
"""

import argparse
import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import expit

from fl_dpbayes.calibration.bins import Floats
from fl_dpbayes.calibration.intervals import Interval
from fl_dpbayes.calibration.noised_counts import NoisedCounts, coded_counts
from fl_dpbayes.calibration.records import CalibrationValues
from fl_dpbayes.calibration.statistics import from_batch
from fl_dpbayes.calibration.summarise import summarise, summarise_noised
from fl_dpbayes.privacy import Streams, solve_multiplier

COUNTS = (100, 200, 500, 1000)
EPSILONS = (0.5, 1.0, 2.0, 4.0)
# Of the second model.
FEWER_COUNTS = (200, 1000)
FEWER_EPSILONS = (1.0, 4.0)
DELTA = 1e-3
THRESHOLD = 0.2
NET_BENEFIT = "net benefit at 20 %"
FIGURES = (
    "nll",
    "brier",
    "auroc",
    "calibration_intercept",
    "calibration_slope",
    "accuracy",
    "rms_debiased",
    NET_BENEFIT,
)
POPULATION = 1_000_000
# Exact results of the same patients are looked at in so many draws.
MOST_EXACT = 100


@dataclass(frozen=True)
class Model:
    """How risks are spread, and how often the event happens at each.

    Attributes:
        mean: Of the log odds of the risks.
        deviation: Of the log odds of the risks.
        intercept: a of logit P(y = 1) = a + b logit p.
        slope: b.
    """

    mean: float
    deviation: float
    intercept: float = 0.0
    slope: float = 1.0


MODELS: Mapping[str, Model] = {
    "calibrated": Model(-1.7, 1.2),
    "too extreme, too high": Model(-1.2, 1.5, intercept=-0.5, slope=0.6),
}


@dataclass(frozen=True)
class Setting:
    """What is drawn: a key of `MODELS`, n patients, and one table of epsilon."""

    model: str
    n: int
    epsilon: float


FIRST_MODEL, SECOND_MODEL = MODELS
SETTINGS = [
    *(Setting(FIRST_MODEL, n, epsilon) for n in COUNTS for epsilon in EPSILONS),
    *(Setting(SECOND_MODEL, n, epsilon) for n in FEWER_COUNTS for epsilon in FEWER_EPSILONS),
]


@dataclass(frozen=True)
class Row:
    """How one figure did over the draws of one setting.

    Attributes:
        model: A key of `MODELS`.
        n: Patients of a test set.
        epsilon: Of a table.
        noise_multiplier: That gives it.
        figure: A metric, or the net benefit.
        coverage: Share of draws whose interval holds the truth; one without an end holds all.
        cannot_tell: Share of draws that tell nothing.
        width: Median width of the intervals.
        exact_width: Median width of exact results' intervals, where they have one.
        off: Median distance of noised and exact value of the same patients, where both are told.
        contradicts: Share of draws whose noised and exact intervals do not meet.
    """

    model: str
    n: int
    epsilon: float
    noise_multiplier: float
    figure: str
    coverage: float
    cannot_tell: float
    width: float
    exact_width: float
    off: float
    contradicts: float


@dataclass(frozen=True)
class Figure:
    """A value, None where it is not told, and its interval."""

    value: float | None
    interval: Interval | None


def draw_patients(
    model: Model, count: int, generator: np.random.Generator
) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
    """Draw risks, how often the event happens at each, and whether it did, each (count,)."""
    log_odds = generator.normal(model.mean, model.deviation, count)
    true = expit(model.intercept + model.slope * log_odds)
    return expit(log_odds), true, (generator.random(count) < true).astype(np.int64)


@cache
def true_figures(model: Model, seed: int = 0) -> dict[str, float]:
    """Return the figures over all patients like these."""
    generator = Streams.from_insecure_seed(seed, "noised-verdicts").generator("population")
    p, true, _ = draw_patients(model, POPULATION, generator)
    order = np.argsort(p)
    without = np.cumsum(1 - true[order])
    right = np.where(p >= 0.5, true, 1 - true)
    confidence = np.maximum(p, 1 - p)
    place = np.minimum((confidence * 15).astype(np.int64), 14)
    gaps = np.bincount(place, confidence - right, 15)
    records = np.maximum(np.bincount(place, minlength=15), 1)
    log_odds = np.log(p / (1 - p))
    harm = THRESHOLD / (1 - THRESHOLD)
    return {
        "accuracy": float(right.mean()),
        "nll": float(-(true * np.log(p) + (1 - true) * np.log(1 - p)).mean()),
        "brier": float(2 * (true * (1 - p) ** 2 + (1 - true) * p**2).mean()),
        "auroc": float((true[order] @ without) / (true.sum() * (1 - true).sum())),
        "rms_debiased": math.sqrt(float((gaps**2 / records).sum()) / len(p)),
        "calibration_intercept": float(
            brentq(lambda a: float((expit(a + log_odds) - true).mean()), -5, 5)
        ),
        "calibration_slope": model.slope,
        NET_BENEFIT: float(((true - (1 - true) * harm) * (p >= THRESHOLD)).mean()),
    }


def figure_of(values: CalibrationValues, name: str) -> Figure:
    """Read a figure of a summary; of a net benefit the interval is known where the value is."""
    if name != NET_BENEFIT:
        ends = values.intervals.get(name)
        value = values.metric(name)
    else:
        points = [
            point for point in values.net_benefit or () if math.isclose(point.threshold, THRESHOLD)
        ]
        ends = points[0].interval if points else None
        value = points[0].model if points else None
    if ends is None or ends[0] is None or ends[1] is None:
        return Figure(value, None)
    return Figure(value, Interval(ends[0], ends[1]))


def measure(setting: Setting, draws: int, seed: int = 0) -> Iterator[Row]:
    """Draw test sets and tables, and measure each figure.

    Args:
        setting: What is drawn.
        draws: How many.
        seed: Of all draws.
    """
    model = MODELS[setting.model]
    multiplier = solve_multiplier(setting.epsilon, DELTA, 1.0, 1, "add_or_remove_one")
    generator = Streams.from_insecure_seed(seed, f"noised-verdicts {setting.model}").generator(
        f"n={setting.n} epsilon={setting.epsilon:g}"
    )
    truth = true_figures(model)
    noised: list[CalibrationValues] = []
    exact: list[CalibrationValues] = []
    for number in range(draws):
        p, _, events = draw_patients(model, setting.n, generator)
        probabilities = np.column_stack([1 - p, p])
        sums = coded_counts(probabilities, events).sums
        sums = sums + multiplier * generator.standard_normal(sums.shape)
        noised.append(summarise_noised(NoisedCounts(sums, multiplier, 2), generator))
        if number < MOST_EXACT:
            exact.append(summarise(from_batch(probabilities, events), generator))
    for figure in FIGURES:
        of_noised = [figure_of(values, figure) for values in noised]
        of_exact = [figure_of(values, figure) for values in exact]
        told = [one.interval for one in of_noised if one.interval is not None]
        both = [(one, other) for one, other in zip(of_noised, of_exact, strict=False)]
        apart = [
            abs(one.value - other.value)
            for one, other in both
            if one.value is not None and other.value is not None
        ]
        yield Row(
            **asdict(setting),
            noise_multiplier=multiplier,
            figure=figure,
            coverage=float(np.mean([_holds(one.interval, truth[figure]) for one in of_noised])),
            cannot_tell=float(np.mean([one.value is None for one in of_noised])),
            width=_median([ends.high - ends.low for ends in told]),
            exact_width=_median(
                [one.interval.high - one.interval.low for one in of_exact if one.interval]
            ),
            off=_median(apart),
            contradicts=float(
                np.mean([not _meet(one.interval, other.interval) for one, other in both])
            ),
        )


def _holds(interval: Interval | None, value: float) -> bool:
    return interval is None or interval.low <= value <= interval.high


def _meet(first: Interval | None, second: Interval | None) -> bool:
    if first is None or second is None:
        return True
    return first.low <= second.high and second.low <= first.high


def _median(values: list[float]) -> float:
    return float(np.median(values)) if values else math.nan


def _written(row: Row) -> dict[str, object]:
    return {
        key: round(value, 4) if isinstance(value, float) else value
        for key, value in asdict(row).items()
    }


def main() -> None:
    """Write a row for each model, size, epsilon and figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=400, help="of each setting (default: 400)")
    parser.add_argument("--to", type=Path, required=True, help="folder for noised-verdicts.csv")
    parser.add_argument("--model", default="", choices=MODELS, help="of this model alone")
    arguments = parser.parse_args()
    arguments.to.mkdir(parents=True, exist_ok=True)
    with (arguments.to / "noised-verdicts.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, [field.name for field in fields(Row)])
        table.writeheader()
        for setting in SETTINGS:
            if arguments.model in ("", setting.model):
                table.writerows(map(_written, measure(setting, arguments.draws)))
                file.flush()
                print(setting, flush=True)


if __name__ == "__main__":
    main()
