"""A federation of real processes on this machine: TLS, node authentication, process isolation at both ends."""

import contextlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import tomli_w

from fl_dpbayes import cli
from fl_dpbayes.config.site_file import SiteFile, write_site_file
from fl_dpbayes.engine.flower_command import ENVIRONMENT

BIN = Path(sys.executable).parent
REPOSITORY = Path(__file__).parents[2]
WAIT_SECONDS = 240.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def wait_for(what: Callable[[], object], seconds: float = WAIT_SECONDS) -> object:
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.2)
    return found


class RealFederation:
    """The coordinator's folder, its processes and the sites' ones, each with a log `<name>.log` in the folder."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder, self.names = folder, list(names)
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen] = {}
        self.cli(
            "provision",
            self.kit,
            "--sites",
            ",".join(names),
            "--host",
            "localhost",
            "--port",
            self.port,
        )
        (folder / "home").mkdir()
        text = (self.kit / "coordinator" / "config.toml").read_text()
        text = text.replace("/etc/fl-dpbayes", str((self.kit / "coordinator").resolve()))
        (folder / "home" / "config.toml").write_text(text)

    @property
    def kit(self) -> Path:
        return self.folder / "kit"

    def environment(self, home: str = "home") -> dict[str, str]:
        return (
            os.environ
            | ENVIRONMENT
            | {
                "FLWR_HOME": str(self.folder / home),
                "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(REPOSITORY),
                "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            }
        )

    def cli(self, *words: object, status: int = 0) -> str:
        """Run `fl-dpbayes ...` to its end, in this process, and return what it printed."""
        said = io.TextIOWrapper(io.BytesIO(), write_through=True)
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
        ):
            patch.setattr("sys.argv", ["fl-dpbayes", *map(str, words)])
            patch.chdir(self.folder)
            for name, value in self.environment().items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as stop:
                cli.main()
        said.seek(0)
        text = said.read()
        assert int(stop.value.code or 0) == status, text
        return text

    def flwr(self, *words: object) -> dict:
        """Run `flwr ...` to its end and return what it answered."""
        done = subprocess.run(
            [str(BIN / "flwr"), *map(str, words), "--format", "json"],
            env=self.environment(),
            cwd=self.folder,
            timeout=WAIT_SECONDS,
            check=False,
            text=True,
            capture_output=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        answer: dict = json.loads(done.stdout[done.stdout.index("{") :])
        return answer

    def launcher(self, name: str) -> list[str]:
        """What stands before a process's command; nothing, where it starts as it is deployed."""
        return []

    def start(self, name: str, *words: object, home: str = "home") -> None:
        """Start a process that stays."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*self.launcher(name), str(BIN / str(words[0])), *map(str, words[1:])],
                env=self.environment(home),
                cwd=self.folder,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def kill(self, *names: str) -> None:
        """End processes at once, with what they started."""
        for name in names:
            process = self.processes.pop(name)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def start_superlink(self) -> None:
        keys = self.kit / "coordinator"
        self.start(
            "superlink",
            "flower-superlink",
            "--ssl-ca-certfile",
            keys / "ca.crt",
            "--ssl-certfile",
            keys / "server.pem",
            "--ssl-keyfile",
            keys / "server.key",
            "--enable-supernode-auth",
            "--host",
            "127.0.0.1",
            "--port",
            self.port,
            "--database",
            self.folder / "state.db",
            "--disable-runtime-dependency-installation",
            "--isolation",
            "process",
            "--superexec-auth-secret-file",
            keys / "server.secret",
        )
        wait_for(lambda: self.listens(self.port))

    def start_serverapp(self) -> None:
        keys = self.kit / "coordinator"
        self.start(
            "serverapp",
            "flower-superexec",
            "--root-certificates",
            keys / "ca.crt",
            "--runtime-api-address",
            f"localhost:{self.port}",
            "--superexec-auth-secret-file",
            keys / "server.secret",
            home="home-server",
        )

    def add_site(self, record: SiteFile, superlink: str = "") -> Path:
        """Write a site's file with its connection, make its key, and register it."""
        folder = self.folder / record.name
        folder.mkdir(exist_ok=True)
        path = folder / "site.toml"
        shutil.copy(self.kit / "hospital" / "ca.crt", folder)
        write_site_file(record, path)
        connection = {"superlink": superlink or f"localhost:{self.port}", "port": free_port()}
        with path.open("a") as file:
            file.write("\n" + tomli_w.dumps({"connection": connection}))
        self.cli("site", "keys", path)
        return path

    def register(self, site_file: Path, name: str) -> None:
        shutil.copy(site_file.parent / f"{name}.pub", self.kit / "coordinator" / "keys")
        key = self.kit / "coordinator" / "keys" / f"{name}.pub"
        self.flwr("supernode", "register", key, "remote", "--name", name)

    def start_site(self, site_file: Path, *, wait: bool = True) -> None:
        """Start a site's two processes, `node-<name>` and `app-<name>`."""
        name = site_file.parent.name
        before = self.log(f"node-{name}").count("SuperNode ID")
        self.start(f"node-{name}", "fl-dpbayes", "site", "start", site_file, home="unused")
        self.start(f"app-{name}", "fl-dpbayes", "site", "app", site_file, home="unused")
        if wait:
            wait_for(lambda: self.log(f"node-{name}").count("SuperNode ID") > before)

    def run(self, app: Path, output: Path, **config: str) -> str:
        """Run an app to its end, which writes a file before; return the status."""
        output.unlink(missing_ok=True)
        given = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        given += f" output={json.dumps(str(output))}"
        run_id = self.flwr("run", app, "remote", "--run-config", given)["run-id"]
        wait_for(output.exists)
        return str(wait_for(lambda: self._ended(str(run_id))))

    def _ended(self, run_id: str) -> str:
        (run,) = self.flwr("ls", "remote", "--run-id", run_id)["runs"]
        return str(run["status"]) if run["status"].startswith("finished") else ""

    def end(self) -> None:
        self.kill(*self.processes)

    @staticmethod
    def listens(port: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0
