"""How much memory the server takes for many sites and large samples: the real server, made-up sites."""

import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from rich.console import Console
from rich.table import Table

from fl_dpbayes.config.base import Config
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.kinds import import_apps
from fl_dpbayes.config.record_schema import record_schema
from fl_dpbayes.config.scenario import Scenario
from fl_dpbayes.config.task import MLPModel, Task
from fl_dpbayes.config.validation_text import read_record
from fl_dpbayes.models.build import model_shapes
from fl_dpbayes.protocol.card import SiteCard
from fl_dpbayes.protocol.refusal import Refusal, RefusalCode
from fl_dpbayes.protocol.train import PrivacyStatement, TrainReply, TrainRequest
from fl_dpbayes.protocol.wire import read_header, request_digest, write_header
from fl_dpbayes.report.run_files import stored_summary
from fl_dpbayes.run.inline_engine import LocalGrid, logs_in, task_identity

TASK = Task(input_shape=(64,), classes=10)
MEBIBYTE = 2**20
UNITS = 1000


def bench_memory(console: Console, *, sites: int, samples: int, parameters: int, folder: Path | None) -> None:
    """Run the server over made-up sites in a process of its own, and print its greatest resident memory.

    The sites answer at once with random samples; everything else is as in a run. The files are deleted afterwards.
    `samples`: of each site. `folder`: where the bank and the posterior lie meanwhile. Raises UserError if it is none or
    its disk has too little space, or the run failed.
    """
    count = sum(math.prod(shape) for shape in model_shapes(_scenario(sites, samples, parameters).model, TASK).values())
    sample_bytes = 4 * sites * samples * count
    place = folder or Path(tempfile.gettempdir())
    if not place.is_dir():
        raise UserError(f"--folder {place} is no folder: give one on a disk with much space")
    needed, free = 2 * sample_bytes + 4 * sites * count + 100 * MEBIBYTE, shutil.disk_usage(place).free
    if free < needed:
        said = f"{place} has {free // MEBIBYTE} MiB left, the bank and the posterior take {needed // MEBIBYTE} MiB"
        raise UserError(f"{said}: give another --folder, or fewer --sites, --samples or --parameters")
    with tempfile.TemporaryDirectory(dir=place) as made, console.status(f"{sites} sites"):
        start = time.perf_counter()
        # One folder deeper: the server keeps the heads of ledgers beside its run folder.
        run_folder = Path(made, "run")
        run_folder.mkdir()
        arguments = [str(run_folder), str(sites), str(samples), str(parameters)]
        command = [sys.executable, "-m", "fl_dpbayes.run.bench.memory", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - start
        if done.returncode:
            raise UserError(f"the measured process failed: {done.stderr.strip()[-500:]}")
        measured = json.loads(done.stdout.splitlines()[-1])
        stages = stored_summary(run_folder)["seconds"]
        stored = (run_folder / "posterior.safetensors").stat().st_size
    table = Table(title=f"server memory: {sites} sites x {samples} samples x {count} parameters", show_header=False)
    sizes = {"samples of all sites": sample_bytes, "samples of one site": sample_bytes / sites,
             "posterior.safetensors": stored, "resident before the run": measured["before"],
             "greatest resident memory": measured["peak"]}  # fmt: skip
    for name, size in sizes.items():
        table.add_row(name, f"{size / MEBIBYTE:.0f} MiB")
    for name, spent in (stages | {"in all": seconds}).items():
        table.add_row(f"seconds, {name}", f"{spent:.1f}")
    console.print(table)


def serve(run_folder: Path, sites: int, samples: int, parameters: int) -> dict[str, int]:
    """Run the server over made-up sites in this process and an empty folder."""
    import_apps()
    from server.federation import run_federation

    scenario, before = _scenario(sites, samples, parameters), peak_bytes()
    with task_identity(), logs_in(run_folder / "flower.log"):
        run_federation(SyntheticGrid(scenario), scenario, run_folder, "")
    return {"before": before, "peak": peak_bytes()}


class SyntheticGrid(LocalGrid):
    """Nodes 1 .. K, each a site whose samples are standard normal draws; a reply is made when it is pulled.

    Of a request only its header is kept, as on a server whose messages leave the process.
    """

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(len(scenario.sites))
        self.names = dict(enumerate(scenario.sites, 1))
        self._schema = record_schema(scenario.data.source)
        self._generator = np.random.default_rng(scenario.seed)

    def kept(self, message: Message) -> Message:
        """Return the header alone."""
        given, header = message.metadata, RecordDict({"config": message.content.config_records["config"]})
        return Message(header, given.dst_node_id, given.message_type, ttl=given.ttl, group_id=given.group_id)

    def answer(self, asked: Message) -> Message:
        """Make up a reply."""
        content = RecordDict()
        reply: Config = Refusal(code=RefusalCode.NOT_SENT)
        if asked.metadata.message_type == "query":
            reply = SiteCard(
                name=self.names[asked.metadata.dst_node_id], role="train", task=TASK, units=UNITS, unit="record",
                data_schema=self._schema, evaluation_release="none", seeded=True,
            )  # fmt: skip
        elif asked.metadata.message_type == "train":
            request = read_header(TrainRequest, asked.content.config_records["config"]["record"])
            reply, content["arrays"] = _train_reply(request), self._arrays(request)
        key = "refusal" if isinstance(reply, Refusal) else "record"
        content["config"] = ConfigRecord({key: write_header(reply)})
        return Message(content, reply_to=asked)

    def _arrays(self, request: TrainRequest) -> ArrayRecord:
        steps = range(request.first_step, request.first_step + request.steps)
        record, count = ArrayRecord(), sum(map(request.plan.is_kept, steps))
        for name, shape in model_shapes(request.model, request.task).items():
            draws = self._generator.standard_normal((count, *shape), dtype=np.float32)
            record[f"last/parameters/{name}"] = Array(np.ascontiguousarray(draws[-1]))
            record[f"samples/{name}"] = Array(draws)
        return record


def _train_reply(request: TrainRequest) -> TrainReply:
    plan, reached = request.plan, request.first_step + request.steps
    rate = plan.privacy.sampling_rate
    statement = PrivacyStatement(
        cohort="made up", unit="record", units=UNITS, adjacency=plan.privacy.adjacency, delta=plan.privacy.delta,
        epsilon=None, epsilon_method="pld", mu=None, mu_kind="exact" if rate == 1 else "clt", steps=reached,
        budget=None, history=((0.0, rate, reached),), seeded=True,
    )  # fmt: skip
    return TrainReply(
        run=request.run, round=request.round, request=request_digest(request), status="OK", privacy=statement,
        first_step=request.first_step, steps=request.steps, ledger_head="0" * 64,
    )  # fmt: skip


def peak_bytes() -> int:
    """Return the greatest resident memory of this process so far."""
    # Not getrusage: a process inherits the peak of the one that started it.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))


def _scenario(sites: int, samples: int, parameters: int) -> Scenario:
    # Two hidden layers of width h between 64 inputs and 10 classes have h^2 + 76 h + 10 parameters.
    width = max(1, round(math.sqrt(38**2 + max(0, parameters - 10)) - 38))
    scenario = {
        "name": "bench-memory", "data": {"source": {"kind": "digits"}}, "aggregation": {"rule": "mixture"},
        "sites": {f"site-{number:04d}": {"role": "train"} for number in range(1, sites + 1)},
        "model": MLPModel(hidden=(width, width)).model_dump(exclude_none=True),
        "sampler": {"kind": "sgld", "step_size": {"kind": "constant", "initial": 0.1}},
        "training": {"rounds": 1, "steps_per_round": samples, "thinning": 1},
        "privacy": {"kind": "none", "sampling_rate": 1.0, "temperature": 1.0},
    }  # fmt: skip
    return read_record(Scenario, scenario, "the benchmark's scenario")


if __name__ == "__main__":
    print(json.dumps(serve(Path(sys.argv[1]), *map(int, sys.argv[2:]))))
