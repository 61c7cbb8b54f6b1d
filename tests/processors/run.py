"""Runs tests of rows, passes, features and amplification again under other settings: `make test-processors`.

`python -m tests.processors.run --only COMPATIBLE` runs the settings whose names contain a text,
`--list` names them.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.processors.another_maker import CannotEmulateError, built_library
from tests.processors.settings import LEFT_OUT, Setting, settings


@dataclass(frozen=True)
class Result:
    """How the tests ended under a setting.

    `output` is what pytest printed, or why they were not run.
    """

    setting: Setting
    status: int | None
    seconds: float
    output: str


def run(setting: Setting, library: Path | str) -> Result:
    """Run the tests under a setting, in a process of its own.

    Args:
        setting: What is set.
        library: What makes another maker's processor of this one, or why there is none.
    """
    environment = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    environment |= setting.variables | {"EXPECTED_MKL": setting.mkl}
    if setting.another_maker:
        if isinstance(library, str):
            return Result(setting, None, 0.0, library)
        environment["LD_PRELOAD"] = str(library)
    plugins = [word for plugin in setting.plugins for word in ("-p", plugin)]
    call = [sys.executable, "-m", "pytest", *plugins, "-n", "0", "-q", "-p", "no:cacheprovider"]
    call += ["-m", setting.marks, "--deselect", LEFT_OUT, *setting.tests]
    begun = time.perf_counter()
    ended = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)
    return Result(
        setting, ended.returncode, time.perf_counter() - begun, ended.stdout + ended.stderr
    )


def told(result: Result) -> None:
    """Print one line, and all that pytest said where a test failed."""
    if result.status is None:
        print(f"{result.setting.name}: not run, {result.output}", flush=True)
        return
    counts = [line for line in result.output.splitlines() if " passed" in line or " failed" in line]
    print(f"{result.setting.name}: {counts[-1] if counts else 'no test ended'}", flush=True)
    if result.status:
        print(result.output, flush=True)


def main() -> int:
    """Run what was asked for; return 1 if a test failed under any setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", default="", help="settings whose names contain this; default: all"
    )
    parser.add_argument("--list", action="store_true", help="name the settings and run nothing")
    asked = parser.parse_args()
    chosen = [setting for setting in settings() if asked.only.lower() in setting.name.lower()]
    if asked.list or not chosen:
        print("\n".join(setting.name for setting in (chosen or settings())))
        return 0 if chosen else 2
    begun = time.perf_counter()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        library: Path | str
        try:
            library = built_library(Path(folder))
        except CannotEmulateError as error:
            library = str(error)
        for threads in sorted({setting.threads for setting in chosen}):
            # As many at a time as there are cores for.
            with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // threads)) as pool:
                alike = [setting for setting in chosen if setting.threads == threads]
                for result in pool.map(partial(run, library=library), alike):
                    told(result)
                    failed += bool(result.status)
    print(f"{len(chosen)} settings in {time.perf_counter() - begun:.0f} s, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
