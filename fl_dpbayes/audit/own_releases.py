"""What a new hospital releases of itself by the commands `update`, `update --sets` and `alarm`.

The auditor reads what they release from the ledger of the made-up hospital, which keeps every
answer.
"""

import io
import itertools
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
from fl_dpbayes.config import Scenario, Task, import_apps
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
REQUESTS = 24
# Each request has a cost of its own, or it would get the first one's answer.
DEARER = 1.001
LEVEL = 0.5
# Epsilon by purpose. So much noise that sums drown in it; and for sets, which refuse it, so little
# that it is seen which cell counts.
NOISY = {"update": 1e-3, "alarm": 1e-3, "sets": 5.0}
# Hardly any noise: it shows by how much one more unit moves the sums.
QUIET = 1e5
FARTHEST = 1e6
RECORDS_OF_ONE = 5
# Of the noise's length beyond its mean: it is longer with a chance below exp(-TAIL^2 / 2).
TAIL = 6.0


@dataclass(frozen=True)
class Release:
    """What one command let out.

    Attributes:
        sums: Noised, shape (d,).
        noise_multiplier: sigma as the ledger accounts for it.
    """

    sums: Array
    noise_multiplier: float


@dataclass(frozen=True)
class Command:
    """A command that releases something of a new hospital.

    Attributes:
        purpose: Its name in the ledger.
        bound: By which a unit may move its sums, in L2, from public numbers only.
        run: Runs it, given the path of a site file and epsilon.
    """

    purpose: str
    bound: float
    run: Callable[[Path, float], None]


@dataclass(frozen=True)
class NewcomerRecord:
    """A record of a unit that joins.

    Attributes:
        distance: How far it is from the origin, along a random diagonal.
        label: 0 or 1.
    """

    distance: float
    label: int


NEWCOMERS = {
    "a far record of class 0": [NewcomerRecord(FARTHEST, 0)],
    "a far record of class 1": [NewcomerRecord(FARTHEST, 1)],
    "a far record below": [NewcomerRecord(-FARTHEST, 1)],
    f"{RECORDS_OF_ONE} records": [NewcomerRecord(3.0, 1)] * RECORDS_OF_ONE,
}


def audit_own_releases(
    scenario: Scenario, folder: Path, generator: np.random.Generator
) -> list[Check]:
    """Test sensitivity, deviation and law of what `update`, `sets` and `alarm` release.

    The commands use a made-up run, whatever the scenario.

    Args:
        scenario: Whose privacy and resources the hospitals' files have.
        folder: To write the run and the hospitals into.
        generator: Draws both, and directions to look along.

    Returns:
        A check for each question on the noise, and one of the sensitivity of each command.
    """
    import_apps()
    run = folder / "run"
    made_up = write_made_up_run(run, generator)
    task = made_up.data.source.task
    commands = _commands(run, made_up, folder)
    records = _hospital_records(task, generator, [])
    site = write_canary_site(folder / "new-hospital", scenario, records, UNITS)
    noise: dict[str, Array] = {}
    for command in commands:
        epsilons = [NOISY[command.purpose] * DEARER**number for number in range(REQUESTS)]
        releases = [_release(command, site, epsilon) for epsilon in epsilons]
        noise[command.purpose] = np.stack([_noise(command, release) for release in releases])
    checks = verdicts(PART, _noise_questions(noise, generator), FALSE_ALARM)
    seed = int(generator.integers(2**31))
    base_site = _newcomer_site(scenario, folder / "movement-0", task, seed, [])
    newcomer_sites = {
        name: _newcomer_site(scenario, folder / f"movement-{number}", task, seed, newcomer)
        for number, (name, newcomer) in enumerate(NEWCOMERS.items(), start=1)
    }
    movements = [_movement_check(command, base_site, newcomer_sites) for command in commands]
    return [*checks, *movements]


def _commands(run: Path, made_up: Scenario, folder: Path) -> list[Command]:
    public = load_hospitals(run, made_up, made_up.data.source.task).covariates[:, 1:]
    radius = math.sqrt(float(np.square(public - public.mean(axis=0)).sum(axis=1).mean()))
    silent = Console(file=io.StringIO())
    numbers = itertools.count(1)

    def update(site_file: Path, epsilon: float) -> None:
        target = folder / f"update-{next(numbers)}.json"
        update_hospital(run, site_file, NEW_HOSPITAL, epsilon, None, target, silent)

    def alarm(site_file: Path, epsilon: float) -> None:
        compare_patients(run, site_file, epsilon, silent)

    def sets(site_file: Path, epsilon: float) -> None:
        target = folder / f"update-{next(numbers)}.json"
        update_hospital(run, site_file, NEW_HOSPITAL, epsilon, LEVEL, target, silent)

    return [
        Command(purpose="update", bound=1.0, run=update),
        Command(purpose="alarm", bound=radius, run=alarm),
        Command(purpose="sets", bound=set_sensitivity(LEVEL), run=sets),
    ]


def _release(command: Command, site: CanarySite, epsilon: float) -> Release:
    """Run a command, and read its release from the hospital's ledger."""
    command.run(site.path, epsilon)
    assert site.file.ledger is not None
    with sqlite3.connect(site.file.ledger.path) as connection:
        [body] = connection.execute(
            "SELECT body FROM reply ORDER BY reservation DESC LIMIT 1"
        ).fetchone()
    with open_ledger(site.file, load_site(site.file)) as ledger:
        newest = ledger.rows()[-1]
        plan = ledger.state().planned(newest.part, newest.run, newest.purpose)
    assert plan is not None
    return Release(
        sums=np.array(json.loads(body), np.float64),
        noise_multiplier=plan.history[-1].noise_multiplier,
    )


def _noise(command: Command, release: Release) -> Array:
    """Return the noise of a release, N(0, 1) at a sound site."""
    exact = np.zeros(len(release.sums))
    if command.purpose == "sets":
        # All units are alike: one cell holds them all, and the first so much for each.
        exact[0] = -(1 - LEVEL) * UNITS
        exact[1 + int(np.argmax(release.sums[1:]))] = UNITS
    return (release.sums - exact) / (release.noise_multiplier * command.bound)


def _noise_questions(noise: dict[str, Array], generator: np.random.Generator) -> Questions:
    """Ask everything of noise, by purpose, shape (requests, d) each."""
    everything = np.concatenate([values.ravel() for values in noise.values()])
    side_by_side = np.concatenate(list(noise.values()), axis=1)
    squares = np.square(side_by_side).sum(axis=0)
    deviations: list[Finding] = []
    along_directions: list[Finding] = []
    correlations: list[Finding] = []
    for purpose, values in noise.items():
        deviations.append(variance_test(float(np.square(values).sum()), values.size, purpose))
        rows = {f"{purpose} {number + 1}": row for number, row in enumerate(values)}
        correlations += correlation_tests(rows)
        size = values.shape[1]
        directions = named_directions({}, size)
        if size > 1:
            directions |= random_directions(size, generator)
        along_directions += statistics.direction_tests(values, directions, purpose)
    return {
        "noise has the accounted deviation": deviations,
        **law_questions(everything, "all releases"),
        "noise has the accounted deviation in every direction, and no offset": along_directions,
        "no two releases share noise": correlations,
        "noise has the accounted deviation in every number": [
            statistics.deviation_tests(
                squares, len(side_by_side), lambda place: f"number {place + 1}"
            )
        ],
        "no two numbers of releases share noise": [
            statistics.pair_test(side_by_side.T.copy(), "numbers")
        ],
    }


def _movement_check(
    command: Command, base_site: CanarySite, newcomer_sites: dict[str, CanarySite]
) -> Check:
    """Check by how much one more unit moves the sums, over the noise that is accounted for."""
    base = _release(command, base_site, QUIET)
    movements = {}
    for name, site in newcomer_sites.items():
        movement = _release(command, site, QUIET).sums - base.sums
        movements[name] = float(np.linalg.norm(movement)) / command.bound
    farthest = max(movements, key=lambda name: movements[name])
    # Of two releases: noise of dimension d is longer than sqrt(d) + t with a chance below
    # exp(-t^2 / 2).
    blur = math.sqrt(2) * base.noise_multiplier * (math.sqrt(len(base.sums)) + TAIL)
    return Check(
        part=PART,
        what=(
            f"one more unit moves the sums of `{command.purpose}` "
            "by at most what its noise is made for"
        ),
        value=movements[farthest],
        limit=1 + blur,
        relation="at most",
        where=farthest,
        finds=f"{blur:.1%} more",
    )


def _newcomer_site(
    scenario: Scenario, folder: Path, task: Task, seed: int, newcomer: list[NewcomerRecord]
) -> CanarySite:
    records = _hospital_records(task, np.random.default_rng(seed), newcomer)
    return write_canary_site(folder, scenario, records, UNITS)


def _hospital_records(
    task: Task, generator: np.random.Generator, newcomer: list[NewcomerRecord]
) -> CanaryRecords:
    """Return UNITS equal records, and those of one more unit."""
    width = task.input_shape[0]
    direction = generator.choice([-1.0, 1.0], width)
    equal = np.tile(generator.normal(0.0, 0.5, width), (UNITS, 1))
    far = np.array([record.distance * direction for record in newcomer]).reshape(-1, width)
    return CanaryRecords(
        task=task,
        features=np.concatenate([equal, far]).astype(np.float32),
        labels=np.array([0] * UNITS + [record.label for record in newcomer], np.int64),
        units=[f"unit-{number}" for number in range(UNITS)] + ["newcomer"] * len(newcomer),
    )
