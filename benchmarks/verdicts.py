"""How often each verdict is wrong, where the truth is known: the tables of docs/metrics.md.

python -m benchmarks.verdicts --draws 400 --federations 20 --to docs/results/verdicts

Risks with normal log odds. A model is off by a factor in the odds, by a slope, or keeps no order.
"""

import argparse
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import expit

from fl_dpbayes.calibration.records import METRICS, CalibrationValues
from fl_dpbayes.calibration.statistics import from_batch
from fl_dpbayes.calibration.verdict import CLEARLY_OFF, MOST_SHOWN, telling_order, verdict

WORDS = ("fits here", "recalibrate first", "does not fit", "too few to tell")
# Odds that are off by less than is tolerated: neither word is wrong.
EITHER = "fits here, or recalibrate first"
COUNTS = (50, 200, 1000)
# Of log odds of the risks: the event happens to about one in five.
MEAN = -1.7
DEVIATION = 1.2
# The measures that a verdict, and the order of hospitals, are read from.
READ = ("auroc", "calibration_intercept", "calibration_slope", "event_rate", "mean_risk")
HOSPITALS = 259
# From the least to the most test patients of a hospital, in equal ratios; the median is 89.
SMALLEST = 20
LARGEST = 400


@dataclass(frozen=True)
class Truth:
    """How a hospital's true log odds follow from the predicted ones: factor, slope and noise.

    Attributes:
        words: What it is called.
        right: The verdict that is right, beside "too few to tell".
        factor: By which the true odds are larger than the predicted ones.
        slope: Of the true log odds in the predicted ones.
    """

    words: str
    right: str
    factor: float = 1.0
    slope: float = 1.0

    def is_wrong(self, word: str) -> bool:
        """Say whether the truth does not allow a word."""
        return word in WORDS[:3] and word not in self.right


CALIBRATED = Truth("calibrated", right="fits here")
TOO_LOW = Truth("odds 3 times too low", right="recalibrate first", factor=3.0)
TOO_HIGH = Truth("odds 3 times too high", right="recalibrate first", factor=1 / 3)
TRUTHS = (
    CALIBRATED,
    Truth("odds 1.5 times too low", right=EITHER, factor=1.5),
    Truth("odds 1.5 times too high", right=EITHER, factor=1 / 1.5),
    TOO_LOW,
    TOO_HIGH,
    Truth("too extreme: slope .4", right="recalibrate first", slope=0.4),
    Truth("no order: slope 0", right="does not fit", slope=0.0),
)


def draw(truth: Truth, count: int, generator: np.random.Generator) -> CalibrationValues:
    """Draw a hospital's test patients, and return what its verdict is read from."""
    log_odds = MEAN + DEVIATION * generator.standard_normal(count)
    true = MEAN + truth.slope * (log_odds - MEAN) + math.log(truth.factor)
    outcomes = (generator.random(count) < expit(true)).astype(np.int64)
    risks = expit(log_odds)
    sums = from_batch(np.column_stack([1 - risks, risks]), outcomes)
    measured = {key: METRICS[key].measure(sums) for key in READ}
    known = {key: metric for key, metric in measured.items() if metric is not None}
    values = {key: metric.value for key, metric in known.items()}
    intervals = {key: metric.interval for key, metric in known.items()}
    return CalibrationValues.model_validate({**values, "n": count, "intervals": intervals})


def rows(draws: int) -> Iterator[dict[str, object]]:
    """Yield how often each word is told, by truth and number of patients."""
    for place, truth in enumerate(TRUTHS):
        for count in COUNTS:
            generator = np.random.default_rng([place, count])
            told = Counter(str(verdict(draw(truth, count, generator))) for _ in range(draws))
            yield {
                "truth": truth.words,
                "patients": count,
                "right": truth.right,
                **{word: told[word] / draws for word in WORDS},
                "wrong": sum(told[word] for word in told if truth.is_wrong(word)) / draws,
            }


@dataclass(frozen=True)
class Hospital:
    """A hospital of a federation.

    Attributes:
        truth: How it is.
        values: What was seen there.
    """

    truth: Truth
    values: CalibrationValues

    @property
    def word(self) -> str:
        """Its verdict."""
        return str(verdict(self.values))


def federation(share_off: float, generator: np.random.Generator) -> list[Hospital]:
    """Draw a federation, of which a share is off by a factor of 3, half of it in each direction."""
    off = round(share_off * HOSPITALS)
    truths = [TOO_LOW] * (off // 2) + [TOO_HIGH] * (off - off // 2)
    truths += [CALIBRATED] * (HOSPITALS - off)
    sizes = generator.permutation(np.geomspace(SMALLEST, LARGEST, HOSPITALS).round().astype(int))
    return [
        Hospital(truth, draw(truth, int(count), generator))
        for truth, count in zip(truths, sizes, strict=True)
    ]


def federation_row(hospitals: Sequence[Hospital]) -> dict[str, float]:
    """Count the words of a federation, those that are wrong, and both among the first twelve.

    The first sentence of a page counts those that are clearly off: `called off` of them it names,
    `called off, calibrated` of these wrongly.
    """
    told = Counter(hospital.word for hospital in hospitals)
    shown = sorted(hospitals, key=lambda hospital: telling_order(hospital.values, trained=False))[
        :MOST_SHOWN
    ]
    called_off = [hospital for hospital in hospitals if hospital.word in CLEARLY_OFF]
    return {
        **{word: told[word] for word in WORDS},
        "wrong": sum(hospital.truth.is_wrong(hospital.word) for hospital in hospitals),
        "called off": len(called_off),
        "called off, calibrated": sum(hospital.truth == CALIBRATED for hospital in called_off),
        "of the first 12 calibrated": sum(hospital.truth == CALIBRATED for hospital in shown),
        "of the first 12 wrong": sum(hospital.truth.is_wrong(hospital.word) for hospital in shown),
    }


def federation_rows(draws: int) -> Iterator[dict[str, object]]:
    """Yield means over federations, and their standard deviations, by the share that is off."""
    for place, share_off in enumerate((0.0, 0.1)):
        generator = np.random.default_rng([HOSPITALS, place])
        table = pd.DataFrame(federation_row(federation(share_off, generator)) for _ in range(draws))
        for statistic, values in (("mean", table.mean()), ("deviation", table.std())):
            yield {"hospitals off": share_off, "over federations": statistic, **values.round(2)}


def main() -> None:
    """Write verdicts.csv and federations.csv."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--federations", type=int, default=20)
    parser.add_argument("--to", type=Path, required=True)
    asked = parser.parse_args()
    asked.to.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows(asked.draws)).to_csv(asked.to / "verdicts.csv", index=False)
    federations = pd.DataFrame(federation_rows(asked.federations))
    federations.to_csv(asked.to / "federations.csv", index=False)


if __name__ == "__main__":
    main()
