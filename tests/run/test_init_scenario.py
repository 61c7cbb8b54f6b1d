"""A table of one's own becomes a scenario that runs as written, in simulations only."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pandas
import pytest

from fl_dpbayes.config.scenario import load_scenario
from fl_dpbayes.config.site_file import read_own_site_file, read_site_file
from fl_dpbayes.data.simulation import SITES_FOLDER, plan_sites, prepare_simulation
from tests.asking import refused


@pytest.fixture
def patients(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    count = 120
    table = pandas.DataFrame({
        "id": np.arange(count), "hospital": np.repeat(["St. Mary", "Nord", "Süd", "tiny"], [50, 40, 25, 5]),
        "age": generator.normal(67, 11, count).round(), "sex": generator.choice(["f", "m"], count),
        "creatinine": np.where(np.arange(count) % 9 == 0, np.nan, generator.normal(1.1, 0.3, count)),
        "smoker": generator.choice(["never", None, "now"], count), "diabetes": generator.integers(0, 2, count),
        "note": [f"note {number}" for number in range(count)], "ward": 7,
        "insured": generator.choice(["TRUE", "FALSE"], count),
        "outcome": generator.choice(["died", "lived"], count),
    })  # fmt: skip
    table.to_csv(tmp_path / "patients.csv", index=False, sep=";")
    return tmp_path / "patients.csv"


def given(path: Path, **changes: str) -> list[object]:
    options = {"from": path, "label": "outcome", "site": "hospital"} | changes
    return [item for name, value in options.items() for item in (f"--{name}", value)]


def test_it_runs_as_written_and_says_that_it_looked(patients, command, tmp_path) -> None:
    out = tmp_path / "elsewhere" / "mine.toml"
    out.parent.mkdir()
    status, said, error = command("init", *given(patients), "--out", out)
    assert status == 0, error
    assert f"wrote {out}: 2 hospitals train, 1 held out, 11 features of 6 columns" in said
    source = tomllib.loads(out.read_text())["data"]["source"]
    assert source["path"] == "../patients.csv"
    assert source["class_names"] == ["died", "lived"]
    assert source["features"] == ["age", "creatinine", "diabetes"]
    assert (source["centers"], source["scales"]) == ([70, 1, 0], [10, 0.3, 1])
    assert source["missing"] == {"creatinine": 1}
    assert source["categories"] == {
        "sex": ["f", "m"], "smoker": ["never", "now", "missing"], "insured": ["FALSE", "TRUE"],
    }  # fmt: skip
    text = out.read_text()
    for left_out in ('"id", another whole number', '"note", 120 values of text', '"ward", one value'):
        assert f"# left out: {left_out}" in text
    scenario = load_scenario(str(out), ["training.rounds=1", "training.burn_in=0"])
    assert {name: site.role for name, site in scenario.sites.items()} == {
        "St.-Mary": "train", "Nord": "train", "Sud": "held_out",
    }  # fmt: skip
    assert scenario.privacy.delta == 1e-2
    prepare_simulation(scenario, plan_sites(scenario, None), tmp_path / "run")
    (first, *_) = sorted((tmp_path / "run" / SITES_FOLDER).glob("*.toml"))
    read_site_file(first)
    refused("source.constants is 'from_records'.*set constants = 'public'", read_own_site_file, first)


def test_a_hospital_makes_no_ledger_for_such_constants(patients, command, tmp_path) -> None:
    command("init", *given(patients), "--out", tmp_path / "mine.toml")
    scenario = load_scenario(str(tmp_path / "mine.toml"))
    prepare_simulation(scenario, plan_sites(scenario, None), tmp_path / "run")
    (first, *_) = sorted((tmp_path / "run" / SITES_FOLDER).glob("*.toml"))
    status, _, error = command("site", "ledger", "create", first)
    assert status == 2
    assert "source.constants is 'from_records'" in error


@pytest.mark.parametrize(("changes", "said"), [
    ({"label": "outcom"}, "--label outcom: .* has no such column, its columns are id, hospital"),
    ({"label": "note"}, "--label note: it has 120 values, a class needs 2 to 20"),
    ({"label": "creatinine"}, "--label creatinine: 14 of 120 rows have no value there"),
    ({"site": "id"}, "no site has 20 rows or units"),
    ({"from": "absent.csv"}, "table absent.csv does not exist"),
    ({"out": "patients.csv"}, "patients.csv exists already"),
])  # fmt: skip
def test_a_mistake_is_one_line(patients, command, monkeypatch, changes, said) -> None:
    monkeypatch.chdir(patients.parent)
    status, _, error = command("init", *given(Path("patients.csv"), **changes))
    assert status == 2
    assert re.search(said, error), error
    assert not Path("patients.toml").exists()
