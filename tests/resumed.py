"""A run that was cut off, gone on with or damaged, beside one that was not."""

from pathlib import Path

from pandas import read_csv
from pandas.testing import assert_frame_equal

from fl_dpbayes.config.site_file import read_site_file
from fl_dpbayes.hospital.ledger import ledger_of
from fl_dpbayes.privacy.ledger.state import PARTS


def spent(run: Path) -> dict[str, list[tuple[int, float, str]]]:
    """Steps, epsilon and method of each part of each site, by ledgers that are sound."""
    found = {}
    for path in sorted((run / "sites").glob("*.toml")):
        settings = read_site_file(path).ledger
        if settings is not None and settings.path.is_file():
            with ledger_of(path) as ledger:
                assert ledger.verify() == []
                found[path.stem] = [
                    (part.steps, part.epsilon, part.method) for part in map(ledger.spent, PARTS)
                ]
    assert found
    return found


def assert_same_run(folder: Path, unbroken: Path) -> None:
    for name in ("posterior.safetensors", "privacy.csv", "calibration.csv"):
        assert (folder / name).read_bytes() == (unbroken / name).read_bytes(), name
    assert spent(folder) == spent(unbroken)
    assert_frame_equal(
        *(read_csv(run / "rounds.csv").drop(columns="seconds") for run in (folder, unbroken))
    )
