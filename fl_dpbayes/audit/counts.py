"""Counts of bins and both evaluations: which records they read, and how much noise they have.

A released table shows whose records were counted, and how many of each unit, whatever the code says
of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fl_dpbayes.audit.canary_site import CanarySite, ask, with_public_evaluations
from fl_dpbayes.audit.descent import descent_questions
from fl_dpbayes.audit.low_bits import low_bit_questions
from fl_dpbayes.audit.noise_questions import (
    Release,
    mean_noise_std,
    noise_of,
    release_questions,
)
from fl_dpbayes.audit.parts import (
    BINS,
    CAP,
    RECORDS_PER_UNIT,
    UNITS,
    PartedSite,
    write_parted,
)
from fl_dpbayes.calibration import (
    CODE,
    COUNT,
    COUNT_BINS,
    OUTCOMES,
    NoisedCounts,
    coarsen,
    count_bin,
)
from fl_dpbayes.config import Scenario
from fl_dpbayes.config import recalibration as config
from fl_dpbayes.privacy.audit_statistics import (
    Check,
    Questions,
    mean_test,
    verdicts,
)
from fl_dpbayes.protocol import Arrays, EvaluateReply, RecalibrateReply

Array = npt.NDArray[np.float64]

FALSE_ALARM = 1e-5
# More noise than at this epsilon would hide which records were read, and nothing of that depends on
# epsilon.
LEAST_EPSILON = 2.0
COLUMNS = 3
UNIT_RECORDS = float(UNITS * CAP)
TABLES = 24
# The lowest bits of float64 that are looked at.
FLOAT64_BITS = 6


@dataclass(frozen=True)
class CountedRecord:
    """What a record adds to a table of counts.

    Attributes:
        probability: In [0, 1], which chooses the bin: of two classes that of class 1, else the
            largest.
        outcome: 1 where the prediction is right, or where the record is of class 1; 0 elsewhere.
    """

    probability: float
    outcome: float

    @property
    def bin(self) -> int:
        """The row of a table of BINS bins that it is added to."""
        return int(self.probability * BINS)

    @property
    def cell(self) -> tuple[int, int]:
        """The bin and outcome of noised counts that it is added to."""
        return int(count_bin(np.array([self.probability]))[0]), int(self.outcome)


def audit_counts(scenario: Scenario, folder: Path, generator: np.random.Generator) -> list[Check]:
    """Test what counts of bins, descent and both evaluations release, asked for or not.

    Args:
        scenario: Whose model, privacy and recalibration are tested.
        folder: To write the site into.
        generator: Draws its records, the posterior and directions to look along.

    Returns:
        A check for each question on each release.

    Raises:
        UserError: If no weights predict the parts in bins of their own.
    """
    parted = write_parted(scenario, folder, generator)
    by_top_label = {
        part: CountedRecord(
            probability=float(probabilities.max()),
            outcome=float(probabilities.argmax() == parted.labels[part]),
        )
        for part, probabilities in parted.predictions.items()
    }
    counted = by_top_label
    if scenario.data.source.task.outcome.is_event:
        counted = {
            part: CountedRecord(
                probability=float(probabilities[1]), outcome=float(parted.labels[part] == 1)
            )
            for part, probabilities in parted.predictions.items()
        }
    evaluations = [_evaluation_table(parted, run) for run in range(1, TABLES + 1)]
    counts = [_isotonic_table(parted, run) for run in range(1, TABLES + 1)]
    isotonic = _isotonic_questions(counts, counted, generator)
    descent = descent_questions(parted)
    evaluation = _evaluation_questions(evaluations, counted, generator)
    return [
        *verdicts("isotonic recalibration", isotonic, FALSE_ALARM / 4),
        *verdicts("recalibration by descent", descent, FALSE_ALARM / 4),
        *verdicts("noised evaluation", evaluation, FALSE_ALARM / 4),
        _public_check(parted, by_top_label["test"]),
    ]


def _released_table(sums: npt.NDArray, noise_multiplier: float) -> Release:
    """Return sums of (1, p, y) by bin, shape (BINS, COLUMNS), and the noise on each.

    A unit adds CAP vectors of length sqrt(3) at most.
    """
    return Release(
        sums=sums.astype(np.float64), noise_std=noise_multiplier * CAP * math.sqrt(COLUMNS)
    )


def _evaluate(
    parted: PartedSite, site: CanarySite, run: int, noise_multiplier: float | None = None
) -> tuple[EvaluateReply, Arrays]:
    request = parted.requests.evaluate(run, parted.delta, noise_multiplier)
    return ask(site, "evaluate", request, parted.requests.arrays, EvaluateReply)


def _evaluation_table(parted: PartedSite, run: int) -> Release:
    noise_multiplier = parted.scenario.evaluation.noise_multiplier or 1.0
    reply, arrays = _evaluate(parted, parted.site, run, noise_multiplier)
    assert reply.privacy is not None
    # A unit adds CAP vectors of length 1 at most.
    return Release(
        sums=arrays["posterior/noised"].astype(np.float64),
        noise_std=reply.privacy.history[-1][0] * CAP,
    )


def _isotonic_table(parted: PartedSite, run: int) -> Release:
    section = parted.scenario.recalibration
    privacy = parted.scenario.privacy
    epsilon = privacy.epsilon
    if section is not None and section.epsilon:
        epsilon = section.epsilon
    plan = config.CountingPlan(
        epsilon=max(LEAST_EPSILON, epsilon), delta=parted.delta, adjacency=privacy.adjacency
    )
    requests = parted.requests
    reply, released = ask(
        parted.site,
        "train.recalibrate",
        requests.recalibrate(run, plan),
        requests.arrays,
        RecalibrateReply,
    )
    return _released_table(released["noised"], reply.privacy.history[-1][0])


def _isotonic_questions(
    tables: Sequence[Release],
    records: Mapping[str, CountedRecord],
    generator: np.random.Generator,
) -> Questions:
    """Compare tables of (1, p, y) by bin with what the recalibration part adds."""
    record = records["recalibration"]
    expected = np.zeros((BINS, COLUMNS))
    expected[record.bin] = UNIT_RECORDS * np.array([1.0, record.probability, record.outcome])
    off = np.mean([table.sums for table in tables], axis=0) - expected
    deviation = mean_noise_std([table.noise_std for table in tables])
    return _table_questions(
        tables,
        expected,
        counts={part: float(off[of_part.bin, COUNT]) for part, of_part in records.items()},
        deviations=dict.fromkeys(records, deviation),
        records=records,
        counted_part="recalibration",
        generator=generator,
    )


def _evaluation_questions(
    tables: Sequence[Release],
    records: Mapping[str, CountedRecord],
    generator: np.random.Generator,
) -> Questions:
    """Compare coded counts with what the test part adds."""
    exact = np.zeros((COUNT_BINS, OUTCOMES))
    exact[records["test"].cell] = UNIT_RECORDS
    expected = CODE @ exact
    mean = NoisedCounts(
        sums=np.mean([table.sums for table in tables], axis=0) - expected,
        noise_std=mean_noise_std([table.noise_std for table in tables]),
        classes=OUTCOMES,
    )
    of_bins = np.sqrt(np.diag(mean.covariance))
    return _table_questions(
        tables,
        expected,
        counts={part: float(mean.counts[of_part.cell]) for part, of_part in records.items()},
        deviations={part: float(of_bins[of_part.cell[0]]) for part, of_part in records.items()},
        records=records,
        counted_part="test",
        generator=generator,
    )


def _table_questions(
    tables: Sequence[Release],
    expected: Array,
    *,
    counts: Mapping[str, float],
    deviations: Mapping[str, float],
    records: Mapping[str, CountedRecord],
    counted_part: str,
    generator: np.random.Generator,
) -> Questions:
    """Ask whose records released tables hold, and whether every cell has its noise.

    `expected` is what the units of the counted part add, CAP records each. `counts` says how many
    records of each part the mean of the tables holds beyond it, `deviations` of what noise.
    """
    amounts = [
        mean_test(counts[part], deviations[part], f"records of the {part} part", unit=UNIT_RECORDS)
        for part in records
    ]
    noise = noise_of(tables, expected)
    cells = noise.shape[1]
    layout = {"tables": np.arange(cells).reshape(expected.shape)}
    released = np.stack([table.sums.ravel() for table in tables])
    outcomes = np.array([record_of_part.outcome for record_of_part in records.values()])
    return {
        f"reads {CAP} records of each unit of the {counted_part} part, of no other unit": amounts,
        **release_questions(
            {"table": noise},
            layout,
            generator,
            release="table",
            number="cell",
            deviation=("noise has the accounted deviation, the cap on a unit's records included"),
        ),
        **low_bit_questions(
            states=released,
            bits=FLOAT64_BITS,
            covered=np.ones(released.shape, bool),
            labels=outcomes.astype(np.int64),
            where="tables",
        ),
    }


def _public_check(parted: PartedSite, record: CountedRecord) -> Check:
    """Check which records an exact evaluation counts: all of the test part, and no other.

    `record`: what a record of the test part adds.
    """
    _, arrays = _evaluate(parted, with_public_evaluations(parted.site), run=1)
    counts = coarsen(arrays["posterior/top_label"].astype(np.float64), BINS)[:, COUNT]
    expected = np.zeros(BINS)
    expected[record.bin] = UNITS * RECORDS_PER_UNIT
    return Check(
        part="public evaluation",
        what="counts the records of the test part, and no other",
        value=float(np.abs(counts - expected).sum()),
        limit=0.0,
        finds="one record",
    )
