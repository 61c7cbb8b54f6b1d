"""A table of one's own becomes a scenario that runs as written, in simulations only."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pandas
import pytest
from PIL import Image

from fl_dpbayes.commands.column_features import proposed_features
from fl_dpbayes.config.scenario import load_scenario
from fl_dpbayes.config.site_file import read_site_file
from fl_dpbayes.data.simulation import SITES_FOLDER, plan_sites, prepare_simulation


@pytest.fixture
def patients(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    count = 120
    table = pandas.DataFrame(
        {
            "id": np.arange(count),
            "hospital": np.repeat(["St. Mary", "Nord", "Süd", "tiny"], [50, 40, 25, 5]),
            "age": generator.normal(67, 11, count).round(),
            "sex": generator.choice(["f", "m"], count),
            "creatinine": np.where(
                np.arange(count) % 9 == 0, np.nan, generator.normal(1.1, 0.3, count)
            ),
            "smoker": generator.choice(["never", None, "now"], count),
            "diabetes": generator.integers(0, 2, count),
            "note": [f"note {number}" for number in range(count)],
            "ward": 7,
            "insured": generator.choice(["TRUE", "FALSE"], count),
            "outcome": generator.choice(["died", "lived"], count),
        }
    )
    table.to_csv(tmp_path / "patients.csv", index=False, sep=";")
    return tmp_path / "patients.csv"


def given(path: Path, **changes: str) -> list[object]:
    options = {"from": path, "label": "outcome", "site": "hospital"} | changes
    return [item for name, value in options.items() for item in (f"--{name}", value)]


def test_it_runs_as_written_and_says_that_it_looked(patients, command, refusal, tmp_path) -> None:
    out = tmp_path / "elsewhere" / "mine.toml"
    out.parent.mkdir()
    status, said, error = command("init", *given(patients), "--out", out)
    assert status == 0, error
    assert f"wrote {out}: 2 hospitals train, 1 held out, 11 features of 6 columns" in said
    source = tomllib.loads(out.read_text())["data"]["source"]
    assert (source["path"], source["class_names"]) == ("../patients.csv", ["died", "lived"])
    assert source["features"] == ["age", "creatinine", "diabetes"]
    assert (source["centers"], source["scales"]) == ([70, 1, 0], [10, 0.3, 1])
    assert source["missing"] == {"creatinine": 1}
    words = {"sex": ["f", "m"], "smoker": ["never", "now", "missing"], "insured": ["FALSE", "TRUE"]}
    assert source["categories"] == words
    text = out.read_text()
    for left_out in (
        '"id", another whole number',
        '"note", 120 values of text',
        '"ward", one value',
    ):
        assert f"# left out: {left_out}" in text
    scenario = load_scenario(str(out), ["training.rounds=1", "training.burn_in=0"])
    roles = {name: site.role for name, site in scenario.sites.items()}
    assert roles == {"St.-Mary": "train", "Nord": "train", "Sud": "held_out"}
    assert scenario.privacy.delta == 1e-2
    prepare_simulation(scenario, plan_sites(scenario, None), tmp_path / "run")
    (first, *_) = sorted((tmp_path / "run" / SITES_FOLDER).glob("*.toml"))
    read_site_file(first)
    said = refusal("site", "ledger", "create", first)
    assert re.search("source.constants is 'from_records'.*set constants = 'public'", said)


def test_center_is_within_a_scale_of_the_median() -> None:
    found = proposed_features(
        pandas.DataFrame({"pressure": [118, 139, 139, 165], "dose": [0.52, 0.57, 0.48, 0.55]})
    )
    assert found.numbers == {"pressure": (140, 20), "dose": (pytest.approx(0.54), 0.04)}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"label": "outcom"},
            "--label is 'outcom': .* has no such column: did you mean 'outcome'",
        ),
        ({"site": "ward 7"}, "--site is 'ward 7': .* no such column: did you mean 'ward'"),
        ({"site": "clinic"}, "no such column: its columns are id, hospital, .* insured and 1 more"),
        (
            {"event": "dead"},
            "no class of 'outcome' is called so: write  --event died  or  --event lived",
        ),
        ({"label": "smoker", "event": "now"}, "--label is 'smoker': .* rows have no value"),
        ({"label": "note"}, "--label note: it has 120 values, a class needs 2 to 20"),
        ({"label": "creatinine"}, "--label is 'creatinine': 14 of 120 rows have no value"),
        (
            {"site": "id"},
            "none of 120 hospitals has 20 patients, .* name another column by --site",
        ),
        ({"site": "outcome"}, "--label and --site are both 'outcome': name another column"),
        ({"from": "absent.csv"}, "table absent.csv does not exist"),
        ({"out": "patients.csv"}, "patients.csv exists already"),
    ],
)
def test_a_mistake_is_one_line(patients, refusal, monkeypatch, changes, said) -> None:
    monkeypatch.chdir(patients.parent)
    error = refusal("init", *given(Path("patients.csv"), **changes))
    assert re.search(said, error), error
    assert not Path("patients.toml").exists()


def test_files_of_one_hospital_each_and_dates(patients, command, tmp_path) -> None:
    table = pandas.read_csv(patients, sep=";")
    table["admitted"] = [f"{1 + row % 28}.{1 + row % 12}.2020" for row in range(len(table))]
    paths = [tmp_path / f"{name}.csv" for name, rows in table.groupby("hospital") if len(rows) > 20]
    for path in paths:
        table[table["hospital"] == path.stem].drop(columns="hospital").to_csv(path, index=False)
    words = [word for path in paths for word in ("--from", path)]
    words += ["--label", "outcome", "--site", "file", "--out", tmp_path / "all.toml"]
    status, said, error = command("init", *words)
    assert status == 0, error
    assert "4 columns left out; read it" in said
    assert (
        '# left out: "admitted", dates: add  --days-since admitted=2020-01-01'
        in (tmp_path / "all.toml").read_text()
    )
    scenario = load_scenario(str(tmp_path / "all.toml"))
    assert scenario.data.source.path == tuple(paths)
    assert set(scenario.sites) == {"Nord", "St.-Mary", "Sud"}
    assert len(plan_sites(scenario, None).sites) == 3


def test_a_folder_of_images_becomes_a_scenario_with_patients_and_sites_found_in_paths(
    command, tmp_path
) -> None:
    for number in range(180):
        folder = (
            tmp_path
            / "films"
            / ("sick" if number % 2 else "well")
            / ("North Clinic", "Süd", "west")[number % 3]
        )
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), number).save(folder / f"P{number // 6}_{number}.png")
    words = ["init", "--from", tmp_path / "films", "--site", "^([^/]+)/"]
    out = tmp_path / "mine.toml"
    words_of_patients = [*words, "--patient", "/(P[0-9]+)_", "--out", out]
    assert (
        "--patient /(P[0-9]+)_: 30 of 30 patients stand at several hospitals, for example 'P0' at "
        "North Clinic, Süd, west: privacy is counted at each" in command(*words_of_patients)[2]
    )
    status, said, error = command(*words_of_patients, "--allow-shared-units")
    assert status == 0, error
    assert "2 hospitals train, 1 held out, 180 images of 2 classes" in said
    scenario = load_scenario(str(out))
    assert set(scenario.sites) == {"North-Clinic", "Sud", "west"}
    assert scenario.data.source.names_of_classes == ("sick", "well")
    assert (
        sum(site.train_units + site.test_units for site in plan_sites(scenario, None).sites) == 90
    )
    assert (
        "no regular expression"
        in command("init", *words[1:3], "--site", "(", "--out", tmp_path / "b.toml")[2]
    )
    assert (
        "names no site: site_pattern"
        in command(*words[:4], "^(X.*)/", "--out", tmp_path / "b.toml")[2]
    )
    assert (
        "its sub-folders are the labels"
        in command(*words, "--label", "y", "--out", tmp_path / "b.toml")[2]
    )
