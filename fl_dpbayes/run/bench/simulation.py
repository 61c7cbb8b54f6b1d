"""How the time of a simulation grows with its sites, and which stage takes it."""

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from rich.console import Console
from rich.table import Table

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.scenario import Scenario
from fl_dpbayes.config.validation_text import read_record
from fl_dpbayes.report.run_files import ROUNDS_FILE, read_csv
from fl_dpbayes.run.bench.memory import MEBIBYTE, peak_bytes

# What is timed in the process of the sites and the server, each without what it calls of the others.
STAGES = {
    "chain": ("clients.train._run",),
    "evaluation": ("clients.evaluate._measure",),
    "records": ("clients.train.load_site", "clients.evaluate.load_site"),
    "ledger": tuple(f"fl_dpbayes.privacy.ledger.ledger.Ledger.{name}" for name in (
        "open", "reserve", "commit", "fail", "record_data_version", "planned", "spent", "state", "close",
    )),
    "site, other": ("fl_dpbayes.run.inline_engine.InlineGrid.answer",),
    "report": ("server.federation._write",),
}  # fmt: skip
RECORDS_PER_SITE = 100


def sizes(sites: int) -> list[int]:
    """Return 10, 100, ... sites, up to `sites`."""
    return [*(size for size in (10, 100, 1000) if size < sites), sites]


def bench_simulation(
    console: Console, sizes: Sequence[int], *, rounds: int, engine: str, folder: Path | None, as_json: bool
) -> None:
    """Simulate federations of these sizes, each in a process of its own, and print a table, or a list of JSON.

    `rounds`: of one step. `engine`: `inline` tells CPU seconds by stage too. `folder`: where the runs lie meanwhile.
    Raises UserError if a run failed.
    """
    found = []
    for size in sizes:
        with tempfile.TemporaryDirectory(dir=folder) as made:
            command = [sys.executable, "-m", "fl_dpbayes.run.bench.simulation", made, str(size), str(rounds), engine]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UserError(f"the measured process failed: {done.stderr.strip()[-500:]}")
        found.append(json.loads(done.stdout.splitlines()[-1]))
    if as_json:
        console.print(json.dumps(found), soft_wrap=True, markup=False, highlight=False)
        return
    said = f"{rounds} rounds of a step, engine {engine}, {RECORDS_PER_SITE} made-up records a site"
    table = Table("sites", *map(str, sizes), title=said)
    for name in list(found[0])[1:]:
        table.add_row(name, *(f"{row[name]:.3g}" for row in found))
    console.print(table)


def measured(folder: Path, sites: int, rounds: int, engine: str) -> dict[str, float]:
    """Simulate one federation in this process and an absent folder; return seconds by what took them, and the peak."""
    from fl_dpbayes.run import simulate

    scenario, clock = _scenario(sites, rounds), StageClock()
    start = time.perf_counter()
    plan = simulate.plan_sites(scenario, None)
    simulate.new_folder(folder, scenario.name)
    simulate.write_baselines(scenario, simulate.prepare_simulation(scenario, plan, folder), folder)
    ready = time.perf_counter()
    if engine == "inline":
        simulate.import_apps()
        clock.watch()
        clock.timed("server", simulate.run_inline)(folder, len(scenario.sites), threading.Event())
    else:
        simulate.run_flower(folder, len(scenario.sites), scenario.resources, threading.Event())
    ended = time.perf_counter()
    of_rounds = [float(row["seconds"]) for row in read_csv(folder / ROUNDS_FILE)]
    return {
        "sites": sites, "prepare, s": ready - start, "run, s": ended - ready, "first round, s": of_rounds[0],
        "last round, s": of_rounds[-1], "peak, MiB": peak_bytes() / MEBIBYTE,
        **{f"{stage}, CPU s": clock.seconds[stage] for stage in (*STAGES, "server") if engine == "inline"},
    }  # fmt: skip


class StageClock:
    """CPU seconds of this thread by stage, each without those of the stages called within it."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._inner = [0.0]

    def timed(self, stage: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does what another does, and counts its time."""

        def call(*arguments: Any, **options: Any) -> Any:
            start = time.thread_time()
            self._inner.append(0.0)
            try:
                return plain(*arguments, **options)
            finally:
                whole = time.thread_time() - start
                self.seconds[stage] += whole - self._inner.pop()
                self._inner[-1] += whole

        return call

    def watch(self) -> None:
        """Time the stages, in this process for good."""
        for stage, names in STAGES.items():
            for place, attribute in (name.rsplit(".", 1) for name in names):
                owner = resolve_name(place)
                plain = vars(owner)[attribute]
                whole = isinstance(plain, classmethod)
                timed = self.timed(stage, plain.__func__ if whole else plain)
                setattr(owner, attribute, classmethod(timed) if whole else timed)


def _scenario(sites: int, rounds: int) -> Scenario:
    source = {"kind": "logistic-2d", "records": RECORDS_PER_SITE * sites, "sites": sites}
    scenario = {
        "name": "bench-simulation", "data": {"source": source, "test_fraction": 0.4}, "partition": {"kind": "natural"},
        "sites": {f"site-{number}": {"role": "train"} for number in range(1, sites + 1)}, "model": {"kind": "logistic"},
        "sampler": {"kind": "dp-sgld", "step_size": {"kind": "constant", "initial": 0.5}},
        "training": {"rounds": rounds, "steps_per_round": 1, "burn_in": 1, "thinning": 1},
        "privacy": {"epsilon": 4.0, "delta": 1e-3, "coupling": "floor", "temperature": 1.0, "clip_norm": 1.0,
                    "sampling_rate": 0.5},
        "aggregation": {"rule": "fald"}, "evaluation": {"release": "public"},
    }  # fmt: skip
    return read_record(Scenario, scenario, "the benchmark's scenario")


if __name__ == "__main__":
    print(json.dumps(measured(Path(sys.argv[1]) / "run", int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])))
