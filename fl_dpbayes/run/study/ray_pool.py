"""Cells as Ray tasks, on this machine's cores or on an existing cluster."""

import contextlib
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Generator, Iterator, Sequence

import ray
from ray._private import ray_constants
from ray.exceptions import OutOfMemoryError, RayError

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.run.study.cell import CellJob, CellOutcome, run_cell

POLL_SECONDS = 1.0
CONNECT_SECONDS = 10.0
OBJECT_STORE_BYTES = 256 * 2**20  # summaries only
# Tasks that wait beside those that run, so that no core waits for the next one to be sent.
WAITING = 2
VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # A task that asks for no GPU still sees them, as the sites of a simulation do.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def run_on_ray(jobs: Sequence[CellJob], workers: int, address: str | None) -> Generator[CellOutcome, None, None]:
    """Run every job once, `workers` at a time, and yield each outcome as soon as it is there.

    A job whose process dies is an outcome with an error. Leaving the iterator ends all that was started. Raises
    UserError if there is no cluster at `address` (None: here), or the cells ask for GPUs that are not there.
    """
    with _ray(workers, address):
        wanted = max((job.cell.scenario.resources.gpus_per_site for job in jobs), default=0.0)
        if wanted > (found := ray.cluster_resources().get("GPU", 0.0)):
            said = f"resources.gpus_per_site is {wanted:g}, and Ray finds {found:g} GPUs"
            raise UserError(f"{said}: set it to at most that")
        task = ray.remote(max_retries=0)(run_cell)
        at_once = int(ray.cluster_resources().get("CPU", 1)) + WAITING
        waiting = list(reversed(jobs))
        running: dict[ray.ObjectRef, CellJob] = {}
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop()
                running[task.options(num_cpus=1, num_gpus=job.cell.scenario.resources.gpus_per_site).remote(job)] = job
            # Short, so that an interrupt is met soon.
            done, _ = ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS)
            for reference in done:
                yield _outcome(reference, running.pop(reference))


def _outcome(reference: "ray.ObjectRef", job: CellJob) -> CellOutcome:
    try:
        return ray.get(reference)
    except OutOfMemoryError:
        error = "its process was ended for want of memory: resume with fewer --workers"
    except RayError as problem:
        # The first line says what happened; the rest describes Ray's processes.
        error = f"its process ended ({type(problem).__name__}: {str(problem).strip().splitlines()[0]})"
    return CellOutcome(job.cell, 0.0, error=error)


def _check_listening(address: str) -> None:
    """Fail at once where nothing listens; Ray itself goes on trying for many minutes."""
    host, separator, port = address.rpartition("://")[2].rpartition(":")
    if separator and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()


@contextlib.contextmanager
def _ray(workers: int, address: str | None) -> Iterator[None]:
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    # Ray leaves logs and sockets of every session in its folder.
    folder = tempfile.TemporaryDirectory(prefix="fl-dpbayes-", ignore_cleanup_errors=True)
    clusters, own = ray_constants.ENABLE_RAY_CLUSTER, {name: os.environ.get(name) for name in VARIABLES}
    os.environ.update(VARIABLES)
    try:
        try:
            if address is None:
                # Listen on the loopback address only: Ray runs the code of whoever reaches its ports, without a
                # password. It asks for no such wish on Linux (it turns 127.0.0.1 into the machine's own address), but
                # does so by itself where clusters are not enabled, as on other systems.
                ray_constants.ENABLE_RAY_CLUSTER = False
                ray.init(
                    "local", num_cpus=workers, object_store_memory=OBJECT_STORE_BYTES, include_dashboard=False,
                    log_to_driver=False, configure_logging=False, _temp_dir=folder.name,
                )  # fmt: skip
            else:
                _check_listening(address)
                ray.init(address, log_to_driver=False, configure_logging=False)
        except (OSError, ValueError, RuntimeError) as error:
            where = f"at {address!r}" if address else "on this machine"
            said = f"Ray cannot be reached or started {where} ({str(error).strip().splitlines()[0]})"
            raise UserError(f"{said}: check --ray-address, or leave it out to run on this machine") from None
        finally:
            ray_constants.ENABLE_RAY_CLUSTER = clusters
            if in_main_thread:
                # Ray's own handler would end this process without a word on what was kept.
                signal.signal(signal.SIGTERM, before)
        yield
    finally:
        ray.shutdown()
        folder.cleanup()
        # Whoever runs a study from a notebook goes on with an environment of their own.
        for name in VARIABLES:
            os.environ.pop(name)
        os.environ.update({name: value for name, value in own.items() if value is not None})
