"""An audit's made-up run, which every release of a new hospital reads, is fitted once."""

from pathlib import Path

import pytest

from fl_dpbayes.posterior import HospitalModel
from fl_dpbayes.predict import hospital_posterior


@pytest.fixture(autouse=True)
def fitted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fits: dict[Path, HospitalModel] = {}
    fit = hospital_posterior.load_hospitals

    def hospitals(folder: Path, *run) -> HospitalModel:
        if folder not in fits:
            fits[folder] = fit(folder, *run)
        return fits[folder]

    monkeypatch.setattr(hospital_posterior, "load_hospitals", hospitals)
