"""A process is known by its name; what /proc does not tell is not guessed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fl_dpbayes.privacy.ledger import takeover
from fl_dpbayes.privacy.ledger.takeover import process_status, this_process

NAME_OF_ANOTHER = (
    "from fl_dpbayes.privacy.ledger.takeover import this_process; print(this_process(), flush=True); input()"
)


@pytest.fixture
def other():
    """A process, and its name."""
    process = subprocess.Popen(
        [sys.executable, "-c", NAME_OF_ANOTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
        process.kill()


def test_process_is_known_by_its_name(other):
    process, name = other
    assert process_status(this_process()) == process_status(name) == "running"
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process_status(name) == "dead", "a zombie works on nothing"
    process.wait()
    assert process_status(name) == "dead"


def test_process_id_that_was_given_again_is_another_process():
    assert process_status(this_process().rpartition(":")[0] + ":1") == "dead"


def test_another_boot_is_told_from_another_namespace():
    boot, namespace, process_id, start = this_process().split(":")
    assert process_status(f"other:{namespace}:{process_id}:{start}") == "machine restarted"
    # Processes of two containers of one machine see the same boot id and not one another.
    for number in (process_id, "4194303"):
        assert process_status(f"{boot}:{int(namespace) + 1}:{number}:{start}") == "unknown"


@pytest.mark.parametrize("process_id", ["0", "-1", "x", "9" * 30])
def test_what_is_no_name_is_unknown(process_id):
    boot, namespace, _, start = this_process().split(":")
    for name in (f"{boot}:{namespace}:{process_id}:{start}", "", "a:b", f"{boot}:{os.getpid()}:{start}"):
        assert process_status(name) == "unknown"


def test_process_that_proc_hides_is_not_taken_for_dead(other, monkeypatch):
    process, name = other
    read = takeover._state_and_start_time

    def hidden(process_id):
        if process_id != os.getpid():
            raise FileNotFoundError
        return read(process_id)

    monkeypatch.setattr(takeover, "_state_and_start_time", hidden)
    assert process_status(name) == "unknown"
    process.kill()
    process.wait()
    assert process_status(name) == "dead"


def test_without_proc_nothing_is_known(other, monkeypatch, tmp_path):
    _, name = other
    monkeypatch.setattr(takeover, "_PROC", tmp_path)
    assert this_process() == ""
    assert process_status(name) == "unknown"


def test_proc_of_another_namespace_names_nobody(monkeypatch, tmp_path):
    (tmp_path / "self").symlink_to(str(os.getpid() + 1))
    for name in ("sys", str(os.getpid()), str(os.getpid() + 1)):
        (tmp_path / name).symlink_to(Path("/proc") / (name if name == "sys" else "self"))
    monkeypatch.setattr(takeover, "_PROC", tmp_path)
    assert this_process() == ""
