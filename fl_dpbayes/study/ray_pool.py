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
OBJECT_STORE_BYTES = 256 * 2**20  # summaries only
# Tasks that wait beside those that run, so that no core waits for the next one to be sent.
WAITING = 2
# Ray reads it as it is imported, so Ray is imported behind it. Where clusters are off, as by
# default on other systems, Ray listens on the loopback address only; it runs the code of whoever
# reaches its ports, without a password.
ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # A task that asks for no GPU still sees them, as the sites of a simulation do.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def run_on_ray(
    jobs: Sequence[CellJob], workers: int, address: str | None
) -> Generator[CellOutcome, None, None]:
    """Run every job once, `workers` at a time, and yield each outcome as soon as it is there.

    A job whose process dies is an outcome with an error. Leaving the iterator ends all that was
    started. Raises UserError if there is no cluster at `address` (None: here), or the cells ask for
    GPUs that are not there.
    """
    with _ray(workers, address) as ray:
        wanted = max((job.cell.scenario.resources.gpus_per_site for job in jobs), default=0.0)
        if wanted > (found := ray.cluster_resources().get("GPU", 0.0)):
            said = f"resources.gpus_per_site is {wanted:g}, and Ray finds {found:g} GPUs"
            raise UserError(f"{said}: set it to at most that")
        task = ray.remote(max_retries=0)(run_cell)
        at_once = int(ray.cluster_resources().get("CPU", 1)) + WAITING
        waiting = list(reversed(jobs))
        running: dict[Any, CellJob] = {}
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop()
                running[
                    task.options(
                        num_cpus=1, num_gpus=job.cell.scenario.resources.gpus_per_site
                    ).remote(job)
                ] = job
            # Short, so that an interrupt is met soon.
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
        error = (
            f"its process ended ({type(problem).__name__}: {str(problem).strip().splitlines()[0]})"
        )
    return CellOutcome(job.cell, 0.0, error=error)


def _check_listening(address: str) -> None:
    """Fail at once where nothing listens; Ray itself goes on trying for many minutes."""
    host, separator, port = address.rpartition("://")[2].rpartition(":")
    if separator and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()


@contextlib.contextmanager
def _ray(workers: int, address: str | None) -> Iterator[Any]:
    """Start Ray here, or join the cluster at an address.

    Yield its module, and end it with the context.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    # Ray leaves logs and sockets of every session in its folder.
    folder = tempfile.TemporaryDirectory(prefix="fl-dpbayes-", ignore_cleanup_errors=True)
    variables = VARIABLES | (ALONE if address is None else {})
    own = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    import ray

    try:
        try:
            if address is None:
                ray.init(
                    "local",
                    num_cpus=workers,
                    object_store_memory=OBJECT_STORE_BYTES,
                    include_dashboard=False,
                    log_to_driver=False,
                    configure_logging=False,
                    _temp_dir=folder.name,
                )
                _check_alone(ray.util.get_node_ip_address())
            else:
                _check_listening(address)
                ray.init(address, log_to_driver=False, configure_logging=False)
        except (OSError, ValueError, RuntimeError) as error:
            where = f"at {address!r}" if address else "on this machine"
            said = (
                f"Ray cannot be reached or started {where} ({str(error).strip().splitlines()[0]})"
            )
            raise UserError(
                f"{said}: check --ray-address, or leave it out to run on this machine"
            ) from None
        finally:
            if in_main_thread:
                # Ray's own handler would end this process without a word on what was kept.
                signal.signal(signal.SIGTERM, before)
        yield ray
    finally:
        ray.shutdown()
        folder.cleanup()
        # Whoever runs a study from a notebook goes on with an environment of their own.
        for name in variables:
            os.environ.pop(name)
        os.environ.update({name: value for name, value in own.items() if value is not None})


def _check_alone(host: str) -> None:
    if not host.startswith("127."):
        said = (
            f"Ray listens on {host}, where others reach it, since it was imported before "
            "the study began"
        )
        raise UserError(f"{said}: run the study in a process of its own, by  fl-dpbayes study")
