"""Cells as Ray tasks, on this machine's cores or on an existing cluster."""

import contextlib
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from fl_dpbayes.errors import UserError
from fl_dpbayes.study.cell import CellJob, CellOutcome, run_cell

POLL_SECONDS = 1.0
CONNECT_SECONDS = 10.0
MOST_STARTS = 3
# Enough for summaries.
OBJECT_STORE_BYTES = 256 * 2**20
# Tasks that wait beside those that run, so that no core waits for the next one to be sent.
WAITING = 2
# Ray reads its variables as it is imported, so they are set before. Where clusters are off, as by
# default on other systems, Ray listens on the loopback address only; it runs the code of whoever
# reaches its ports, without a password.
WITHOUT_CLUSTER = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # A task that asks for no GPU still sees them, as the sites of a simulation do.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def run_on_ray(
    jobs: Sequence[CellJob], workers: int, address: str | None
) -> Generator[CellOutcome, None, None]:
    """Run every job once, and yield each outcome as soon as it is there.

    A job whose process dies is an outcome with an error. Leaving the iterator ends all that was
    started.

    Args:
        jobs: The jobs.
        workers: How many at a time on this machine.
        address: The Ray cluster that runs them instead; None: this machine.

    Yields:
        The outcomes, in the order in which they come.

    Raises:
        UserError: If there is no cluster at the address, or the cells ask for GPUs that are not
            there.
    """
    with _ray(workers, address) as ray:
        needed_gpus = max((job.cell.scenario.resources.gpus_per_site for job in jobs), default=0.0)
        gpus = ray.cluster_resources().get("GPU", 0.0)
        if needed_gpus > gpus:
            raise UserError(
                f"resources.gpus_per_site is {needed_gpus:g}, and Ray finds {gpus:g} GPUs: set it "
                "to at most that"
            )
        task = ray.remote(max_retries=0)(run_cell)
        most_sent = int(ray.cluster_resources().get("CPU", 1)) + WAITING
        waiting = list(reversed(jobs))
        running: dict[Any, CellJob] = {}
        while waiting or running:
            while waiting and len(running) < most_sent:
                job = waiting.pop()
                gpus_of_cell = job.cell.scenario.resources.gpus_per_site
                reference = task.options(num_cpus=1, num_gpus=gpus_of_cell).remote(job)
                running[reference] = job
            # Not for long, so that an interrupt is noticed soon.
            done, _ = ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS)
            for reference in done:
                yield _outcome(reference, running.pop(reference))


def _outcome(reference: Any, job: CellJob) -> CellOutcome:
    import ray
    from ray.exceptions import OutOfMemoryError, RayError

    try:
        return ray.get(reference)
    except OutOfMemoryError:
        error = "its process was ended for want of memory: resume with fewer --workers"
    except RayError as problem:
        # The first line says what happened; the rest describes Ray's processes.
        error = f"its process ended ({type(problem).__name__}: {_first_line(problem)})"
    return CellOutcome(cell=job.cell, seconds=0.0, error=error)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _check_listening(address: str) -> None:
    """Fail at once where nothing listens; Ray itself goes on trying for many minutes."""
    host, separator, port = address.rpartition("://")[2].rpartition(":")
    if separator and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()


@contextlib.contextmanager
def _ray(workers: int, address: str | None) -> Iterator[Any]:
    """Start Ray here, or join a cluster, while the context lasts; yield its module."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    signal_handler = signal.getsignal(signal.SIGTERM)
    # Ray leaves logs and sockets of every session in its folder.
    folder = tempfile.TemporaryDirectory(prefix="fl-dpbayes-", ignore_cleanup_errors=True)
    variables = VARIABLES | WITHOUT_CLUSTER if address is None else VARIABLES
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    import ray

    try:
        try:
            if address is None:
                _start_here(ray, workers, folder.name)
                _check_unreachable(ray.util.get_node_ip_address())
            else:
                _check_listening(address)
                ray.init(address, log_to_driver=False, configure_logging=False)
        except (OSError, ValueError, RuntimeError) as error:
            where = f"at {address!r}" if address else "on this machine"
            raise UserError(
                f"Ray cannot be reached or started {where} ({_first_line(error)}): check "
                "--ray-address, or leave it out to run on this machine"
            ) from None
        finally:
            if in_main_thread:
                # Ray's own handler would end this process without a word on what was kept.
                signal.signal(signal.SIGTERM, signal_handler)
        yield ray
    finally:
        ray.shutdown()
        folder.cleanup()
        # Whoever runs a study from a notebook goes on with an environment of their own.
        for name in variables:
            os.environ.pop(name)
        os.environ.update({name: value for name, value in before.items() if value is not None})


def _start_here(ray: Any, workers: int, folder: str) -> None:
    """Start Ray on this machine, again where its processes take longer than it waits for them."""
    for start in range(MOST_STARTS):
        try:
            ray.init(
                "local",
                num_cpus=workers,
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                _temp_dir=folder,
            )
        except Exception as error:
            # Ray waits half a minute, and then raises an exception of no class of its own.
            ray.shutdown()
            if start + 1 == MOST_STARTS:
                raise RuntimeError(str(error)) from error
        else:
            return


def _check_unreachable(host: str) -> None:
    if not host.startswith("127."):
        raise UserError(
            f"Ray listens on {host}, where others reach it, since it was imported before "
            "the study began: run the study in a process of its own, by  fl-dpbayes study"
        )
