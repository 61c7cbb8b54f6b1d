"""Recalibration and evaluation: which records they read, and how much noise their releases have.

The records of each part (training, test, recalibration) are alike and unlike those of the others,
and the auditor's posterior predicts each kind in a bin of its own. So a released table shows whose
records were counted, and how many of each unit, whatever the code says of it.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from fl_dpbayes.audit import canary_site
from fl_dpbayes.audit.directions import named_directions, random_directions
from fl_dpbayes.audit.gradients import model_features, start_vector, synthetic_records
from fl_dpbayes.audit.low_bits import low_bit_questions
from fl_dpbayes.calibration import COUNT, coarsen, recalibrate
from fl_dpbayes.config import Classification, Scenario, Split, write_site_file
from fl_dpbayes.config import recalibration as config
from fl_dpbayes.data import recalibration_units
from fl_dpbayes.errors import UserError
from fl_dpbayes.models import build_model, vector_to_arrays
from fl_dpbayes.privacy.audit_statistics import (
    Check,
    Finding,
    Questions,
    correlation_tests,
    mean_test,
    variance_test,
    verdicts,
)
from fl_dpbayes.privacy.noise_statistics import (
    deviation_tests,
    direction_tests,
    law_tests,
    pair_test,
)
from fl_dpbayes.protocol import (
    Arrays,
    EvaluateReply,
    EvaluateRequest,
    RecalibrateReply,
    RecalibrateRequest,
    arrays_digest,
    prefixed,
)

Array = npt.NDArray[np.float64]

FALSE_ALARM = 1e-5
SHARES = {"test": (0.0, 0.3), "recalibration": (0.3, 0.6), "training": (0.6, 1.0)}
UNITS = 40
RECORDS_PER_UNIT = 4
# Records of a unit that are counted.
CAP = 2
# More noise than at this epsilon would hide which records were read, and nothing of that depends on
# epsilon.
LEAST_EPSILON = 2.0
BINS = 15
COLUMNS = 3
TABLES = 24
# Numbers of noise that a descent is tested on, as far as the stretches suffice.
NUMBERS = 800
# Stretches of each length.
MOST_STRETCHES = 40
STRETCH_LENGTHS = (1, 4)
DESCENT_EPSILON = 400.0
DESCENT_RUN = 1000
# Of the central differences.
DIFFERENCE = 1e-5
# Share by which the small moves may change a sum of gradients.
SLACK = 0.01
# The lowest bits of float64 that are looked at.
FLOAT64_BITS = 6
ATTEMPTS = 2000
# Distance of a probability from the edge of its bin, in bins.
LEAST_DISTANCE = 0.02


@dataclass(frozen=True)
class Parts:
    """A canary site of a scenario whose parts can be told apart.

    Attributes:
        scenario: Whose model, privacy and noise the requests have.
        site: Holds UNITS units of RECORDS_PER_UNIT records in each part.
        delta: Of its ledger.
        samples: The auditor's posterior, parameter name -> shape (1, *shape).
        predictions: Part -> class probabilities of each of its records, shape (classes,).
        labels: Part -> label of each of its records.
    """

    scenario: Scenario
    site: canary_site.CanarySite
    delta: float
    samples: Arrays
    predictions: dict[str, Array]
    labels: dict[str, int]


@dataclass(frozen=True)
class CountedRecord:
    """What a record adds to a table of counts.

    Attributes:
        probability: In [0, 1], which chooses the bin.
        outcome: 1 where the prediction is right, or where the record is of class 1; 0 elsewhere.
    """

    probability: float
    outcome: float

    @property
    def bin(self) -> int:
        """The row of the table that it is added to."""
        return int(self.probability * BINS)


@dataclass(frozen=True)
class ReleasedTable:
    """A noised table.

    Attributes:
        sums: Of (1, p, y) by bin, shape (BINS, COLUMNS).
        noise_multiplier: As the site's ledger accounts for it.
    """

    sums: Array
    noise_multiplier: float

    @property
    def noise_std(self) -> float:
        """Standard deviation of each sum, as a unit adds CAP vectors of length sqrt(3) at most."""
        return self.noise_multiplier * CAP * math.sqrt(COLUMNS)


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
    parts = _write_parts(scenario, folder, generator)
    evaluations = [_evaluation_table(parts, run) for run in range(1, TABLES + 1)]
    counts = [_isotonic_table(parts, run) for run in range(1, TABLES + 1)]
    by_top_label = {
        part: _by_top_label(parts.predictions[part], parts.labels[part]) for part in SHARES
    }
    if scenario.data.source.task.outcome.is_event:
        by_class_1 = {
            part: _by_class_1(parts.predictions[part], parts.labels[part]) for part in SHARES
        }
        isotonic = _table_questions(counts, by_class_1, "recalibration", generator)
    else:
        isotonic = _table_questions(counts, by_top_label, "recalibration", generator)
    descent = _descent_questions(parts)
    evaluation = _table_questions(evaluations, by_top_label, "test", generator)
    return [
        *verdicts("isotonic recalibration", isotonic, FALSE_ALARM / 4),
        *verdicts("recalibration by descent", descent, FALSE_ALARM / 4),
        *verdicts("noised evaluation", evaluation, FALSE_ALARM / 4),
        _public_check(parts, by_top_label["test"]),
    ]


def _by_top_label(probabilities: Array, label: int) -> CountedRecord:
    return CountedRecord(
        probability=float(probabilities.max()),
        outcome=float(probabilities.argmax() == label),
    )


def _by_class_1(probabilities: Array, label: int) -> CountedRecord:
    return CountedRecord(probability=float(probabilities[1]), outcome=float(label == 1))


def _write_parts(scenario: Scenario, folder: Path, generator: np.random.Generator) -> Parts:
    """Write the site, and choose a posterior that tells its parts apart."""
    task = scenario.data.source.task
    levels, _ = synthetic_records(task, generator, len(SHARES))
    features = model_features(scenario, folder, levels)
    vector, probabilities = _choose_posterior(scenario, features, generator)
    # Right in the recalibration part and wrong elsewhere: the gradients of a descent then point
    # against each other.
    right = np.array([part == "recalibration" for part in SHARES])
    labels = np.where(right, probabilities.argmax(axis=1), probabilities.argmin(axis=1))
    names = canary_site.unit_names(SHARES, UNITS)
    kinds: list[int] = []
    units: list[str] = []
    for kind, part in enumerate(SHARES):
        for name in names[part]:
            kinds += [kind] * RECORDS_PER_UNIT
            units += [name] * RECORDS_PER_UNIT
    delta = min(scenario.privacy.delta, 0.5 / UNITS)
    site = canary_site.write_canary_site(
        folder / "parts",
        scenario,
        canary_site.CanaryRecords(
            task=task, features=levels[kinds], labels=labels[kinds], units=units
        ),
        UNITS,
        delta=delta,
        policy=canary_site.willing(
            max_test_records_per_unit=CAP,
            evaluation_release="noised",
            min_evaluation_noise_multiplier=0.1,
        ),
        split=Split(test_fraction=0.3, recalibration_fraction=0.3, key=canary_site.KEY),
    )
    module = build_model(scenario.model, task, seed=0)
    return Parts(
        scenario=scenario,
        site=site,
        delta=delta,
        samples={name: array[None] for name, array in vector_to_arrays(vector, module).items()},
        predictions=dict(zip(SHARES, probabilities, strict=True)),
        labels=dict(zip(SHARES, labels.tolist(), strict=True)),
    )


def _choose_posterior(
    scenario: Scenario, features: npt.NDArray[np.float32], generator: np.random.Generator
) -> tuple[torch.Tensor, Array]:
    """Draw weights until the kinds of records fall into bins of their own.

    Both by the largest probability and, of two classes, by p_1. Returns the weights and the class
    probabilities of each kind.
    """
    task = scenario.data.source.task
    module = build_model(scenario.model, task, seed=0)
    records = torch.from_numpy(features).double()
    for attempt in range(ATTEMPTS):
        start = start_vector(scenario.model, task, generator, 1.5 ** (attempt % 12))
        module.float()
        torch.nn.utils.vector_to_parameters(torch.from_numpy(start).float(), module.parameters())
        vector = torch.nn.utils.parameters_to_vector(module.parameters()).detach().clone()
        with torch.no_grad():
            probabilities = torch.softmax(module.double()(records), dim=1).numpy()
        binned = [probabilities.max(axis=1)]
        if task.outcome.is_event:
            binned.append(probabilities[:, 1])
        if all(_in_distinct_bins(values) for values in binned):
            return vector, probabilities
    raise UserError(
        "the audit found no weights that tell three made-up records apart: is the model's "
        "output constant?"
    )


def _in_distinct_bins(values: Array) -> bool:
    places = values * BINS
    if len(set(np.floor(places))) < len(values):
        return False
    return bool(np.abs(places - np.round(places)).min() > LEAST_DISTANCE)


def _evaluate(
    parts: Parts, site: canary_site.CanarySite, run: int, noise_multiplier: float | None = None
) -> tuple[EvaluateReply, Arrays]:
    arrays = prefixed("posterior", parts.samples)
    request = EvaluateRequest(
        run=f"{run:032x}",
        round=1,
        task=parts.site.task,
        model=parts.scenario.model,
        arrays=arrays_digest(arrays),
        predictors={"posterior": (1.0,)},
        delta=parts.delta,
        noise_multiplier=noise_multiplier,
    )
    return canary_site.ask(site, "evaluate", request, arrays, EvaluateReply)


def _evaluation_table(parts: Parts, run: int) -> ReleasedTable:
    noise_multiplier = parts.scenario.evaluation.noise_multiplier or 1.0
    reply, arrays = _evaluate(parts, parts.site, run, noise_multiplier)
    assert reply.privacy is not None
    return ReleasedTable(
        sums=arrays["posterior/noised"].astype(np.float64),
        noise_multiplier=reply.privacy.history[-1][0],
    )


def _isotonic_table(parts: Parts, run: int) -> ReleasedTable:
    section = parts.scenario.recalibration
    privacy = parts.scenario.privacy
    epsilon = privacy.epsilon
    if section is not None and section.epsilon:
        epsilon = section.epsilon
    arrays = prefixed("posterior", parts.samples)
    request = RecalibrateRequest(
        run=f"{run:032x}",
        round=1,
        task=parts.site.task,
        model=parts.scenario.model,
        arrays=arrays_digest(arrays),
        weights=(1.0,),
        plan=config.CountingPlan(
            epsilon=max(LEAST_EPSILON, epsilon), delta=parts.delta, adjacency=privacy.adjacency
        ),
        first_step=0,
        steps=1,
    )
    reply, released = canary_site.ask(
        parts.site, "train.recalibrate", request, arrays, RecalibrateReply
    )
    return ReleasedTable(
        sums=released["noised"].astype(np.float64), noise_multiplier=reply.privacy.history[-1][0]
    )


def _place_test(noise: Array, place: str) -> Finding:
    """Test the deviation of each column of noise, shape (rows, places)."""
    squares = np.square(noise).sum(axis=0)
    return deviation_tests(squares, len(noise), lambda number: f"{place} {number + 1}")


def law_questions(noise: Array, where: str) -> Questions:
    """Ask whether noise, N(0, 1) at a sound site, is normal to its tails.

    Args:
        noise: Of any shape.
        where: It is from, in words.

    Returns:
        A question on the law and one on its tails.
    """
    distance, tails = law_tests(noise, where)
    return {"noise is normal": [distance], "noise is neither cut off nor of heavier tails": [tails]}


def _table_questions(
    tables: Sequence[ReleasedTable],
    records: dict[str, CountedRecord],
    counted_part: str,
    generator: np.random.Generator,
) -> Questions:
    """Compare released tables with what the units of one part add.

    CAP records of each unit are counted, and every cell has its noise. `records` gives what each
    record of a part adds.
    """
    unit_records = float(UNITS * CAP)
    record = records[counted_part]
    expected = np.zeros((BINS, COLUMNS))
    expected[record.bin] = unit_records * np.array([1.0, record.probability, record.outcome])
    errors = np.stack([table.sums - expected for table in tables])
    noise = np.stack([error / table.noise_std for error, table in zip(errors, tables, strict=True)])
    mean_deviation = math.sqrt(sum(table.noise_std**2 for table in tables)) / len(tables)
    mean_counts = errors.mean(axis=0)[:, 0]
    amounts = [
        mean_test(
            float(mean_counts[record_of_part.bin]),
            mean_deviation,
            f"records of the {part} part",
            unit=unit_records,
        )
        for part, record_of_part in records.items()
    ]
    by_table = {f"table {number + 1}": values.ravel() for number, values in enumerate(noise)}
    flat = noise.reshape(len(noise), -1)
    cells = flat.shape[1]
    released = np.stack([table.sums.ravel() for table in tables])
    outcomes = np.array([record_of_part.outcome for record_of_part in records.values()])
    layout = {"tables": np.arange(cells).reshape(BINS, COLUMNS)}
    directions = named_directions(layout, cells) | random_directions(cells, generator)
    return {
        (f"reads {CAP} records of each unit of the {counted_part} part, of no other unit"): amounts,
        "noise has the accounted deviation, the cap on a unit's records included": [
            variance_test(float(np.square(noise).sum()), noise.size, "all tables")
        ],
        "no two tables share noise": correlation_tests(by_table),
        **law_questions(noise, "all tables"),
        **low_bit_questions(
            states=released,
            bits=FLOAT64_BITS,
            covered=np.ones(released.shape, bool),
            labels=outcomes.astype(np.int64),
            where="tables",
        ),
        "noise has the accounted deviation in every direction": direction_tests(
            flat, directions, "tables"
        )[:1],
        "noise has the accounted deviation in every cell": [_place_test(flat, "cell")],
        "no two numbers of a table share noise": [
            pair_test(np.ascontiguousarray(flat.T), "numbers")
        ],
    }


def _public_check(parts: Parts, record: CountedRecord) -> Check:
    """Check which records an exact evaluation counts: all of the test part, and no other.

    `record`: what a record of the test part adds.
    """
    policy = parts.site.file.policy.model_copy(update={"evaluation_release": "public"})
    file = parts.site.file.model_copy(update={"policy": policy})
    path = parts.site.path.with_name("public.toml")
    write_site_file(file, path)
    _, arrays = _evaluate(parts, canary_site.CanarySite(path, file), run=1)
    counts = coarsen(arrays["posterior/top_label"].astype(np.float64), BINS)[:, COUNT]
    expected = np.zeros(BINS)
    expected[record.bin] = UNITS * RECORDS_PER_UNIT
    return Check(
        part="public evaluation",
        what="counts the records of the test part, and no other",
        value=float(np.abs(counts - expected).sum()),
        limit=0.0,
        relation="at most",
        finds="one record",
    )


@dataclass(frozen=True)
class DescentReading:
    """The mean noisy sum of a stretch of a descent, over C.

    Attributes:
        mean: Shape (P,) for P parameters of the map.
        noise_std: Standard deviation of the noise in each of its numbers.
    """

    mean: Array
    noise_std: float


def _descent_questions(parts: Parts) -> Questions:
    """Read the noisy sums of short stretches of a descent from 0 and test them.

    Units of the recalibration part pull against those of the others.
    """
    section = parts.scenario.recalibration
    if not isinstance(section, config.Recalibration):
        section = config.Recalibration(method="vector")
    gradients = {
        part: RECORDS_PER_UNIT * _gradient(section, parts.predictions[part], parts.labels[part])
        for part in SHARES
    }
    gradient = gradients["recalibration"]
    clip_norm = 0.7 * min(float(np.linalg.norm(values)) for values in gradients.values())
    stretches = min(MOST_STRETCHES, math.ceil(NUMBERS / len(gradient) / len(STRETCH_LENGTHS)))
    lengths = STRETCH_LENGTHS * stretches
    plan = _descent_plan(parts, section, clip_norm, 2 * sum(lengths))
    ends = [0, *itertools.accumulate(lengths)]
    readings = [
        _descend(parts=parts, plan=plan, first_step=first, last_step=last, count=len(gradient))
        for first, last in itertools.pairwise(ends)
    ]
    along = gradient / float(np.linalg.norm(gradient))
    amount = mean_test(
        float(np.mean([reading.mean @ along for reading in readings])) - UNITS,
        math.sqrt(sum(reading.noise_std**2 for reading in readings)) / len(readings),
        "sums of clipped gradients",
        unit=float(UNITS),
        slack=SLACK * UNITS,
    )
    noise = np.stack([(reading.mean - UNITS * along) / reading.noise_std for reading in readings])
    deviations = []
    differences = []
    for number, length in enumerate(STRETCH_LENGTHS):
        rows = noise[number :: len(STRETCH_LENGTHS)]
        where = f"requests of {length} steps"
        squares = float(np.square(rows).sum())
        deviations.append(variance_test(squares, rows.size, where, slack=SLACK))
        even_rows = len(rows) // 2 * 2
        difference = rows[0:even_rows:2] - rows[1:even_rows:2]
        # A difference of two has twice the variance.
        squares = float(np.square(difference).sum()) / 2
        differences.append(
            variance_test(squares, difference.size, f"differences of {where}", slack=SLACK)
        )
    return {
        "reads the units of the recalibration part, each clipped once, and no other": [amount],
        "noise has the accounted deviation, within a request and across": deviations,
        # What requests had in common would be missing from the difference of two.
        "no two requests in a row share noise": differences,
        "noise has the accounted deviation in every parameter": [_place_test(noise, "parameter")],
        **law_questions(noise, "all requests"),
    }


def _descent_plan(
    parts: Parts, section: config.Recalibration, clip_norm: float, steps: int
) -> config.RecalibrationPlan:
    """Return a plan of steps too small to move the gradients."""
    plan = config.recalibration_plan(section, parts.scenario.privacy)
    assert isinstance(plan, config.RecalibrationPlan)
    return plan.model_copy(
        update={
            "epsilon": DESCENT_EPSILON,
            "delta": parts.delta,
            "clip_norm": clip_norm,
            "steps": steps,
            "rounds": 1,
            "step_size": 1e-3 / clip_norm,
        }
    )


def _gradient(section: config.Recalibration, probabilities: Array, label: int) -> Array:
    """Return the gradient of -log of the recalibrated probability at 0, by central differences."""
    count = config.parameter_count(section.method, Classification(classes=len(probabilities)))

    def loss(parameters: Array) -> float:
        mapping = config.RecalibrationMap(
            method=section.method, parameters=tuple(parameters.tolist())
        )
        return -math.log(recalibrate(probabilities[None], mapping)[0, label])

    moves = DIFFERENCE * np.eye(count)
    return np.array([(loss(move) - loss(-move)) / (2 * DIFFERENCE) for move in moves])


def _descend(
    parts: Parts, plan: config.RecalibrationPlan, first_step: int, last_step: int, count: int
) -> DescentReading:
    """Have the site descend from 0 and read the mean noisy sum off the parameters.

    y = -theta n / (C sum a_k) = G / C + sum a_k sigma xi_k / sum a_k
    """
    arrays = prefixed("posterior", parts.samples)
    request = RecalibrateRequest(
        run=f"{DESCENT_RUN:032x}",
        round=first_step + 1,
        task=parts.site.task,
        model=parts.scenario.model,
        arrays=arrays_digest(arrays),
        weights=(1.0,),
        plan=plan,
        first_step=first_step,
        steps=last_step - first_step,
        start=(0.0,) * count,
    )
    reply, _ = canary_site.ask(parts.site, "train.recalibrate", request, arrays, RecalibrateReply)
    assert reply.parameters is not None
    sizes = plan.step_size * (1 - np.arange(first_step, last_step) / plan.steps)
    scale = recalibration_units(parts.site.file) / (float(sizes.sum()) * plan.clip_norm)
    noise_multiplier = reply.privacy.history[-1][0]
    return DescentReading(
        mean=-scale * np.array(reply.parameters),
        noise_std=noise_multiplier * float(np.linalg.norm(sizes) / sizes.sum()),
    )
