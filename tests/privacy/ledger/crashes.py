"""What processes that are killed do to a ledger; each function here is run in a process that has no threads."""

import json
import os
import random
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fl_dpbayes.errors import UserError
from fl_dpbayes.privacy.events import GaussianEvent
from fl_dpbayes.privacy.gdp import gdp_epsilon
from fl_dpbayes.privacy.ledger.file import LedgerError
from fl_dpbayes.privacy.ledger.ledger import Ledger, Refused, Reserved, StoredReply
from fl_dpbayes.privacy.ledger.state import Cohort, Spending
from fl_dpbayes.privacy.ledger.witness import LedgerPlace, repair_witness
from fl_dpbayes.protocol.refusal import RefusalCode

STEPS = 7
APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT


@dataclass(frozen=True)
class Ledgers:
    """Ledgers of one folder: where they lie, how durable they are, and what mu they allow."""

    folder: Path
    durability: str
    mu: float = 5.0

    def place(self, name: str) -> LedgerPlace:
        return LedgerPlace(self.folder / name, self.folder / "witness" / name, self.durability)

    @property
    def cohort(self) -> Cohort:
        return Cohort("c", "patient", gdp_epsilon(self.mu, 1e-5), 1e-5, "add_or_remove_one")

    def create(self, name: str) -> None:
        Ledger.create(self.place(name), self.cohort).close()

    def open(self, name: str) -> Ledger:
        return Ledger.open(self.place(name), self.cohort)

    def true_spend(self, name: str) -> int:
        """Steps whose reservation a victim saw."""
        return sum(map(int, lines(self.folder / f"{name}.true")))

    def sent(self, name: str) -> list[tuple[str, int, str]]:
        """Run, round and head of each reply that a victim sent."""
        return [json.loads(line) for line in lines(self.folder / f"{name}.sent")]


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def spending(run: str, round_: int, sigma: float = 100.0, steps: int = STEPS) -> Spending:
    plan = (GaussianEvent(sigma, 1.0, 10**6),)
    return Spending(
        part="train",
        run=run,
        round=round_,
        purpose="train",
        request_digest=f"{run} {round_}",
        plan_digest="plan",
        plan=plan,
        first_step=steps * round_,
        steps=steps,
    )


def reply(run: str, round_: int) -> bytes:
    return f"reply {run} {round_}".encode() * 500


def forked(work: Callable[[], None]) -> int:
    """Work in a child, and return its process id."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return child


def race(folder: Path, racers: int) -> dict:
    """Several processes reserve from one ledger at once, until each is refused."""
    ledgers = Ledgers(folder, "normal", mu=(40.5 / 100) ** 0.5)
    ledgers.create("race.sqlite")
    gate, starter = os.pipe()
    children = []
    for number in range(racers):
        children.append(forked(partial(_reserve_all, ledgers, number, gate)))
    os.write(starter, b"." * racers)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * racers
    admitted = [int((folder / f"admitted-{number}").read_text()) for number in range(racers)]
    with ledgers.open("race.sqlite") as ledger:
        return {
            "admitted": sum(admitted),
            "recorded": ledger.spent("train").steps,
            "problems": ledger.verify(),
        }


def _reserve_all(ledgers: Ledgers, number: int, gate: int) -> None:
    os.read(gate, 1)
    admitted = 0
    with ledgers.open("race.sqlite") as ledger:
        for round_ in range(1, 100):
            request = spending(str(number) * 16, round_, sigma=10.0, steps=1 + number % 3)
            answer = ledger.reserve(request)
            if isinstance(answer, Refused):
                break
            assert isinstance(answer, Reserved)
            admitted += answer.steps
            if round_ % 2:
                ledger.commit(answer.reservation, b"reply")
    (ledgers.folder / f"admitted-{number}").write_text(str(admitted))


def _append(file: int, text: str) -> None:
    os.write(file, f"{text}\n".encode())
    os.fsync(file)


def _work(ledgers: Ledgers, name: str, run: str, progress: int) -> None:
    """Reserve and commit without an end; each reservation and each reply is noted on the disk."""
    true_spend = os.open(ledgers.folder / f"{name}.true", APPEND)
    sent = os.open(ledgers.folder / f"{name}.sent", APPEND)
    with ledgers.open(name) as ledger:
        for round_ in range(1, 10**6):
            os.write(progress, b".")
            answer = ledger.reserve(spending(run, round_))
            assert isinstance(answer, Reserved)
            # The first step has now touched the records.
            _append(true_spend, str(answer.steps))
            os.write(progress, b".")
            if round_ % 5 == 0:
                ledger.fail(answer.reservation)
                continue
            head = ledger.commit(answer.reservation, reply(run, round_))
            _append(sent, json.dumps([run, round_, head]))


class Victims:
    """Processes at work on one ledger, whose progress is watched together.

    One of them may be kept from the ledger by the other.
    """

    def __init__(self, ledgers: Ledgers, name: str, runs: list[str], rng: random.Random) -> None:
        self.rng = rng
        self.watched, progress = os.pipe()
        self.children = [forked(partial(_work, ledgers, name, run, progress)) for run in runs]
        os.close(progress)

    def wait(self) -> None:
        """Wait for an instant: drawn over the work's progress, and then over time."""
        for _ in range(self.rng.randrange(12)):
            os.read(self.watched, 1)
        time.sleep(self.rng.uniform(0.0, 0.004))

    def kill(self, wait: bool = True) -> None:
        for child in self.children:
            if wait:
                self.wait()
            os.kill(child, signal.SIGKILL)
            assert os.waitpid(child, 0)[1] == signal.SIGKILL
        os.close(self.watched)


def kills(folder: Path, durability: str, count: int, seed: int, processes: int) -> dict:
    """Kill processes at work, ten times on each ledger, and compare its record with the truth."""
    ledgers, rng = Ledgers(folder, durability), random.Random(seed)
    report = Counter({"lost replies": 0})
    problems: list[str] = []
    for kill in range(count):
        name = f"ledger-{kill // 10}"
        runs = [f"{kill:08x}{number:08x}" for number in range(processes)]
        if kill % 10 == 0:
            ledgers.create(name)
        Victims(ledgers, name, runs, rng).kill()
        with ledgers.open(name) as ledger:
            rows, recorded = ledger.rows(), ledger.spent("train").steps
            report["below"] += recorded < ledgers.true_spend(name)
            report["exact"] += recorded == ledgers.true_spend(name)
            problems += ledger.verify()
            for run in runs:
                mine = [row for row in rows if row.run == run]
                report["killed at birth"] += not mine
                report["killed with an open reservation"] += (
                    bool(mine) and mine[-1].state == "reserved"
                )
            newest = {row.run: row.round for row in rows}
            for run, round_, _ in ledgers.sent(name)[-3:]:
                # Where more was asked for, the server of a simulation has it.
                if durability == "normal" and newest[run] > round_:
                    continue
                answer = ledger.reserve(spending(run, round_))
                report["lost replies"] += answer != StoredReply(reply(run, round_))
    return {**report, "problems": problems}


WAYS = ("older copy", "older copy under a running process", "both places")


@dataclass(frozen=True)
class Copy:
    """A ledger's files as they were, and how they come back."""

    ledgers: Ledgers
    name: str
    folder: str

    @property
    def files(self) -> list[Path]:
        paths = self.ledgers.folder.glob(f"{self.name}*")
        return [path for path in paths if path.suffix not in (".true", ".sent")]

    @property
    def kept(self) -> Path:
        return self.ledgers.folder / self.folder

    def take(self) -> None:
        shutil.rmtree(self.kept, ignore_errors=True)
        self.kept.mkdir()
        for path in self.files:
            shutil.copy(path, self.kept)
        shutil.copy(self.ledgers.place(self.name).witness, self.kept / "second place")

    def put_back(self, *, witness: bool) -> None:
        for path in self.files:
            path.unlink()
        for path in self.kept.glob(f"{self.name}*"):
            shutil.copy(path, self.ledgers.folder)
        if witness:
            shutil.copy(self.kept / "second place", self.ledgers.place(self.name).witness)


def restores(folder: Path, count: int, seed: int) -> dict:
    """Put an older copy of a ledger back at any instant, and then the newest one."""
    ledgers, rng = Ledgers(folder, "full"), random.Random(seed)
    report: Counter = Counter()
    problems: list[str] = []
    for number in range(count):
        name, way = f"ledger-{number}", WAYS[number % len(WAYS)]
        older, newest = Copy(ledgers, name, "older"), Copy(ledgers, name, "newest")
        ledgers.create(name)
        Victims(ledgers, name, [f"{number:08x}{0:08x}"], rng).kill()
        older.take()
        runs = [f"{number:08x}{run:08x}" for run in range(1, 2 + number % 2)]
        victims = Victims(ledgers, name, runs, rng)
        if way == "older copy under a running process":
            victims.wait()
            older.put_back(witness=False)
            victims.kill(wait=False)
        else:
            victims.kill()
            newest.take()
            older.put_back(witness=way == "both places")
        heads = [head for _, _, head in ledgers.sent(name)]
        last_head = heads[-1] if heads else None
        try:
            with ledgers.open(name) as ledger:
                answer = None
                known = ledgers.true_spend(name)
                if way == "both places":
                    # What an administrator cannot put back is the server's head.
                    answer = ledger.reserve(spending("f" * 16, 1), last_head)
                    # Of what no reply has left for, only the second place knows.
                    known = STEPS * len(heads)
                refused = answer == Refused(RefusalCode.LEDGER_ROLLED_BACK, "ledger_head")
                report["below"] += not refused and ledger.spent("train").steps < known
                report["nothing was lost"] += not refused
        except LedgerError:
            refused = True
        report["refused"] += refused
        if way != "older copy under a running process":
            newest.put_back(witness=True)
            with ledgers.open(name) as ledger:
                report["below"] += ledger.spent("train").steps < ledgers.true_spend(name)
                problems += ledger.verify()
                answer = ledger.reserve(spending("e" * 16, 1), last_head)
                report["newest refused"] += not isinstance(answer, Reserved)
    return {**report, "problems": problems}


def _create_and_wait(ledgers: Ledgers, name: str) -> None:
    ledgers.create(name)
    time.sleep(10)


def births(folder: Path, count: int, seed: int) -> dict:
    """Kill what makes a ledger, and make it to the end."""
    ledgers, rng = Ledgers(folder, "full"), random.Random(seed)
    unusable = 0
    for number in range(count):
        name = f"ledger-{number}"
        child = forked(partial(_create_and_wait, ledgers, name))
        time.sleep(rng.uniform(0.0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        try:
            ledgers.create(name)
        except UserError:
            # It was done.
            pass
        except LedgerError as error:
            if "repair" not in str(error):
                raise
            repair_witness(ledgers.place(name))
        with ledgers.open(name) as ledger:
            answer = ledger.reserve(spending("a" * 16, 1))
            unusable += not isinstance(answer, Reserved)
    return {"unusable": unusable}
