"""Small federations and nodes of hospitals, imported where a test asks for one: torch and Flower take seconds."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("tests", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("tests")


@pytest.fixture
def federation(tmp_path: Path):
    from tests.federations import federations_in

    with federations_in(tmp_path) as make:
        yield make


@pytest.fixture(scope="module")
def federations(tmp_path_factory: pytest.TempPathFactory):
    """For runs that several tests of a module look at.

    Use up no run with another fixture while one is made.
    """
    from tests.federations import federations_in

    with federations_in(tmp_path_factory.mktemp("federations")) as make:
        yield make


@pytest.fixture(scope="session")
def hospital_run(tmp_path_factory: pytest.TempPathFactory):
    """A run with a posterior over hospitals; whoever changes its folder takes a copy."""
    from tests.hospitals import run_of_hospitals

    return run_of_hospitals(tmp_path_factory.mktemp("hospitals"))


@pytest.fixture
def table_site(tmp_path: Path):
    """Make nodes of hospitals, each in a folder of its own."""
    from tests.federations import TableSite, task_identity

    with task_identity():
        yield lambda name="site": TableSite(tmp_path / name)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """Run `fl-dpbayes ...`: its exit status, and what it printed to the two streams."""
    from fl_dpbayes import cli

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
def data_folder() -> Path:
    """The data folder, where there is one."""
    folder = os.environ.get("FL_DPBAYES_DATA")
    if not folder:
        pytest.skip(
            "FL_DPBAYES_DATA is not set: MNIST, PneumoniaMNIST and heart disease are not at hand"
        )
    return Path(folder)
