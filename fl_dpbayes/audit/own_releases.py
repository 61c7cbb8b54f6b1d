"""What a new hospital releases of itself by the commands `update` and `update --sets`.

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
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console

from fl_dpbayes.audit.canary_site import CanaryRecords, CanarySite, write_canary_site
from fl_dpbayes.audit.made_up_run import write_made_up_run
from fl_dpbayes.audit.noise_questions import Release, noise_of, release_questions
from fl_dpbayes.calibration import set_sensitivity
from fl_dpbayes.config import Scenario, Task, import_apps
from fl_dpbayes.data import load_site, open_ledger
from fl_dpbayes.predict.hospital_posterior import NEW_HOSPITAL
from fl_dpbayes.predict.update import update_hospital
from fl_dpbayes.privacy.audit_statistics import (
    Check,
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
# Epsilon by purpose. So much noise that the sum drowns in it; and for sets, which refuse it, so
# little that it is seen which cell counts.
NOISY = {"update": 1e-3, "sets": 5.0}
# Hardly any noise: it shows by how much one more unit moves the sums.
QUIET = 1e5
FARTHEST = 1e6
RECORDS_OF_ONE = 5
# Of the noise's length beyond its mean: it is longer with a chance below exp(-TAIL^2 / 2).
TAIL = 6.0


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
class Newcomer:
    """A unit that joins, of equal records.

    Attributes:
        distance: How far they are from the origin, along a random diagonal.
        label: 0 or 1.
        records: Number of them.
    """

    distance: float
    label: int
    records: int = 1


NOBODY = Newcomer(0.0, label=0, records=0)
NEWCOMERS = {
    "a far record of class 0": Newcomer(FARTHEST, label=0),
    "a far record of class 1": Newcomer(FARTHEST, label=1),
    "a far record below": Newcomer(-FARTHEST, label=1),
    f"{RECORDS_OF_ONE} records": Newcomer(3.0, label=1, records=RECORDS_OF_ONE),
}


def audit_own_releases(
    scenario: Scenario, folder: Path, generator: np.random.Generator
) -> list[Check]:
    """Test sensitivity, deviation and law of what `update` and `sets` release.

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
    task = write_made_up_run(run, generator).data.source.task
    commands = _commands(run, folder)
    site = _write_hospital(scenario, folder / "new-hospital", task, generator, NOBODY)
    noise: dict[str, Array] = {}
    for command in commands:
        rows = []
        for number in range(REQUESTS):
            release = _release(command, site, NOISY[command.purpose] * DEARER**number)
            rows.append(noise_of([release], _exact_sums(command, release)))
        noise[command.purpose] = np.concatenate(rows)
    questions = release_questions(noise, {}, generator, release="release", number="number")
    checks = verdicts(PART, questions, FALSE_ALARM)
    seed = int(generator.integers(2**31))
    sites = [
        _write_hospital(
            scenario, folder / f"movement-{number}", task, np.random.default_rng(seed), newcomer
        )
        for number, newcomer in enumerate([NOBODY, *NEWCOMERS.values()])
    ]
    newcomer_sites = dict(zip(NEWCOMERS, sites[1:], strict=True))
    movements = [_movement_check(command, sites[0], newcomer_sites) for command in commands]
    return [*checks, *movements]


def _commands(run: Path, folder: Path) -> list[Command]:
    silent = Console(file=io.StringIO())
    numbers = itertools.count(1)

    def update(site_file: Path, epsilon: float, level: float | None = None) -> None:
        target = folder / f"update-{next(numbers)}.json"
        update_hospital(run, site_file, NEW_HOSPITAL, epsilon, level, target, silent)

    return [
        Command(purpose="update", bound=1.0, run=update),
        Command(purpose="sets", bound=set_sensitivity(LEVEL), run=partial(update, level=LEVEL)),
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
        noise_std=plan.history[-1].noise_multiplier * command.bound,
    )


def _exact_sums(command: Command, release: Release) -> Array:
    """Return what the noise was added to: units are alike; the sum of `update` drowns."""
    exact = np.zeros(len(release.sums))
    if command.purpose == "sets":
        # One cell holds all units, and the first so much for each.
        exact[0] = -(1 - LEVEL) * UNITS
        exact[1 + int(np.argmax(release.sums[1:]))] = UNITS
    return exact


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
    noise_multiplier = base.noise_std / command.bound
    blur = math.sqrt(2) * noise_multiplier * (math.sqrt(len(base.sums)) + TAIL)
    return Check(
        part=PART,
        what=(
            f"one more unit moves the sums of `{command.purpose}` "
            "by at most what its noise is made for"
        ),
        value=movements[farthest],
        limit=1 + blur,
        where=farthest,
        finds=f"{blur:.1%} more",
    )


def _write_hospital(
    scenario: Scenario,
    folder: Path,
    task: Task,
    generator: np.random.Generator,
    newcomer: Newcomer,
) -> CanarySite:
    """Write a hospital of UNITS units of one equal record each, and of one more unit."""
    width = task.input_shape[0]
    direction = generator.choice([-1.0, 1.0], width)
    equal = np.tile(generator.normal(0.0, 0.5, width), (UNITS, 1))
    far = np.tile(newcomer.distance * direction, (newcomer.records, 1))
    records = CanaryRecords(
        task=task,
        features=np.concatenate([equal, far]).astype(np.float32),
        labels=np.repeat([0, newcomer.label], [UNITS, newcomer.records]),
        units=[f"unit-{number}" for number in range(UNITS)] + ["newcomer"] * newcomer.records,
    )
    return write_canary_site(folder, scenario, records, UNITS)
