"""What a simulation costs by stage, how that grows with its sites, and what commands cost in all."""

import json
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

import numpy as np

from benchmarks.measure import MEBIBYTE, Record, Sizes, peak_bytes
from fl_dpbayes.config import Resources, Scenario, load_scenario
from fl_dpbayes.config.scenario import scenario_folder

# Whose time it is: the innermost of these that runs, or that called what runs.
STAGES = {
    "/fl_dpbayes/samplers/": "chain",
    "/clients/evaluate.py": "evaluation",
    "/fl_dpbayes/calibration/": "evaluation",
    "/fl_dpbayes/privacy/ledger/": "ledger",
    "/fl_dpbayes/privacy/pld/": "accounting",
    "/fl_dpbayes/privacy/planned_noise.py": "accounting",
    "/fl_dpbayes/data/": "records",
    "/fl_dpbayes/report/": "report",
    "/clients/": "site, other",
    "/server/": "server",
    "<frozen importlib": "imports",
    "/run/bench/simulation.py": "other",
}
COMMAND = [sys.executable, "-c", "from fl_dpbayes.cli import main; main()"]
TICK_SECONDS = 0.005
RECORDS_PER_SITE = 100
# Sends every node one message and writes a line of its only round.
EMPTY_APP = """\
import pathlib, time
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

@client.train()
def train(message, context):
    return Message(RecordDict(), reply_to=message)

@server.main()
def main(grid, context):
    while len(nodes := [*grid.get_node_ids()]) < {sites}:
        time.sleep(0.1)
    assert not any(reply.has_error() for reply in grid.send_and_receive(
        [Message(RecordDict(), node, "train") for node in nodes]))
    folder = pathlib.Path(pathlib.Path(context.run_config["prepared"]).read_text())
    (folder / "events.jsonl").write_text('{{"event": "finished"}}\\n')
"""


def rows(sizes: Sizes) -> Mapping[str, Callable[[], Record]]:
    """Return federations of 10, 100, ... made-up sites, shipped and larger scenarios, and commands."""
    scenarios: dict[str, Callable[[], Scenario]] = {
        **{
            f"{sites} sites": partial(growing_scenario, sites, sizes.repeats)
            for sites in sizes.growing
        },
        **{name: partial(load_scenario, name) for name in ("mnist", "digits")},
        "stroke, 132 hospitals, 60 rounds": partial(
            load_scenario, str(scenario_folder() / "bench" / "stroke.toml")
        ),
    }
    through = "" if sizes.engine == "inline" else " through Flower"
    return {
        **{
            f"{name}{through}": partial(simulated, made, sizes.engine)
            for name, made in scenarios.items()
        },
        f"the command for digits{through}": partial(
            command, "simulate", "digits", "--engine", sizes.engine
        ),
        "a mistyped scenario": partial(command, "simulate", "digist"),
        "quickstart, first line of a round through Flower": first_line,
        "an empty app, first line of a round through Flower": first_line_of_an_empty_app,
    }


def growing_scenario(sites: int, rounds: int, *changes: str) -> Scenario:
    """Return a federation of so many sites with 100 made-up records each, whose rounds have one step."""
    trained = ",".join(f"site-{number}={{role='train'}}" for number in range(1, sites + 1))
    return load_scenario(
        "known-truth",
        [
            f"data.source={{kind='logistic-2d',records={RECORDS_PER_SITE * sites},test_records={sites},sites={sites}}}",
            f"sites={{{trained}}}",
            f"training={{rounds={rounds},steps_per_round=1,burn_in=1,thinning=1}}",
            "privacy.delta=1e-3",
            "privacy.sampling_rate=0.5",
            *changes,
        ],
    )


def simulated(
    scenario: Callable[[], Scenario],
    engine: str,
    results: Callable[[Path], Record] = lambda folder: {},
) -> Record:
    """Simulate a scenario in this process.

    Return seconds by what took them, the peak, and `results` of its folder.

    Inline also CPU seconds by stage, imports since the process began included, and how many
    milliseconds a median round takes for each site beyond its chain.
    """
    from fl_dpbayes.engine import simulate
    from fl_dpbayes.engine.progress import EVENTS_FILE
    from fl_dpbayes.report.run_files import ROUNDS_FILE, read_csv

    made, start = scenario(), time.perf_counter()
    with tempfile.TemporaryDirectory() as parent, cpu_by_stage() as (spent, clock):
        folder, plan = Path(parent, "run"), simulate.plan_sites(made, None)
        simulate.new_folder(folder, made.name)
        simulate.write_baselines(made, simulate.prepare_simulation(made, plan, folder), folder)
        ready, before = time.perf_counter(), peak_bytes()
        simulate.run_on(engine, made, folder, threading.Event())
        ended = time.perf_counter()
        of_rounds = [float(row["seconds"]) for row in read_csv(folder / ROUNDS_FILE)]
        events = [
            json.loads(line)
            for line in (folder / EVENTS_FILE).read_text(encoding="utf-8").splitlines()
        ]
        read = results(folder)
    found = {
        **read,
        "rounds": len(of_rounds),
        "prepare, s": ready - start,
        "run, s": ended - ready,
        "first round, s": of_rounds[0],
        "median round, s": float(np.median(of_rounds)),
        "last round, s": of_rounds[-1],
        "before the run, MiB": before / MEBIBYTE,
        "peak, MiB": peak_bytes() / MEBIBYTE,
    }
    if engine != "inline":
        return found
    spent["imports"] += time.process_time() - sum(spent.values())
    outside = 1 - (spent["chain"] + spent["evaluation"]) / sum(spent.values())
    trained = sum(site.role == "train" for site in made.sites.values())
    begun, answered = (
        [event["time"] for event in events if event["event"] == kind] for kind in ("train", "site")
    )
    of_a_round = float(np.median(np.diff(np.interp([*begun, answered[-1]], *np.transpose(clock)))))
    return {
        **found,
        "CPU s": sum(spent.values()),
        "outside training and evaluation, %": 100 * outside,
        "median round, CPU s": of_a_round,
        "a site's round beyond its chain, CPU ms": 1e3
        * (of_a_round - spent["chain"] / len(of_rounds))
        / trained,
        **{f"{stage}, CPU s": spent[stage] for stage in dict.fromkeys(STAGES.values())},
    }


@contextmanager
def cpu_by_stage() -> Iterator[tuple[defaultdict[str, float], list[tuple[float, float]]]]:
    """Count the CPU seconds of this process by stage, and at which time how many: it looks every few milliseconds."""
    spent, clock = defaultdict[str, float](float), list[tuple[float, float]]()
    since = time.process_time()

    def look(_: int, frame: FrameType | None) -> None:
        nonlocal since
        since, before = time.process_time(), since
        spent[stage_of(frame)] += since - before
        clock.append((time.time(), since))

    signal.signal(signal.SIGPROF, look)
    signal.siginterrupt(signal.SIGPROF, False)
    signal.setitimer(signal.ITIMER_PROF, TICK_SECONDS, TICK_SECONDS)
    try:
        yield spent, clock
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def stage_of(frame: FrameType | None) -> str:
    """Say to which stage a frame belongs."""
    while frame is not None:
        for part, stage in STAGES.items():
            if part in frame.f_code.co_filename:
                return stage
        frame = frame.f_back
    return "other"


def command(*arguments: str) -> Record:
    """Return what a command of `fl-dpbayes` costs with all the processes that it waits for."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*COMMAND, *arguments], cwd=folder, capture_output=True, check=False)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"run, s": time.perf_counter() - start, "CPU s": used.ru_utime + used.ru_stime}


def first_line() -> Record:
    """Return how long after the command the quickstart's first line of a round comes from Flower."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        call = [*COMMAND, "simulate", "quickstart", "--out", f"{folder}/run"]
        with subprocess.Popen(call, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            next(line for line in process.stdout if line.startswith("round "))
            found = time.perf_counter() - start
            process.terminate()
    return {"run, s": found}


def first_line_of_an_empty_app() -> Record:
    """Return the same of an app with as many sites that does nothing, submitted in the same way."""
    start, sites = time.time(), len(load_scenario("quickstart").sites)
    from fl_dpbayes.engine.flower_engine import EVENTS_FILE, run_flower, write_app

    def write_empty(app: Path) -> Path:
        project = write_app(app) / "pyproject.toml"
        text = project.read_text(encoding="utf-8")
        project.write_text(
            text.replace("server.app:app", "empty:server").replace(
                "clients.app:app", "empty:client"
            )
        )
        (app / "empty.py").write_text(EMPTY_APP.format(sites=sites))
        return app

    with tempfile.TemporaryDirectory() as folder:
        run_flower(Path(folder), sites, Resources(), threading.Event(), write_empty)
        return {"run, s": Path(folder, EVENTS_FILE).stat().st_mtime - start}
