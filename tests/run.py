"""`make test`: the suite, and beside it lint and the federation of real processes, which mostly waits.

Arguments go to the suite's pytest.
"""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

PYTEST = [sys.executable, "-m", "pytest"]
BESIDE = (["make", "lint"], [*PYTEST, "-n", "0", "-m", "deploy", "tests/deploy"])
# The many processes that tests start compile the program once, not each for itself.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}


def main(arguments: list[str]) -> int:
    """Run all, and print what those beside the suite said when all have ended.

    Returns:
        0 if all passed, else the status of one that did not.
    """
    environment = os.environ | ENVIRONMENT
    processes: list[subprocess.Popen] = []

    def interrupt(*_: object) -> None:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)

    # Ctrl-C reaches all from the terminal, and they clean up and end. Set first, so that they do
    # not inherit that it is ignored, as a shell's background jobs do.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, interrupt)
    with ExitStack() as stack:
        logs = [stack.enter_context(tempfile.TemporaryFile()) for _ in BESIDE]
        commands = [([*PYTEST, *arguments], None), *zip(BESIDE, logs, strict=True)]
        for command, output in commands:
            started = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
            processes.append(started)
        statuses = [process.wait() for process in processes]
        for log in logs:
            log.seek(0)
            print(log.read().decode(errors="replace"), flush=True)
    return next((status for status in statuses if status), 0)


if __name__ == "__main__":
    os.chdir(Path(__file__).parents[1])
    sys.exit(main(sys.argv[1:]))
