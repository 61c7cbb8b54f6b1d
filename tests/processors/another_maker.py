"""Builds the library that makes a program take this processor for one of another maker, or says why it cannot.

`python -m tests.processors.another_maker FOLDER` builds it there and prints its path, for
LD_PRELOAD.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("another_maker.c")
MAKER = "AuthenticAMD"
CANNOT = 77


class CannotEmulateError(Exception):
    """Here no program can be made to take the processor for another."""


def built_library(folder: Path) -> Path:
    """Compile the library into a folder, and try it.

    Raises:
        CannotEmulateError: With the reason, if this machine has no compiler, its processor is of that maker already, or
            it cannot let CPUID fault.
    """
    cpuinfo = Path("/proc/cpuinfo")
    processor = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    if MAKER in processor:
        raise CannotEmulateError(f"this processor is one of {MAKER} already")
    if "GenuineIntel" not in processor:
        raise CannotEmulateError(
            "only a processor of Intel under Linux is made to look like another"
        )
    compiler = shutil.which("cc")
    if compiler is None:
        raise CannotEmulateError("there is no C compiler (cc)")
    library = folder / "another_maker.so"
    call = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(call, check=True)
    tried = subprocess.run(["true"], env=os.environ | {"LD_PRELOAD": str(library)}, check=False)
    if tried.returncode == CANNOT:
        raise CannotEmulateError("this kernel or processor cannot let CPUID fault")
    if tried.returncode != 0:
        raise CannotEmulateError(f"a program under it ends with status {tried.returncode}")
    return library


if __name__ == "__main__":
    print(built_library(Path(sys.argv[1])))
