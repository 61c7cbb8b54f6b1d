"""Runs a command of Flower or ours with short waits, and its apps as forks of a process that has imported all they need.

`python -P -m tests.deploy.quick flower-superexec ...` stands for `flower-superexec ...`.
"""

import multiprocessing
import os
import runpy
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from flwr.common import constant

IDLE_SECONDS = 1.0
# Who sends none for twice as long is taken for dead. What is imported of Flower later takes it.
constant.HEARTBEAT_DEFAULT_INTERVAL = 20

FORKS = multiprocessing.get_context("forkserver")
CLIENT_APP = [
    "flwr.supernode.cli",
    "clients.answer",
    "clients.train",
    "clients.recalibrate",
    "clients.evaluate",
]
SERVER_APP = ["flwr.superlink.cli", "server.app", "server.federation"]


def run(*command: str) -> None:
    """Run a command's script in this process."""
    sys.argv = list(command)
    runpy.run_path(str(shutil.which(command[0])), run_name="__main__")


def fork(command: list[str], **_: object) -> None:
    """Start an app, as a superexec does by `subprocess.Popen`."""
    FORKS.Process(target=run, args=command).start()


def run_superexec(command: list[str], modules: list[str]) -> None:
    """Run a superexec whose apps are forks of a process that has imported these modules."""
    FORKS.set_forkserver_preload(["tests.deploy.quick", *modules])
    # Whoever takes a task and does not begin soon loses it.
    first = FORKS.Process(target=int)
    first.start()
    first.join()
    run(*command)


def main(command: list[str]) -> None:
    from flwr.supercore.superexec.executor import subprocess_executor
    from flwr.supernode import start_client_internal

    subprocess_executor.subprocess = SimpleNamespace(Popen=fork, DEVNULL=subprocess.DEVNULL)
    start_client_internal.time = SimpleNamespace(
        sleep=lambda seconds: time.sleep(min(seconds, IDLE_SECONDS))
    )
    # `site app` becomes a superexec by it.
    os.execvp = lambda _, superexec: run_superexec(superexec, CLIENT_APP)
    if Path(command[0]).name == "flower-superexec":
        run_superexec(command, SERVER_APP)
    else:
        run(*command)


if __name__ == "__main__":
    # A fork looks for `run` in the module of this name.
    from tests.deploy import quick

    quick.main(sys.argv[1:])
