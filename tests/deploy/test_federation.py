"""One long-lived federation of real processes: TLS, node authentication, process isolation, and what goes wrong there.

The tests are steps of one story, in their order; each goes on with the ledgers and the processes of
those before it.
"""

import csv
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from safetensors.numpy import load_file

from fl_dpbayes.config.approved_code import approve_bundle
from fl_dpbayes.config.site_file import (
    LedgerSettings,
    Policy,
    SiteFile,
    read_own_site_file,
    read_site_file,
    write_site_file,
)
from fl_dpbayes.coordinator.deploy import AT_EACH_SITE
from fl_dpbayes.data.simulation import run_identifier
from fl_dpbayes.engine.inline_engine import run_inline
from fl_dpbayes.files.atomic_file import PARTIAL
from fl_dpbayes.hospital.check import check_site
from fl_dpbayes.hospital.init_site import coordinators_scenario
from fl_dpbayes.hospital.ledger import create_ledger, ledger_of
from fl_dpbayes.privacy.ledger.state import LedgerState
from tests.deploy.bundles import FOREIGN, app_folder
from tests.deploy.real_federation import RealFederation, wait_for
from tests.deploy.sites import site_record

pytestmark = [pytest.mark.slow, pytest.mark.deploy]

SITES = ["north", "south", "west"]
CELL, GROUP, PATIENT, PLACE = "canary-cell", "canary-ward", "canary-patient", "canary-folder"
# West's budget is for two runs.
BUDGETS = {"north": 9.0, "south": 9.0, "west": 3.7}
SCENARIO = """\
name = "{name}"
model = {{ kind = "logistic" }}
sampler = {{ kind = "dp-sgd", step_size = {{ kind = "constant", initial = 0.3 }} }}
training = {{ rounds = 2, steps_per_round = 5, thinning = 5 }}
privacy = {{ epsilon = 2.0, delta = 1e-3, clip_norm = 1.0, sampling_rate = 0.5 }}
aggregation = {{ rule = "fald" }}
evaluation = {{ release = "public" }}
[simulation]
insecure_seed = 7
[data]
test_fraction = 0.2
[data.source]
kind = "table"
label = "y"
classes = 2
features = ["a", "b"]
centers = [0.0, 0.0]
scales = [1.0, 1.0]
unit_column = "patient"
group_columns = ["ward"]
[sites]
north = {{ role = "train" }}
south = {{ role = "train" }}
west = {{ role = "train" }}
[resources]
min_sites = {least}
round_timeout = {timeout}
"""


class Story(RealFederation):
    """The federation, and a simulation of its site files that every run is compared with.

    The coordinator's processes and south's are at first those of a deployment.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, [*SITES, "visitor"])
        self.files: dict[str, Path] = {}
        self.as_deployed = {"superlink", "serverapp", "node-south", "app-south"}

    def launcher(self, name: str) -> list[str]:
        quick = [sys.executable, "-P", "-m", "tests.deploy.quick"]
        return [] if name in self.as_deployed | {"follow"} else quick

    def set_up(self) -> None:
        """Start the coordinator's processes; make, check, register and simulate the sites."""
        self.start_superlink()
        self.start_serverapp()
        folder, quiet = self.folder, Console(file=StringIO())
        bundle = (
            (self.kit / "hospital" / "connection.toml").read_text().split('bundles = ["')[1][:64]
        )
        (folder / "sim" / "sites").mkdir(parents=True)
        for number, name in enumerate(self.names):
            file = self.files[name] = self.add_site(self.record(name))
            assert check_site(file, quiet, "data") == 1  # the ledger is not made yet
            create_ledger(file, quiet)
            approve_bundle(read_own_site_file(file), file, bundle)
            self.register(file, name)
            if name in SITES:
                write_site_file(
                    self.simulated(file), folder / "sim" / "sites" / f"{number}-{name}.toml"
                )
                create_ledger(folder / "sim" / "sites" / f"{number}-{name}.toml", quiet)

    def record(self, name: str) -> SiteFile:
        """A site of `site_record` with planted texts, seeded, whose training waits where a test puts a pipe."""
        record = site_record(self.folder / name, name)
        lines = (self.folder / name / "patients.csv").read_text().splitlines()
        rows = [
            f"{line},{PATIENT}-{row},{GROUP}-{row % 2},{CELL}-{row}"
            for row, line in enumerate(lines[1:])
        ]
        place = self.folder / name / PLACE / "patients.csv"
        place.parent.mkdir()
        place.write_text("\n".join([f"{lines[0]},patient,ward,note", *rows]) + "\n")
        columns = {
            "path": Path(PLACE, place.name),
            "unit_column": "patient",
            "group_columns": ("ward",),
        }
        return record.model_copy(
            update={
                "source": record.source.model_copy(update=columns),
                "insecure_seed": 7,
                "trace_folder": Path("trace"),
                "ledger": record.ledger.model_copy(update={"epsilon": BUDGETS.get(name, 6.0)}),
                "policy": Policy(
                    max_run_epsilon=3.0, evaluation_release="public", groups={"ward": ("A",)}
                ),
            }
        )

    def simulated(self, file: Path) -> SiteFile:
        """The same site without connection, with a ledger of its own."""
        record, sim = read_site_file(file), self.folder / "sim"
        places = {"path": sim / f"{record.name}.db", "witness": sim / "witness" / record.name}
        ledger = LedgerSettings.model_validate(record.ledger.model_dump() | places)
        return record.model_copy(
            update={"connection": None, "snapshot": None, "trace_folder": None, "ledger": ledger}
        )

    def start_sites(self, *names: str) -> None:
        for name in names or SITES:
            if f"node-{name}" not in self.processes:
                self.start_site(self.files[name])

    def scenario(self, name: str, least: int = 3, timeout: int = 120) -> str:
        """Write a scenario; return the run's identifier."""
        (self.folder / f"{name}.toml").write_text(
            SCENARIO.format(name=name, least=least, timeout=timeout)
        )
        return run_identifier(
            coordinators_scenario(str(self.folder / f"{name}.toml"), AT_EACH_SITE)
        )

    def follow(self, *words: str) -> None:
        """Start a `deploy` command beside the test."""
        self.start("follow", "fl-dpbayes", "deploy", *words)

    def followed(self, status: int, seconds: float = 400) -> str:
        """Wait for that command, and return what it said."""
        assert self.processes["follow"].wait(seconds) == status, self.log("follow")[-3000:]
        return self.log("follow")

    def hold(self, site: str, run: str, number: int) -> Path:
        """Make a site's training of a round wait between its reservation and its reply."""
        (self.folder / site / "trace").mkdir(exist_ok=True)
        os.mkfifo(pipe := self.folder / site / "trace" / f".{run}-{number}.csv{PARTIAL}")
        return pipe

    def let_go(self, pipe: Path) -> None:
        subprocess.run(["timeout", "120", "cat", pipe], check=True, capture_output=True)

    def wait_reserved(self, site: str, run: str, number: int) -> None:
        def reserved() -> bool:
            found = ledger_state(self.files[site]).reservations.values()
            return (run, number, "reserved") in {
                (each.run, each.round, each.state) for each in found
            }

        wait_for(reserved)

    def ended(self, process: str) -> str:
        return "" if self.processes[process].poll() is None else "ended"

    def done(self, site: str, run: str) -> list[dict]:
        entries, _ = ledger_entries(ledger_state(self.files[site]))
        return [each for each in entries if (each["run"], each["state"]) == (run, "done")]

    def check_equals_simulation(self, name: str, *, takeovers: int = 0) -> None:
        """Compare a run's arrays, tables and ledger entries with those of the simulation of the same site files."""
        real, sim = self.folder / name, self.folder / "sim" / name
        sim.mkdir()
        shutil.copy(real / "scenario.toml", sim)
        shutil.copytree(self.folder / "sim" / "sites", sim / "sites")
        run_inline(sim, len(SITES), threading.Event(), report=False)
        theirs, ours = (load_file(folder / "posterior.safetensors") for folder in (real, sim))
        assert theirs.keys() == ours.keys()
        assert all((theirs[key] == ours[key]).all() for key in ours)
        for table in ("privacy.csv", "calibration.csv", "rounds.csv"):
            assert rows(real / table) == rows(sim / table)
        for number, site in enumerate(SITES):
            states = [
                ledger_state(file)
                for file in (self.files[site], sim / "sites" / f"{number}-{site}.toml")
            ]
            (spent, taken), (expected, _) = map(ledger_entries, states)
            assert spent == expected
            assert taken == (takeovers if site == "north" else 0)
            # What is counted holds the fingerprint of the records, a snapshot's here and a table's
            # there.
            runs = [sorted(run for run, _ in state.evaluations) for state in states]
            assert runs[0] == runs[1]


def ledger_state(file: Path) -> LedgerState:
    with ledger_of(file) as ledger:
        assert not ledger.verify()
        return ledger.state()


def ledger_entries(state: LedgerState) -> tuple[list[dict], int]:
    """What was reserved, without times and processes, and how often a process went on with what a dead one left."""
    entries = [asdict(each) for each in state.reservations.values()]
    own = ("identity", "time", "process", "takeovers", "durability", "interrupted")
    kept = [{key: value for key, value in entry.items() if key not in own} for entry in entries]
    return kept, sum(entry["takeovers"] for entry in entries)


def rows(table: Path) -> list[dict[str, str]]:
    with table.open(newline="") as file:
        found = list(csv.DictReader(file))
    return [
        {key: row[key] for key in row if key not in ("seconds", "bytes_up", "bytes_down")}
        for row in found
    ]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    federation = Story(tmp_path_factory.mktemp("federation"))
    try:
        federation.set_up()
        yield federation
    finally:
        federation.end()


def test_late_site_is_waited_for_and_the_run_equals_its_simulation(story: Story) -> None:
    story.start_sites("north", "west", "visitor")
    story.scenario("plain")
    story.follow("run", "plain.toml", "--out", "plain")
    wait_for(lambda: "waiting for south" in story.log("follow"))
    story.start_site(story.files["south"], wait=False)
    story.followed(0)
    summary = json.loads((story.folder / "plain" / "summary.json").read_text())
    assert [row["site"] for row in summary["privacy"]] == SITES
    assert any("visitor: it is no site of the scenario" in line for line in summary["warnings"])
    assert "visitor" in (story.folder / "plain" / "report.html").read_text()
    story.kill("node-visitor", "app-visitor", "app-south", "serverapp")
    story.as_deployed = set()
    story.start("app-south", "fl-dpbayes", "site", "app", story.files["south"], home="unused")
    story.start_serverapp()
    assert "nothing is left to do" in story.cli("deploy", "resume", "plain")
    assert "finished:completed; round 2 of 2 rounds" in story.cli("deploy", "status", "plain")
    story.check_equals_simulation("plain")


def test_swapped_features_are_refused_before_anything_is_paid(story: Story) -> None:
    file = story.files["south"]
    before, text = [ledger_state(each) for each in story.files.values()], file.read_text()
    file.write_text(text.replace('"a",\n    "b"', '"b",\n    "a"'))
    assert file.read_text() != text
    story.scenario("swapped")
    failed = story.cli("deploy", "run", "swapped.toml", "--out", "swapped", status=1)
    assert "did not join: south has other features than the scenario" in failed
    assert "no privacy was spent" in failed
    assert [ledger_state(each) for each in story.files.values()] == before
    file.write_text(text)


def test_reply_after_the_timeout_is_kept_and_costs_nothing_again(story: Story) -> None:
    story.start_sites()
    run = story.scenario("late", timeout=40)
    pipe = story.hold("south", run, 1)
    said = story.cli("deploy", "run", "late.toml", "--out", "late", status=1)
    assert "south: FAILED no reply in time" in said, said
    story.let_go(pipe)
    paid = wait_for(lambda: story.done("south", run))
    pipe = story.hold("south", run, 2)
    story.follow("resume", "late")
    story.wait_reserved("south", run, 2)
    assert paid == story.done("south", run)
    # The next step goes on from here: the ServerApp dies in round 2, and south's reply finds
    # nobody.
    story.kill("serverapp")
    story.let_go(pipe)
    story.start_serverapp()


def test_foreign_bundle_gets_a_code_and_starts_no_process_and_approval_needs_no_restart(
    story: Story,
) -> None:
    story.start_sites()
    mark, output = story.folder / "foreign-code-ran", story.folder / "replies.json"
    foreign = app_folder(
        story.folder / "foreign", "foreign", "foreign:app", FOREIGN.format(mark=str(mark))
    )
    thin = app_folder(story.folder / "thin", "thin", "clients.app:app")

    def ask(app: Path) -> list[dict]:
        assert story.run(app, output, nodes="3") == "finished:completed"
        return json.loads(output.read_text())

    def started() -> list[int]:
        return [story.log(f"app-{name}").count("flwr-clientapp") for name in SITES]

    # A message of the run before may still start the app.
    wait_for(lambda: started() == (time.sleep(5), started())[1])
    refused, before = [{"code": 7, "reason": "The FAB could not be verified."}] * 3, started()
    assert ask(foreign) == refused
    assert not mark.exists()
    # A bundle without code is refused as long as nobody approved it.
    assert ask(thin) == refused
    assert started() == before
    # One hospital approves, and what it had refused stays refused at the others.
    waiting = story.cli("site", "approve", story.files["north"])
    held = {
        path.stem: path for path in (story.folder / "north" / "site.held" / "bundles").glob("*.fab")
    }
    assert len(held) == 2
    assert all(f"waits: bundle {digest}" in waiting for digest in held)
    by_code = {b"foreign.py" in path.read_bytes(): digest for digest, path in held.items()}
    no = story.cli("site", "approve", story.files["north"], by_code[True], "--yes", status=2)
    assert "brings files of its own" in no
    shown = story.cli("site", "approve", story.files["north"], by_code[False], "--yes")
    assert "elsewhere/thin" in shown
    assert "foreign.py" not in shown
    assert sorted("record" in reply for reply in ask(thin)) == [False, False, True]
    assert [after - old for after, old in zip(started(), before, strict=True)] == [1, 0, 0]
    assert all(story.processes[f"node-{name}"].poll() is None for name in SITES)


def test_run_whose_serverapp_died_goes_on_as_if_unbroken(story: Story) -> None:
    assert "deploy resume" in story.followed(1)
    story.cli("deploy", "resume", "late")
    story.check_equals_simulation("late")


def test_node_and_superlink_die_and_come_back_and_a_spent_budget_ends_one_site(
    story: Story,
) -> None:
    story.start_sites()
    run = story.scenario("killed", least=2)
    pipe = story.hold("north", run, 1)
    story.follow("run", "killed.toml", "--out", "killed")
    story.wait_reserved("north", run, 1)
    story.kill("node-north", "app-north")
    pipe.unlink()
    # As systemd does: again and again, until the lease of the killed one is over.
    refused = 0
    story.start_site(story.files["north"], wait=False)
    while (
        wait_for(
            lambda: story.log("node-north").count("SuperNode ID") == 2 or story.ended("node-north")
        )
        == "ended"
    ):
        refused += 1
        story.kill("app-north")
        story.start_site(story.files["north"], wait=False)
    assert refused
    assert "deploy resume" in story.followed(1)
    pipe = story.hold("south", run, 2)
    story.follow("resume", "killed")
    story.wait_reserved("south", run, 2)
    story.kill("superlink")
    story.start_superlink()
    story.let_go(pipe)
    story.followed(0)
    west = [row for row in rows(story.folder / "killed" / "privacy.csv") if row["site"] == "west"]
    assert (west[0]["status"], west[0]["reason"]) == ("REFUSED", "BUDGET_EXHAUSTED")
    story.check_equals_simulation("killed", takeovers=1)


def test_unknown_key_and_wrong_authority_bring_no_node_up(story: Story) -> None:
    stranger, fooled = (story.add_site(story.record(name)) for name in ("stranger", "fooled"))
    (story.folder / "other").mkdir()
    shutil.copy(
        RealFederation(story.folder / "other", ["fooled"]).kit / "hospital" / "ca.crt",
        fooled.parent,
    )
    for file in (stranger, fooled):
        story.start_site(file, wait=False)
    assert "FAIL  CA: " in story.cli("site", "check", fooled, "--only", "connection", status=1)
    wait_for(lambda: story.ended("node-stranger") and story.ended("node-fooled"))
    assert "CERTIFICATE_VERIFY_FAILED" in story.log("node-fooled")
    assert "SuperNode ID" not in story.log("node-stranger") + story.log("node-fooled")


def test_no_planted_text_is_in_the_servers_log_database_or_run_folders(story: Story) -> None:
    story.end()
    places = [
        story.folder / "superlink.log",
        story.folder / "serverapp.log",
        *story.folder.glob("state.db*"),
    ]
    places += [
        path
        for name in ("plain", "late", "killed", "home-server")
        for path in (story.folder / name).rglob("*")
    ]
    kept = {path: path.read_bytes() for path in places if path.is_file()}
    assert any(b"north" in kept[path] for path in kept if path.name.startswith("state.db"))
    for planted in (CELL, GROUP, PATIENT, PLACE):
        assert (
            planted
            in "".join(story.files["north"].parent.joinpath(PLACE, "patients.csv").read_text())
            + PLACE
        )
        assert [path for path, content in kept.items() if planted.encode() in content] == []
