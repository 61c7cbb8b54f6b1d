"""How often each verdict is wrong, where the truth is known: the table of docs/verdicts.md.

python -m benchmarks.verdicts --draws 1000 --to docs/results/verdicts

Risks with normal log odds. A model is off by a factor in the odds, by a slope, or keeps no order.
"""

import argparse
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import expit

from fl_dpbayes.calibration.statistics import from_batch
from fl_dpbayes.calibration.summarise import summarise
from fl_dpbayes.calibration.verdict import verdict

WORDS = ("fits here", "recalibrate first", "does not fit", "too few to tell")
# Odds that are off by less than is tolerated: neither word is wrong.
EITHER = "fits here, or recalibrate first"
COUNTS = (50, 200, 1000)
# Of log odds of the risks: the event happens to about one in five.
MEAN = -1.7
DEVIATION = 1.2


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


TRUTHS = (
    Truth("calibrated", right="fits here"),
    Truth("odds 1.5 times too low", right=EITHER, factor=1.5),
    Truth("odds 1.5 times too high", right=EITHER, factor=1 / 1.5),
    Truth("odds 3 times too low", right="recalibrate first", factor=3.0),
    Truth("odds 3 times too high", right="recalibrate first", factor=1 / 3),
    Truth("too extreme: slope .4", right="recalibrate first", slope=0.4),
    Truth("no order: slope 0", right="does not fit", slope=0.0),
)


def draw(truth: Truth, count: int, generator: np.random.Generator) -> str:
    """Draw a hospital's test patients, and return its verdict."""
    log_odds = MEAN + DEVIATION * generator.standard_normal(count)
    true = MEAN + truth.slope * (log_odds - MEAN) + math.log(truth.factor)
    outcomes = (generator.random(count) < expit(true)).astype(np.int64)
    risks = expit(log_odds)
    values = summarise(from_batch(np.column_stack([1 - risks, risks]), outcomes), generator)
    return str(verdict(values))


def rows(draws: int) -> Iterator[dict[str, object]]:
    """Yield how often each word is told, by truth and number of patients."""
    for place, truth in enumerate(TRUTHS):
        for count in COUNTS:
            generator = np.random.default_rng([place, count])
            told = Counter(draw(truth, count, generator) for _ in range(draws))
            wrong = [word for word in WORDS[:3] if word not in truth.right]
            yield {
                "truth": truth.words,
                "patients": count,
                "right": truth.right,
                **{word: told[word] / draws for word in WORDS},
                "wrong": sum(told[word] for word in wrong) / draws,
            }


def main() -> None:
    """Write verdicts.csv."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--to", type=Path, required=True)
    asked = parser.parse_args()
    asked.to.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows(asked.draws)).to_csv(asked.to / "verdicts.csv", index=False)


if __name__ == "__main__":
    main()
