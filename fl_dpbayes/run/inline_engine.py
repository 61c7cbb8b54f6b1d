"""Runs the apps in this process: for tests, notebooks and small studies."""

import contextlib
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flwr.app import Context, RecordDict

# Flower lets only a process that has an identity build messages, and has no public way to give one; this private name
# is why pyproject bounds flwr to one minor version.
from flwr.supercore.task_identity import TaskIdentity

from fl_dpbayes.config.files.atomic_file import written

RUN_ID = 1
LOG_FILE = "flower.log"
LOGGERS = ("flwr", "fl_dpbayes")


def run_inline(run_folder: Path, sites: int, stop: threading.Event, *, report: bool = True) -> None:
    """Run the prepared scenario of a run directory on an in-process grid.

    Args:
        run_folder: holds `scenario.toml` and `sites/`.
        sites: number of nodes.
        stop: set by another thread to end the run before the next request.
        report: whether figures and `report.html` are drawn.

    Raises:
        UserError: what the ServerApp could not do, or that the run was stopped.
    """
    from clients.app import app as client_app
    from fl_dpbayes.run.inline_grid import InlineGrid
    from server.app import app as server_app

    context = Context(
        run_id=RUN_ID,
        node_id=0,
        node_config={},
        state=RecordDict(),
        run_config={"scenario": str(run_folder / "scenario.toml"), "output-dir": str(run_folder), "report": report},
    )
    with task_identity(), logs_in(run_folder / LOG_FILE):
        server_app(InlineGrid(client_app, sites, stop), context)


@contextmanager
def logs_in(path: Path) -> Iterator[None]:
    """Send what Flower and the virtual sites log to a file while the context lasts, not across a progress display."""
    with written(path):
        handler = _QuietFile(path, encoding="utf-8")
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger.handlers[:], logger.propagate) for logger in loggers]
    try:
        for logger in loggers:
            logger.handlers[:] = [handler]
            # Opacus, imported on the first use of some samplers, gives the root logger a handler on the terminal.
            logger.propagate = False
        yield
    finally:
        for logger, (handlers, propagate) in zip(loggers, before, strict=True):
            logger.handlers[:], logger.propagate = handlers, propagate
        with contextlib.suppress(OSError):
            handler.close()


class _QuietFile(logging.FileHandler):
    """A log that ends where the disk is full: what the run itself cannot write it says."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Pass over a line that cannot be written."""


@contextmanager
def task_identity() -> Iterator[None]:
    """Let this process build Flower messages while the context lasts."""
    before = (TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN_ID, 0, 0
    try:
        yield
    finally:
        TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id = before
