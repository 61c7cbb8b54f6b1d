"""What a new hospital releases of itself, by `update`, `update --sets` and `alarm`, through these commands.

The auditor reads what they release from the ledger of the made-up hospital, which keeps every
answer.
"""

import io
import json
import math
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console

from fl_dpbayes.audit.canary_site import CanaryRecords, CanarySite, write_canary_site
from fl_dpbayes.audit.counts import law_questions
from fl_dpbayes.audit.directions import named_directions, random_directions
from fl_dpbayes.audit.made_up_run import write_made_up_run
from fl_dpbayes.calibration import set_sensitivity
from fl_dpbayes.config import Scenario, Task
from fl_dpbayes.data import load_site, open_ledger
from fl_dpbayes.predict.hospital_posterior import NEW_HOSPITAL, load_hospitals
from fl_dpbayes.predict.update import compare_patients, update_hospital
from fl_dpbayes.privacy import noise_statistics as statistics
from fl_dpbayes.privacy.audit_statistics import (
    Check,
    Finding,
    Questions,
    correlation_tests,
    variance_test,
    verdicts,
)

Array = npt.NDArray[np.float64]

FALSE_ALARM = 5e-6
PART = "a new hospital's releases"
UNITS = 20
# Each request has a cost of its own, or it would get the first one's answer.
REQUESTS, DEARER = 24, 1.001
LEVEL = 0.5
# So much noise that sums drown in it; and for sets, which refuse it, so little that it is seen
# which cell counts.
NOISY = {"update": 1e-3, "alarm": 1e-3, "sets": 5.0}
# Hardly any noise: it shows by how much one more unit moves the sums.
QUIET = 1e5
FARTHEST = 1e6
RECORDS_OF_ONE = 5
# Of the noise's length beyond its mean: it is longer with a chance below exp(-TAIL^2 / 2).
TAIL = 6.0


@dataclass(frozen=True)
class Release:
    """What one command let out, and sigma as the ledger accounts for it."""

    sent: Array
    noise_multiplier: float


Ask = Callable[[Path, Path, float], None]


def audit_own_releases(
    scenario: Scenario, folder: Path, generator: np.random.Generator
) -> list[Check]:
    """Test sensitivity, deviation and law of what `update`, `sets` and `alarm` release, whatever the scenario asks."""
    from fl_dpbayes.config.kinds import import_apps

    import_apps()
    run = folder / "run"
    made_up = write_made_up_run(run, generator)
    task = made_up.data.source.task
    bounds = _bounds(run, made_up, task)
    asks = _asks(folder)
    records = _records(task, generator, [])
    site = write_canary_site(folder / "new-hospital", scenario, records, UNITS)
    noise: dict[str, Array] = {}
    checks: list[Check] = []
    for purpose, ask in asks.items():
        releases = [
            _released(site, run, ask, NOISY[purpose] * DEARER**number) for number in range(REQUESTS)
        ]
        noise[purpose] = np.stack(
            [_noise(purpose, release, bounds[purpose]) for release in releases]
        )
    questions = _questions(noise, generator)
    checks += verdicts(PART, questions, FALSE_ALARM)
    return [*checks, *_movements(scenario, folder, run, asks, bounds, task, generator)]


def _questions(noise: dict[str, Array], generator: np.random.Generator) -> Questions:
    deviations = [
        variance_test(float(np.square(each).sum()), each.size, purpose)
        for purpose, each in noise.items()
    ]
    together = np.concatenate([each.ravel() for each in noise.values()])
    beside = np.concatenate(list(noise.values()), axis=1)
    places = [
        statistics.deviation_tests(
            np.square(beside).sum(axis=0), len(beside), lambda place: f"number {place + 1}"
        )
    ]
    along: list[Finding] = []
    shared: list[Finding] = []
    for purpose, rows in noise.items():
        shared += correlation_tests(
            {f"{purpose} {number + 1}": row for number, row in enumerate(rows)}
        )
        size = rows.shape[1]
        directions = named_directions({}, size) | (
            random_directions(size, generator) if size > 1 else {}
        )
        along += statistics.direction_tests(rows, directions, purpose)
    return {
        "noise has the accounted deviation": deviations,
        **law_questions(together, "all releases"),
        "noise has the accounted deviation in every direction, and no offset": along,
        "no two releases share noise": shared,
        "noise has the accounted deviation in every number": places,
        "no two numbers of releases share noise": [
            statistics.pair_test(beside.T.copy(), "numbers")
        ],
    }


def _noise(purpose: str, release: Release, bound: float) -> Array:
    exact = np.zeros(len(release.sent))
    if purpose == "sets":
        # All units are alike: one cell holds them all, and the first so much for each.
        exact[0] = -(1 - LEVEL) * UNITS
        exact[1 + int(np.argmax(release.sent[1:]))] = UNITS
    return (release.sent - exact) / (release.noise_multiplier * bound)


def _movements(
    scenario: Scenario,
    folder: Path,
    run: Path,
    asks: dict[str, Ask],
    bounds: dict[str, float],
    task: Task,
    generator: np.random.Generator,
) -> list[Check]:
    """Check by how much one more unit moves the sums of each release, over the noise that is accounted for."""
    newcomers = {
        "a far record of class 0": [(FARTHEST, 0)],
        "a far record of class 1": [(FARTHEST, 1)],
        "a far record below": [(-FARTHEST, 1)],
        f"{RECORDS_OF_ONE} records": [(3.0, 1)] * RECORDS_OF_ONE,
    }
    seed = int(generator.integers(2**31))
    sites = {}
    for number, (name, extra) in enumerate({"nobody": [], **newcomers}.items()):
        records = _records(task, np.random.default_rng(seed), extra)
        sites[name] = write_canary_site(folder / f"movement-{number}", scenario, records, UNITS)
    checks = []
    for purpose, ask in asks.items():
        base = _released(sites["nobody"], run, ask, QUIET)
        moves = {
            name: _released(sites[name], run, ask, QUIET).sent - base.sent for name in newcomers
        }
        lengths = {
            name: float(np.linalg.norm(move)) / bounds[purpose] for name, move in moves.items()
        }
        farthest = max(lengths, key=lambda name: lengths[name])
        # Of two releases: noise of dimension d is longer than sqrt(d) + t with a chance below
        # exp(-t^2 / 2).
        blur = math.sqrt(2) * base.noise_multiplier * (math.sqrt(len(base.sent)) + TAIL)
        what = f"one more unit moves the sums of `{purpose}` by at most what its noise is made for"
        finds = f"{blur:.1%} more"
        checks.append(Check(PART, what, lengths[farthest], 1 + blur, "at most", farthest, finds))
    return checks


def _records(
    task: Task, generator: np.random.Generator, newcomer: list[tuple[float, int]]
) -> CanaryRecords:
    """Return `UNITS` equal records, and one more unit of the given records: how far, and of which class."""
    width = task.input_shape[0]
    direction = generator.choice([-1.0, 1.0], width)
    alike = np.tile(generator.normal(0.0, 0.5, width), (UNITS, 1))
    far = [distance * direction for distance, _ in newcomer]
    features = np.concatenate([alike, np.array(far).reshape(-1, width)]).astype(np.float32)
    labels = np.array([0] * UNITS + [label for _, label in newcomer], np.int64)
    names = [f"unit-{number}" for number in range(UNITS)] + ["newcomer"] * len(newcomer)
    return CanaryRecords(task, features, labels, names)


def _bounds(run: Path, scenario: Scenario, task: Task) -> dict[str, float]:
    """Return by how much a unit may move the sums of each release, in L2, from public numbers alone."""
    public = load_hospitals(run, scenario, task).covariates[:, 1:]
    radius = math.sqrt(float(np.square(public - public.mean(axis=0)).sum(axis=1).mean()))
    return {"update": 1.0, "alarm": radius, "sets": set_sensitivity(LEVEL)}


def _asks(folder: Path) -> dict[str, Ask]:
    quiet = Console(file=io.StringIO())
    written = 0

    def target() -> Path:
        nonlocal written
        written += 1
        return folder / f"update-{written}.json"

    return {
        "update": lambda run, site, epsilon: update_hospital(
            run, site, NEW_HOSPITAL, epsilon, None, target(), quiet
        ),
        "alarm": lambda run, site, epsilon: compare_patients(run, site, epsilon, quiet),
        "sets": lambda run, site, epsilon: update_hospital(
            run, site, NEW_HOSPITAL, epsilon, LEVEL, target(), quiet
        ),
    }


def _released(site: CanarySite, run: Path, ask: Ask, epsilon: float) -> Release:
    ask(run, site.path, epsilon)
    assert site.file.ledger is not None
    with sqlite3.connect(site.file.ledger.path) as connection:
        [body] = connection.execute(
            "SELECT body FROM reply ORDER BY reservation DESC LIMIT 1"
        ).fetchone()
    with open_ledger(site.file, load_site(site.file)) as ledger:
        newest = ledger.rows()[-1]
        plan = ledger.planned(newest.part, newest.run, newest.purpose)
    assert plan is not None
    return Release(np.array(json.loads(body), np.float64), plan.history[-1].noise_multiplier)
