"""What a simulation costs by stage, how that grows with its sites, and what commands cost."""

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
from typing import Any

import numpy as np

from benchmarks.measure import MEBIBYTE, Record, Sizes, peak_bytes
from fl_dpbayes.config import Resources, Scenario, load_scenario
from fl_dpbayes.config.scenario import scenario_folder

# A moment belongs to the innermost frame whose file name holds one of these parts.
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
    "/benchmarks/simulation.py": "other",
}
COMMAND = [sys.executable, "-c", "from fl_dpbayes.cli import main; main()"]
TICK_SECONDS = 0.005
LOOK_SECONDS = 0.05
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
    """Return rows of growing federations of made-up sites, of scenarios, and of commands."""
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
        "stroke-uk, first line of a round through Flower": first_line,
        "an empty app, first line of a round through Flower": first_line_of_an_empty_app,
    }


def growing_scenario(sites: int, rounds: int, *changes: str) -> Scenario:
    """Return a federation whose sites have 100 made-up records each.

    Args:
        sites: Number of training sites.
        rounds: Number of rounds, of one step each.
        changes: Further changes of the scenario, as of `--set`.
    """
    trained = ",".join(f"site-{number}={{role='train'}}" for number in range(1, sites + 1))
    records = RECORDS_PER_SITE * sites
    return load_scenario(
        "known-truth",
        [
            f"data.source={{kind='logistic-2d',records={records},"
            f"test_records={sites},sites={sites}}}",
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

    Args:
        scenario: Returns the scenario.
        engine: Name of the engine.
        results: Reads further results from the run's folder.

    Returns:
        What `results` reads, the seconds of each part of the run, and its peak in MiB. Of the
        inline engine also CPU seconds by stage, where imports count since the process began, and
        the milliseconds that a median round takes for each site beyond its chain.
    """
    from fl_dpbayes.engine import simulate
    from fl_dpbayes.engine.progress import EVENTS_FILE
    from fl_dpbayes.report.run_files import ROUNDS_FILE, read_csv

    planned = scenario()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as parent, cpu_by_stage() as (spent, clock):
        folder = Path(parent, "run")
        plan = simulate.plan_sites(planned, None)
        simulate.new_folder(folder, planned.name)
        site_files = simulate.prepare_simulation(planned, plan, folder)
        simulate.write_baselines(planned, site_files, folder)
        ready = time.perf_counter()
        before = peak_bytes()
        simulate.run_on(engine, planned, folder, threading.Event())
        ended = time.perf_counter()
        round_seconds = [float(row["seconds"]) for row in read_csv(folder / ROUNDS_FILE)]
        events = [
            json.loads(line)
            for line in (folder / EVENTS_FILE).read_text(encoding="utf-8").splitlines()
        ]
        further = results(folder)
    record = {
        **further,
        "rounds": len(round_seconds),
        "prepare, s": ready - start,
        "run, s": ended - ready,
        "first round, s": round_seconds[0],
        "median round, s": float(np.median(round_seconds)),
        "last round, s": round_seconds[-1],
        "before the run, MiB": before / MEBIBYTE,
        "peak, MiB": peak_bytes() / MEBIBYTE,
    }
    if engine != "inline":
        return record
    spent["imports"] += time.process_time() - sum(spent.values())
    outside = 1 - (spent["chain"] + spent["evaluation"]) / sum(spent.values())
    training_sites = sum(site.role == "train" for site in planned.sites.values())
    median_round = _median_round_cpu_seconds(events, clock)
    chain_per_round = spent["chain"] / len(round_seconds)
    return {
        **record,
        "CPU s": sum(spent.values()),
        "outside training and evaluation, %": 100 * outside,
        "median round, CPU s": median_round,
        "a site's round beyond its chain, CPU ms": 1e3
        * (median_round - chain_per_round)
        / training_sites,
        **{f"{stage}, CPU s": spent[stage] for stage in dict.fromkeys(STAGES.values())},
    }


def _median_round_cpu_seconds(
    events: list[dict[str, Any]], clock: list[tuple[float, float]]
) -> float:
    """Return the median CPU seconds from one round's start to the next, or to the last reply."""
    starts = [event["time"] for event in events if event["event"] == "train"]
    replies = [event["time"] for event in events if event["event"] == "site"]
    wall_times, cpu_times = np.transpose(clock)
    return float(np.median(np.diff(np.interp([*starts, replies[-1]], wall_times, cpu_times))))


@contextmanager
def cpu_by_stage() -> Iterator[tuple[defaultdict[str, float], list[tuple[float, float]]]]:
    """Count the CPU seconds of this process by stage, by a look at its stack every 5 ms.

    Yields:
        The CPU seconds of each stage, and pairs of the wall clock and the process's CPU clock.
    """
    spent = defaultdict[str, float](float)
    clock = list[tuple[float, float]]()
    since = time.process_time()

    def look(_: int, frame: FrameType | None) -> None:
        nonlocal since
        before = since
        since = time.process_time()
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
    """Return the seconds from the command to the first answer of a round by Flower."""
    from fl_dpbayes.engine.progress import EVENTS_FILE, EventReader

    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        events = EventReader(Path(folder, "run", EVENTS_FILE))
        call = [*COMMAND, "simulate", "stroke-uk", "--out", f"{folder}/run"]
        with subprocess.Popen(call, stdout=subprocess.DEVNULL) as process:
            while all(event["event"] != "site" for event in events.new_events()):
                if process.poll() is not None:
                    raise RuntimeError("the run ended before its first round")
                time.sleep(LOOK_SECONDS)
            seconds = time.perf_counter() - start
            process.terminate()
    return {"run, s": seconds}


def first_line_of_an_empty_app() -> Record:
    """Return the seconds to the first line of an app that does nothing on as many sites."""
    start = time.time()
    sites = len(load_scenario("stroke-uk").sites)
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
