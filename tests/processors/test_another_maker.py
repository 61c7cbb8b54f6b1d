"""The emulated processor has the fault that a real one of that maker has, and breaks no program."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processors.another_maker import MAKER, CannotEmulateError, built_library

MAKER_OF = """
import ctypes
name = ctypes.create_string_buffer(13)
ctypes.CDLL(None).processor_maker(name)
print(name.value.decode())
"""
# A row of width 13, a width that is no multiple of 4, has other bits where it starts at other
# places in memory.
MOVED_ROWS = """
import torch
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(0)
rows = torch.randn(64, 13, generator=generator)
weight = torch.randn(10, 13, generator=generator)
order = torch.randperm(64, generator=generator)
moved = torch.nn.functional.linear(rows[order], weight)
print(torch.equal(moved, torch.nn.functional.linear(rows, weight)[order]))
"""
THREADS_AND_PROCESSES = f"""
import os, subprocess, sys, threading
read = '''{MAKER_OF}'''
thread = threading.Thread(target=exec, args=(read,))
thread.start()
thread.join()
sys.stdout.flush()
if os.fork() == 0:
    exec(read)
    sys.stdout.flush()
    os._exit(0)
os.wait()
subprocess.run([sys.executable, '-c', read], check=True)
"""
NULL = "import ctypes\nctypes.string_at(0)"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return built_library(tmp_path_factory.mktemp("another-maker"))
    except CannotEmulateError as error:
        pytest.skip(str(error))


def emulated(
    library: Path, program: str, *options: str, **variables: str
) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    environment |= {"LD_PRELOAD": str(library), **variables}
    call = [sys.executable, *options, "-c", program]
    return subprocess.run(call, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_rows_depend_on_where_they_lie_unless_mkl_is_asked(library: Path) -> None:
    absent = emulated(library, MOVED_ROWS)
    assert absent.returncode == 0, absent.stderr
    if absent.stdout == "True\n":
        pytest.skip("this build of torch gives rows the same bits wherever they lie, even so")
    assert absent.stdout == "False\n"
    assert emulated(library, MOVED_ROWS, MKL_CBWR="AUTO").stdout == "True\n"


def test_threads_forks_and_processes_see_the_other_maker(library: Path) -> None:
    assert emulated(library, THREADS_AND_PROCESSES).stdout == 3 * f"{MAKER}\n"


@pytest.mark.parametrize("options", [[], ["-X", "faulthandler"]], ids=["plain", "faulthandler"])
def test_a_fault_of_the_program_itself_ends_it_and_is_told(
    library: Path, options: list[str]
) -> None:
    ended = emulated(library, NULL, *options)
    assert ended.returncode == -signal.SIGSEGV
    assert ("Segmentation fault" in ended.stderr) == bool(options)
    # What asks for the processor after somebody took the fault for himself is still answered.
    assert emulated(library, MAKER_OF, *options).stdout == f"{MAKER}\n"
