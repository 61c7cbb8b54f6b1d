"""Pieces of code in forks of one interpreter, which has imported what takes seconds."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DRIVER = """
import json, os, sys, tempfile, traceback

exec(sys.argv[1])
ended = {}
for name, code in json.loads(sys.argv[2]).items():
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            status = 0
            try:
                exec(code, {"__name__": "__main__"})
            except SystemExit as end:
                status = end.code or 0
            except BaseException:
                traceback.print_exc()
                status = 1
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        errors.seek(0)
        ended[name] = {"status": status, "output": output.read(), "errors": errors.read()}
print(json.dumps(ended))
"""


@dataclass(frozen=True)
class Ended:
    """How a piece of code ended, and what it printed to its two streams."""

    status: int
    output: str
    errors: str


def run_forked(
    imports: str, codes: Mapping[str, str], environment: Mapping[str, str] | None = None
) -> dict[str, Ended]:
    """Run each piece of code in a process that has run `imports`, in their order."""
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, imports, json.dumps(dict(codes))],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout.splitlines()[-1])
    return {name: Ended(**each) for name, each in ended.items()}
