"""`make test`: the suite, and beside it the federation of real processes, which mostly waits.

Arguments go to the suite's pytest.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

PYTEST = [sys.executable, "-m", "pytest"]
DEPLOY = ["-n", "0", "-m", "deploy", "tests/deploy"]


def main(arguments: list[str]) -> int:
    """Run both, and print what the federation said when the suite has ended.

    Returns:
        0 if both passed, else the status of one that did not.
    """
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    both: list[subprocess.Popen] = []

    def interrupt(*_: object) -> None:
        for process in both:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)

    # Ctrl-C reaches both from the terminal, and they clean up and end. Set first, so that they do
    # not inherit that it is ignored, as a shell's background jobs do.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, interrupt)
    with tempfile.TemporaryFile() as said:
        for asked, output in ((arguments, None), (DEPLOY, said)):
            started = subprocess.Popen(
                [*PYTEST, *asked], env=environment, stdout=output, stderr=output
            )
            both.append(started)
        statuses = [process.wait() for process in both]
        said.seek(0)
        print(said.read().decode(errors="replace"), flush=True)
    return next((status for status in statuses if status), 0)


if __name__ == "__main__":
    os.chdir(Path(__file__).parents[1])
    sys.exit(main(sys.argv[1:]))
