"""Commands and cells of studies that run in this process."""

import sys

import pytest

from fl_dpbayes import cli
from fl_dpbayes.run.study.cell import run_cell


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """Run `fl-dpbayes ...`: its exit status, and what it printed to the two streams."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fl-dpbayes", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0), *capsys.readouterr()

    return run


@pytest.fixture
def refusal(command):
    """What a command says that a user's mistake ends."""

    def said(*arguments: object) -> str:
        status, _, error = command(*arguments)
        assert (status, "Traceback" in error) == (2, False)
        return error

    return said


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run cells in this process, and note which."""
    ran: list[str] = []
    monkeypatch.setattr(
        "fl_dpbayes.run.study.ray_pool.run_on_ray",
        lambda jobs, *_: (ran.append(job.cell.title) or run_cell(job) for job in jobs),
    )
    return ran
