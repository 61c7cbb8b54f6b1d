"""Recalibration and evaluation: which records they read, and how much noise their releases have.

The records of each part (training, test, recalibration) are alike and unlike those of the others,
and the auditor's posterior predicts each kind in a bin of its own: so a released table shows whose
records were counted, and how many of each unit, whatever the code says of it.
"""

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fl_dpbayes.audit import canary_site
from fl_dpbayes.audit.directions import named_directions, random_directions
from fl_dpbayes.audit.gradients import model_features, start_vector, synthetic_records
from fl_dpbayes.audit.low_bits import low_bit_questions
from fl_dpbayes.calibration import COUNT, coarsen, recalibrate
from fl_dpbayes.config import Scenario, Split, write_site_file
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
UNITS, RECORDS_PER_UNIT, CAP = 40, 4, 2
# More noise than at this epsilon would hide which records were read, and nothing of that depends on
# epsilon.
LEAST_EPSILON = 2.0
BINS, COLUMNS = 15, 3
TABLES = 24
# Numbers of noise that a descent is tested on, and stretches of each length that are asked for, at
# most.
NUMBERS, MOST_STRETCHES = 800, 40
DESCENTS = (1, 4)
DESCENT_EPSILON, DESCENT_RUN = 400.0, 1000
DIFFERENCE = 1e-5
# Share by which the small moves may change a sum of gradients.
SLACK = 0.01
# The lowest bits of float64 that are looked at.
FLOAT64_BITS = 6
ATTEMPTS = 2000


@dataclass(frozen=True)
class Parts:
    """A canary site of a scenario whose parts can be told apart.

    `delta`: of its ledger. `samples`: the auditor's posterior, parameter name -> shape (1, *shape).
    `predictions`: part -> class probabilities of each of its records, shape (classes,). `labels`:
    part -> label of each of its records.
    """

    scenario: Scenario
    site: canary_site.CanarySite
    delta: float
    samples: Arrays
    predictions: dict[str, Array]
    labels: dict[str, int]


def audit_counts(scenario: Scenario, folder: Path, generator: np.random.Generator) -> list[Check]:
    """Test what counts of bins, descent and both evaluations release, whether or not the scenario asks for them."""
    parts = _parts(scenario, folder, generator)
    noised = [_evaluation_table(parts, run) for run in range(1, TABLES + 1)]
    counted = [_isotonic_table(parts, run) for run in range(1, TABLES + 1)]
    top = {
        part: (float(p.max()), float(p.argmax() == parts.labels[part]))
        for part, p in parts.predictions.items()
    }
    binary = {
        part: (float(p[1]), float(parts.labels[part] == 1)) for part, p in parts.predictions.items()
    }
    isotonic = binary if scenario.data.source.task.classes == 2 else top
    return [
        *verdicts(
            "isotonic recalibration",
            _table_questions(counted, isotonic, "recalibration", generator),
            FALSE_ALARM / 4,
        ),
        *verdicts("recalibration by descent", _descent_questions(parts), FALSE_ALARM / 4),
        *verdicts(
            "noised evaluation", _table_questions(noised, top, "test", generator), FALSE_ALARM / 4
        ),
        _public_check(parts, top),
    ]


def _parts(scenario: Scenario, folder: Path, generator: np.random.Generator) -> Parts:
    task = scenario.data.source.task
    levels, _ = synthetic_records(task, generator, len(SHARES))
    vector, probabilities = _posterior(
        scenario, model_features(scenario, folder, levels), generator
    )
    # Right in the recalibration part and wrong elsewhere: the gradients of a descent then point
    # against each other.
    right = np.array([part == "recalibration" for part in SHARES])
    labels = np.where(right, probabilities.argmax(axis=1), probabilities.argmin(axis=1))
    names = canary_site.unit_names(SHARES, UNITS)
    kinds = [
        kind for kind, part in enumerate(SHARES) for _ in range(len(names[part]) * RECORDS_PER_UNIT)
    ]
    units = [name for part in SHARES for name in names[part] for _ in range(RECORDS_PER_UNIT)]
    delta = min(scenario.privacy.delta, 0.5 / UNITS)
    release = {"evaluation_release": "noised", "min_evaluation_noise_multiplier": 0.1}
    policy = canary_site.willing(max_test_records_per_unit=CAP, **release)
    split = Split(test_fraction=0.3, recalibration_fraction=0.3, key=canary_site.KEY)
    held = canary_site.CanaryRecords(task, levels[kinds], labels[kinds], units)
    more: dict[str, Any] = {"policy": policy, "split": split, "delta": delta}
    site = canary_site.write_canary_site(folder / "parts", scenario, held, UNITS, **more)
    module = build_model(scenario.model, task, seed=0)
    samples = {name: array[None] for name, array in vector_to_arrays(vector, module).items()}
    predictions, outcomes = (
        dict(zip(SHARES, values, strict=True)) for values in (probabilities, labels.tolist())
    )
    return Parts(scenario, site, delta, samples, predictions, outcomes)


def _posterior(
    scenario: Scenario, features: npt.NDArray[np.float32], generator: np.random.Generator
) -> tuple[torch.Tensor, Array]:
    """Draw weights until the three kinds of records are predicted in three bins, of p_1 and of the largest p."""
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
        binned = [probabilities.max(axis=1)] + ([probabilities[:, 1]] if task.classes == 2 else [])
        if all(_apart(values) for values in binned):
            return vector, probabilities
    raise UserError(
        "the audit found no weights that tell three made-up records apart: is the model's "
        "output constant?"
    )


def _apart(values: Array) -> bool:
    places = values * BINS
    return len(set(np.floor(places))) == len(values) and bool(
        np.abs(places - np.round(places)).min() > 0.02
    )


def _request(parts: Parts, run: int) -> dict[str, Any]:
    digest = arrays_digest(prefixed("posterior", parts.samples))
    whose = {
        "run": f"{run:032x}",
        "round": 1,
        "task": parts.site.task,
        "model": parts.scenario.model,
    }
    return whose | {"arrays": digest}


def _evaluate(
    parts: Parts, site: canary_site.CanarySite, run: int, **extra: Any
) -> tuple[EvaluateReply, Arrays]:
    request = EvaluateRequest(
        **_request(parts, run), predictors={"posterior": (1.0,)}, delta=parts.delta, **extra
    )
    return canary_site.ask(
        site, "evaluate", request, prefixed("posterior", parts.samples), EvaluateReply
    )


def _recalibrate(
    parts: Parts, request: dict[str, Any], **extra: Any
) -> tuple[RecalibrateReply, Arrays]:
    asked = RecalibrateRequest(**request, weights=(1.0,), **extra)
    arrays = prefixed("posterior", parts.samples)
    return canary_site.ask(parts.site, "train.recalibrate", asked, arrays, RecalibrateReply)


def _evaluation_table(parts: Parts, run: int) -> tuple[Array, float]:
    noise = parts.scenario.evaluation.noise_multiplier or 1.0
    reply, arrays = _evaluate(parts, parts.site, run, noise_multiplier=noise)
    assert reply.privacy is not None
    return arrays["posterior/noised"].astype(np.float64), reply.privacy.history[-1][0]


def _isotonic_table(parts: Parts, run: int) -> tuple[Array, float]:
    section, privacy = parts.scenario.recalibration, parts.scenario.privacy
    epsilon = max(LEAST_EPSILON, (section.epsilon if section else None) or privacy.epsilon)
    plan = config.CountingPlan(epsilon=epsilon, delta=parts.delta, adjacency=privacy.adjacency)
    reply, received = _recalibrate(parts, _request(parts, run), plan=plan, first_step=0, steps=1)
    return received["noised"].astype(np.float64), reply.privacy.history[-1][0]


def _by_place(noise: Array, what: str) -> Finding:
    squares = np.square(noise).sum(axis=0)
    return deviation_tests(squares, len(noise), lambda place: f"{what} {place + 1}")


def law_questions(noise: Array, where: str) -> Questions:
    """Ask whether noise, N(0, 1) at a sound site, is normal to its tails."""
    distance, tails = law_tests(noise, where)
    return {"noise is normal": [distance], "noise is neither cut off nor of heavier tails": [tails]}


def _table_questions(
    tables: list[tuple[Array, float]],
    kinds: dict[str, tuple[float, float]],
    read: str,
    generator: np.random.Generator,
) -> Questions:
    """Compare released tables with what the units of one part add: CAP records of each, every cell with its noise.

    A record adds (1, p, y) to the bin of p, at most sqrt(3) long, and a unit at most CAP records:
    the noise of each sum has standard deviation sigma CAP sqrt(3).
    """
    expected = np.zeros((BINS, COLUMNS))
    counted = float(UNITS * CAP)
    probability, outcome = kinds[read]
    expected[int(probability * BINS)] = counted * np.array([1.0, probability, outcome])
    scales = [sigma * CAP * math.sqrt(COLUMNS) for _, sigma in tables]
    rest = np.stack(
        [(table - expected) / scale for (table, _), scale in zip(tables, scales, strict=True)]
    )
    deviation = math.sqrt(sum(scale**2 for scale in scales)) / len(scales)
    means = np.mean([table - expected for table, _ in tables], axis=0)[:, 0]
    counts = {part: float(means[int(p * BINS)]) for part, (p, _) in kinds.items()}
    read_by = [
        mean_test(counts[part], deviation, f"records of the {part} part", unit=counted)
        for part in kinds
    ]
    variances = [variance_test(float(np.square(rest).sum()), rest.size, "all tables")]
    runs = {f"table {number + 1}": each.ravel() for number, each in enumerate(rest)}
    flat = rest.reshape(len(rest), -1)
    released = np.stack([table.ravel() for table, _ in tables])
    labels = np.array([label for _, label in kinds.values()]).astype(np.int64)
    layout = {"tables": np.arange(flat.shape[1]).reshape(BINS, COLUMNS)}
    directions = named_directions(layout, flat.shape[1]) | random_directions(
        flat.shape[1], generator
    )
    return {
        f"reads {CAP} records of each unit of the {read} part, of no other unit": read_by,
        "noise has the accounted deviation, the cap on a unit's records included": variances,
        "no two tables share noise": correlation_tests(runs),
        **law_questions(rest, "all tables"),
        **low_bit_questions(
            released, FLOAT64_BITS, np.ones(released.shape, bool), labels, "tables"
        ),
        "noise has the accounted deviation in every direction": direction_tests(
            flat, directions, "tables"
        )[:1],
        "noise has the accounted deviation in every cell": [_by_place(flat, "cell")],
        "no two numbers of a table share noise": [
            pair_test(np.ascontiguousarray(flat.T), "numbers")
        ],
    }


def _public_check(parts: Parts, kinds: dict[str, tuple[float, float]]) -> Check:
    """Check which records an exact evaluation counts: all of the test part, and no other."""
    policy = parts.site.file.policy.model_copy(update={"evaluation_release": "public"})
    file, path = (
        parts.site.file.model_copy(update={"policy": policy}),
        parts.site.path.with_name("public.toml"),
    )
    write_site_file(file, path)
    _, arrays = _evaluate(parts, canary_site.CanarySite(path, file), 1)
    counts = coarsen(arrays["posterior/top_label"].astype(np.float64), BINS)[:, COUNT]
    expected = np.zeros(BINS)
    expected[int(kinds["test"][0] * BINS)] = UNITS * RECORDS_PER_UNIT
    wrong = float(np.abs(counts - expected).sum())
    return Check(
        "public evaluation",
        "counts the records of the test part, and no other",
        wrong,
        0.0,
        "at most",
        finds="one record",
    )


def _descent_questions(parts: Parts) -> Questions:
    """Read the noisy sums of short stretches of a descent from 0, whose steps are too small to move the gradients.

        y = -theta n / (C sum a_k) = G / C + sum a_k sigma xi_k / sum a_k

    Units of the recalibration part pull against those of the others.
    """
    section = parts.scenario.recalibration
    section = (
        section
        if isinstance(section, config.Recalibration)
        else config.Recalibration(method="vector")
    )
    gradients = {
        part: _gradient(section, parts.predictions[part], parts.labels[part]) for part in SHARES
    }
    own = RECORDS_PER_UNIT * gradients["recalibration"]
    clip_norm = 0.7 * min(
        float(np.linalg.norm(RECORDS_PER_UNIT * each)) for each in gradients.values()
    )
    stretches = min(MOST_STRETCHES, math.ceil(NUMBERS / len(own) / len(DESCENTS)))
    steps = sum(DESCENTS) * stretches
    changes = {
        "epsilon": DESCENT_EPSILON,
        "delta": parts.delta,
        "clip_norm": clip_norm,
        "steps": 2 * steps,
    }
    changes |= {"rounds": 1, "step_size": 1e-3 / clip_norm}
    plan = config.recalibration_plan(section, parts.scenario.privacy).model_copy(update=changes)
    assert isinstance(plan, config.RecalibrationPlan)
    ends = [0, *itertools.accumulate(DESCENTS * stretches)]
    read = [
        _descend(parts, plan, first, last, len(own)) for first, last in itertools.pairwise(ends)
    ]
    along = own / float(np.linalg.norm(own))
    mean = float(np.mean([each.mean @ along for each in read])) - UNITS
    deviation = math.sqrt(sum(each.noise_std**2 for each in read)) / len(read)
    left = np.stack([(each.mean - UNITS * along) / each.noise_std for each in read])
    deviations, differences = [], []
    for kind, length in enumerate(DESCENTS):
        rows = left[kind :: len(DESCENTS)]
        where = f"requests of {length} steps"
        deviations.append(
            variance_test(float(np.square(rows).sum()), rows.size, where, slack=SLACK)
        )
        apart = rows[0 : len(rows) // 2 * 2 : 2] - rows[1 : len(rows) // 2 * 2 : 2]
        squares = float(np.square(apart).sum()) / 2
        differences.append(
            variance_test(squares, apart.size, f"differences of {where}", slack=SLACK)
        )
    amount = mean_test(
        mean, deviation, "sums of clipped gradients", unit=float(UNITS), slack=SLACK * UNITS
    )
    return {
        "reads the units of the recalibration part, each clipped once, and no other": [amount],
        "noise has the accounted deviation, within a request and across": deviations,
        # What requests had in common would be missing from the difference of two.
        "no two requests in a row share noise": differences,
        "noise has the accounted deviation in every parameter": [_by_place(left, "parameter")],
        **law_questions(left, "all requests"),
    }


def _gradient(section: config.Recalibration, probabilities: Array, label: int) -> Array:
    """Return the gradient of minus the log of the recalibrated probability at 0, by central differences."""
    count = config.parameter_count(section.method, len(probabilities))

    def loss(parameters: Array) -> float:
        mapping = config.RecalibrationMap(
            method=section.method, parameters=tuple(parameters.tolist())
        )
        return -math.log(recalibrate(probabilities[None], mapping)[0, label])

    moves = DIFFERENCE * np.eye(count)
    return np.array([(loss(move) - loss(-move)) / (2 * DIFFERENCE) for move in moves])


@dataclass(frozen=True)
class Descent:
    """Mean noisy sum of a stretch over C, (P,), and the standard deviation of its noise."""

    mean: Array
    noise_std: float


def _descend(
    parts: Parts, plan: config.RecalibrationPlan, first: int, last: int, count: int
) -> Descent:
    request = _request(parts, DESCENT_RUN) | {"round": first + 1}
    reply, _ = _recalibrate(
        parts, request, plan=plan, first_step=first, steps=last - first, start=(0.0,) * count
    )
    assert reply.parameters is not None
    sizes = plan.step_size * (1 - np.arange(first, last) / plan.steps)
    scale = recalibration_units(parts.site.file) / (float(sizes.sum()) * plan.clip_norm)
    noise = reply.privacy.history[-1][0] * float(np.linalg.norm(sizes) / sizes.sum())
    return Descent(-scale * np.array(reply.parameters), noise)
