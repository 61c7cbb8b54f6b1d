"""Several processes on one ledger, and processes that are killed: the record never falls below the true spend.

The instants are drawn over the work's progress and then over time. Processes are forked from a fresh interpreter that
has imported the ledger and nothing that runs threads.
"""

import json
import subprocess
import sys

import pytest

COMMON = """
import dataclasses, json, os, random, signal, sys, time
from pathlib import Path
from fl_dpbayes.privacy.events import GaussianEvent
from fl_dpbayes.privacy.gdp import gdp_epsilon
from fl_dpbayes.privacy.ledger import Ledger, Refused, Reserved, StoredReply
from fl_dpbayes.privacy.ledger_state import Cohort, Spending

folder = Path(sys.argv[1])

def open_ledger(name, mu, durability):
    cohort = Cohort("c", "patient", gdp_epsilon(mu, 1e-5), 1e-5, "add_or_remove_one")
    return Ledger.open(folder / name, cohort, durability)

def spending(run, round_, sigma, steps):
    plan = (GaussianEvent(sigma, 1.0, 10**6),)
    return Spending("train", run, round_, "train", f"{run} {round_}", "plan", plan, steps * round_, steps)
"""

RACE = """
def racer(number, gate):
    os.read(gate, 1)
    admitted = 0
    with open_ledger("race.sqlite", (40.5 / 100) ** 0.5, "normal") as ledger:
        for round_ in range(1, 100):
            answer = ledger.reserve(spending(str(number) * 16, round_, 10.0, 1 + number % 3))
            if isinstance(answer, Refused):
                break
            admitted += answer.steps
            if round_ % 2:
                ledger.commit(answer.reservation, b"reply")
    (folder / f"admitted-{number}").write_text(str(admitted))

gate, starter = os.pipe()
children = []
for number in range(4):
    child = os.fork()
    if child == 0:
        racer(number, gate)
        os._exit(0)
    children.append(child)
os.write(starter, b"4444")
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0, 0]
admitted = [int((folder / f"admitted-{number}").read_text()) for number in range(4)]
with open_ledger("race.sqlite", (40.5 / 100) ** 0.5, "normal") as ledger:
    print(json.dumps({"admitted": admitted, "recorded": ledger.spent("train").steps, "problems": ledger.verify()}))
"""

KILL = """
durability, kills, rng = sys.argv[2], int(sys.argv[3]), random.Random(int(sys.argv[4]))

def append(file, text):
    os.write(file, (text + "\\n").encode())
    os.fsync(file)

def victim(name, run, progress):
    tick = lambda: os.write(progress, b".")
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    true_spend, sent = (os.open(folder / f"{name}.{what}", flags) for what in ("true", "sent"))
    with open_ledger(name, 5.0, durability) as ledger:
        for round_ in range(1, 10**6):
            tick()
            answer = ledger.reserve(spending(run, round_, 100.0, 7))
            append(true_spend, str(answer.steps))  # the first step has now touched the records
            tick()
            if round_ % 5 == 0:
                ledger.fail(answer.reservation)
                continue
            ledger.commit(answer.reservation, f"reply {run} {round_}".encode() * 500)
            append(sent, json.dumps([run, round_]))

lines = lambda path: path.read_text().splitlines() if path.exists() else []
report = {"problems": [], "below": 0, "lost replies": 0, "exact": 0}
report |= {"killed with an open reservation": 0, "killed at birth": 0}
for kill in range(kills):
    name, run = f"ledger-{kill // 10}", f"{kill:016x}"
    watched, progress = os.pipe()
    child = os.fork()
    if child == 0:
        victim(name, run, progress)
    for _ in range(rng.randrange(12)):
        os.read(watched, 1)
    time.sleep(rng.uniform(0.0, 0.004))
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    os.close(watched), os.close(progress)
    true_spend = sum(int(line) for line in lines(folder / f"{name}.true"))
    with open_ledger(name, 5.0, durability) as ledger:
        rows, recorded = ledger.rows(), ledger.spent("train").steps
        report["below"] += recorded < true_spend
        report["exact"] += recorded == true_spend
        report["problems"] += ledger.verify()
        mine = [row for row in rows if row.run == run]
        report["killed at birth"] += not mine
        report["killed with an open reservation"] += bool(mine) and mine[-1].state == "reserved"
        for run_, round_ in map(json.loads, lines(folder / f"{name}.sent")[-3:]):
            answer = ledger.reserve(spending(run_, round_, 100.0, 7))
            report["lost replies"] += answer != StoredReply(f"reply {run_} {round_}".encode() * 500)
print(json.dumps(report))
"""


def _run(code, *arguments):
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", COMMON + code, *map(str, arguments)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def test_processes_on_one_ledger_never_pass_the_budget_together(tmp_path):
    result = _run(RACE, tmp_path)
    assert sum(result["admitted"]) == result["recorded"] == 40
    assert result["problems"] == []


@pytest.mark.slow
@pytest.mark.parametrize(("durability", "kills", "seed"), [("normal", 150, 1), ("full", 100, 2)])
def test_kill_at_any_instant_never_leaves_the_record_below_the_true_spend(tmp_path, durability, kills, seed):
    report = _run(KILL, tmp_path, durability, kills, seed)
    assert report["below"] == 0
    assert report["lost replies"] == 0
    assert report["problems"] == []
    # The instants were spread: some before the first reservation, some while work was open, some between.
    assert report["killed with an open reservation"] > kills / 20
    assert report["killed at birth"] > 0
    assert report["exact"] > 0
