"""What `init` finds in a table, what it says of it, and what to type then."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pandas
import pytest

from fl_dpbayes.config.scenario import load_scenario
from fl_dpbayes.data.records import load_unscaled
from fl_dpbayes.data.simulation import plan_sites
from tests.asking import refused

ROWS = 200
AGES = np.random.default_rng(0).normal(60, 10, ROWS).round(1)
# Two frequent words, and forty that stand in two rows each.
WARDS = ["east"] * 70 + ["west"] * 50 + [f"ward {number // 2}" for number in range(80)]
DAYS = pandas.date_range("2019-03-05", periods=ROWS)


def written_table(folder: Path, **columns: object) -> Path:
    """Write a table of two hospitals; 30 of 200 patients died."""
    table = pandas.DataFrame(
        {
            "hospital": ["north", "south"] * (ROWS // 2),
            "age": AGES,
            "outcome": ["died"] * 30 + ["lived"] * (ROWS - 30),
        }
    )
    path = folder / "patients.csv"
    table.assign(**columns).to_csv(path, index=False)
    return path


def words_for(path: Path, *options: object) -> list[object]:
    words = ["init", "--from", path, "--label", "outcome", "--site", "hospital"]
    return [*words, "--out", path.with_suffix(".toml"), *options]


def line_of(column: str, output: str) -> str:
    """The line that a column has, with single blanks."""
    lines = [" ".join(line.split()) for line in output.splitlines()]
    (line,) = [line for line in lines if line.startswith(f"{column} ")]
    return line


# The cells of a column `x`, the line that is told of it, and its keys in the scenario.
COLUMNS = {
    "numbers": (
        AGES + 20,
        "x number center 80, scale 10: the records' median and standard deviation, rounded",
        {"features": ["age", "x"], "centers": [60, 80], "scales": [10, 10]},
    ),
    "numbers with gaps": (
        np.where(np.arange(ROWS) % 4 == 0, np.nan, AGES),
        "x number center 60, scale 10: the records' median and standard deviation, rounded; 50 of "
        "200 are missing: 60 stands in, and one more feature says so",
        {"features": ["age", "x"], "missing": {"x": 60}},
    ),
    "0 and 1": (
        [0, 1] * (ROWS // 2),
        "x number 0 or 1, taken as it is",
        {"centers": [60, 0], "scales": [10, 1]},
    ),
    "words": (
        ["f", "m"] * (ROWS // 2),
        "x words one feature for each of f, m",
        {"categories": {"x": ["f", "m"]}},
    ),
    "many words": (
        WARDS,
        "x words one feature for each of east, west; the other 40 values, 40% of rows, become "
        "'other': edit both in the file",
        {"categories": {"x": ["east", "west"]}, "others": {"x": "other"}},
    ),
    "many words with gaps": (
        [None, *WARDS[1:]],
        "x words one feature for each of east, west, missing; the other 40 values, 40% of rows, "
        "become 'other': edit both in the file",
        {"categories": {"x": ["east", "west", "missing"]}, "others": {"x": "other"}},
    ),
    "rare words": (
        [f"note {number}" for number in range(ROWS)],
        "x left out 200 values of text: group them to 10 or fewer to use it",
        {"features": ["age"]},
    ),
    "mixed decimals": (
        [
            f"{age}" if number % 50 else f"{age}".replace(".", ",")
            for number, age in enumerate(AGES)
        ],
        "x left out text among numbers: write decimals with a point, and leave the cell of a "
        f"missing value empty; 4 of 200 are no number, as '{str(AGES[0]).replace('.', ',')}' in "
        "line 2",
        {"features": ["age"]},
    ),
    "two mixed decimals": (
        ["1.5", "1,5"] * (ROWS // 2),
        "x left out text among numbers: write decimals with a point, and leave the cell of a "
        "missing value empty; 100 of 200 are no number, as '1,5' in line 3",
        {"features": ["age"]},
    ),
    "below a limit": (
        ["<0.2", *map(str, AGES[1:])],
        "x left out text among numbers: write decimals with a point, and leave the cell of a "
        "missing value empty; 1 of 200 are no number, as '<0.2' in line 2",
        {"features": ["age"]},
    ),
    "stages": (
        ["1", "2", "3+", "4"] * (ROWS // 4),
        "x words one feature for each of 1, 2, 3+, 4",
        {"categories": {"x": ["1", "2", "3+", "4"]}},
    ),
    "dates": (
        DAYS.strftime("%d.%m.%Y"),
        "x left out dates: add --days-since x=2020-01-01 with a day that is known without these "
        "records, and the days since then are used",
        {"features": ["age"]},
    ),
    "dates of two readings": (
        DAYS.strftime("%d/%m/%Y"),
        "x left out dates: write them as 2020-12-31 or 31.12.2020, then add --days-since "
        "x=2020-01-01 with a day that is known without these records, and the days since then are "
        "used",
        {"features": ["age"]},
    ),
    "few dates": (
        ["03/01/2001", "03/31/2001"] * (ROWS // 2),
        "x left out dates: write them as 2020-12-31 or 31.12.2020, then add --days-since "
        "x=2020-01-01 with a day that is known without these records, and the days since then are "
        "used",
        {"features": ["age"]},
    ),
    "constant": ([7] * ROWS, "x left out one value in every row", {"features": ["age"]}),
    "row numbers": (
        range(ROWS),
        "x left out another whole number in every row: add it if it is a measurement",
        {"features": ["age"]},
    ),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_each_column_is_explained_and_the_scenario_loads(tmp_path, command, case: str) -> None:
    cells, line, keys = COLUMNS[case]
    path = written_table(tmp_path, x=cells)
    status, output, error = command(*words_for(path, "--explain"))
    assert status == 0, error
    assert line_of("x", output) == line
    source = tomllib.loads(path.with_suffix(".toml").read_text())["data"]["source"]
    assert {key: source.get(key) for key in keys} == keys
    assert source["constants"] == "from_records"
    records = load_unscaled(load_scenario(str(path.with_suffix(".toml"))).data.source, "train")
    assert len(records.features) == ROWS


def test_lines_are_aligned_and_only_what_needs_a_look_is_told_unasked(tmp_path, command) -> None:
    path = written_table(tmp_path, ward=WARDS, admitted=DAYS)
    status, output, error = command(*words_for(path, "--explain"))
    assert status == 0, error
    lines = output.splitlines()[:-1]
    assert [line[:21].split() for line in lines] == [
        ["outcome", "label"],
        ["hospital", "site"],
        ["(no", "column)", "unit"],
        ["age", "number"],
        ["ward", "words"],
        ["admitted", "left", "out"],
    ]
    assert {len(line) - len(line[23:].lstrip()) for line in lines} == {23}
    path.with_suffix(".toml").unlink()
    told = command(*words_for(path))[1].splitlines()[:-1]
    assert told == [line for line in lines if not line.startswith("age")]
    assert lines[0].endswith(
        "event: died, 15.0% of 200 rows (the rarer of the two; the other class:  --event lived)"
    )


def test_the_event_that_a_person_chose_comes_last(tmp_path, command) -> None:
    path = written_table(tmp_path)
    status, output, error = command(*words_for(path, "--event", "lived"))
    assert status == 0, error
    assert "event: lived, 85.0% of 200 rows (as chosen" in output
    text = path.with_suffix(".toml").read_text()
    assert '# The event is "lived" (as chosen): risks are of it.\n' in text
    assert 'class_names = ["died", "lived"]   # the event comes last' in text
    # How often it happens is a figure of the records, and the file may be sent to others.
    assert "85" not in text


def test_dates_become_days_since_a_day_that_a_person_names(tmp_path, command) -> None:
    path = written_table(tmp_path, admitted=DAYS)
    status, output, error = command(
        *words_for(path, "--days-since", "admitted=2019-01-01", "--explain")
    )
    assert status == 0, error
    assert line_of("admitted", output).startswith("admitted days since 2019-01-01; center 160, ")
    scenario = load_scenario(str(path.with_suffix(".toml")))
    features = load_unscaled(scenario.data.source, "train").features
    assert features[[0, 199], 1].tolist() == [
        pytest.approx((63 - 160) / 60),
        pytest.approx((262 - 160) / 60),
    ]


# Patients by row, further options, and what is said.
PATIENTS = {
    "named": (
        {"case": [f"P{number // 2}" for number in range(ROWS)]},
        ["--unit", "case"],
        "case: 100 of 100 patients stand at several hospitals, for example 'P0' at north, south: "
        "privacy is counted at each hospital apart, so such a patient may lose epsilon at each, up "
        "to 2 times.",
    ),
    "guessed": (
        {"pat_id": [f"P{number // 2}" if number < 6 else number for number in range(ROWS)]},
        [],
        "pat_id: 3 of 197 patients stand at several hospitals, for example 'P0'",
    ),
}


@pytest.mark.parametrize("case", PATIENTS)
def test_patients_at_several_hospitals_are_refused_unless_that_is_allowed(
    tmp_path, command, refusal, case: str
) -> None:
    columns, options, said = PATIENTS[case]
    path = written_table(tmp_path, **columns)
    error = refusal(*words_for(path, *options))
    assert said in error
    assert error.endswith(
        "if other people have the same name there, or you accept that loss, add  "
        "--allow-shared-units\n"
    )
    status, output, error = command(*words_for(path, *options, "--allow-shared-units"))
    assert status == 0, error
    assert "for example 'P0' at north, south: privacy is counted at each hospital apart" in output
    text = path.with_suffix(".toml").read_text()
    assert "# Some patients stand at several hospitals: each hospital spends an epsilon" in text
    assert "P0" not in text
    path_of_scenario = path.with_suffix(".toml")
    scenario = load_scenario(str(path_of_scenario))
    plan = plan_sites(scenario, None)
    assert [each.kind for each in plan.warnings if each.kind != "magnitude"] == ["shared-units"]
    # Whoever writes a scenario by hand is asked the same, in the same words.
    unasked = scenario.model_copy(
        update={"data": scenario.data.model_copy(update={"allow_shared_units": False})}
    )
    told = said.replace("in all", "").partition(":")[2]
    refused(f"{re.escape(told)}.*--set data.allow_shared_units=true", plan_sites, unasked, None)


@pytest.mark.parametrize("name", ["patient", "Patient_ID", "PatientNr", "pat", "MRN", "id-subject"])
def test_patients_are_guessed_by_the_name_of_their_column(tmp_path, command, name: str) -> None:
    path = written_table(
        tmp_path, **{name: [number // 4 * 2 + number % 2 for number in range(ROWS)]}
    )
    status, output, error = command(*words_for(path))
    assert status == 0, error
    assert line_of(name, output) == (
        f"{name} unit 100 patients in 200 rows, guessed by its name; another one: --unit COLUMN"
    )
    assert load_scenario(str(path.with_suffix(".toml"))).data.source.unit_column == name


@pytest.mark.parametrize("name", ["patient_age", "patterns", "subjective", "id"])
def test_other_names_are_no_patients(tmp_path, command, name: str) -> None:
    path = written_table(tmp_path, **{name: AGES})
    output = command(*words_for(path, "--explain"))[1]
    assert "unit each row is another patient" in line_of("(no column)", output)
    assert line_of(name, output).startswith(f"{name} number")


def test_a_table_without_a_feature_is_told_why_each_column_is_none(tmp_path, refusal) -> None:
    path = tmp_path / "patients.csv"
    rows = [f"{'ns'[row % 2]},{'ab'[row % 3 == 0]},{row},{row % 7}" for row in range(ROWS)]
    path.write_text("\n".join(["hospital,outcome,patient,pat_id", *rows]))
    assert "no column is left to be a feature: 'pat_id': patients by its" in refusal(
        *words_for(path)
    )
    written_table(tmp_path, age=DAYS)
    assert "'age': dates: add  --days-since age=2020-01-01" in refusal(*words_for(path))


def test_many_words_alone_are_a_feature(tmp_path, command) -> None:
    path = written_table(tmp_path, age=WARDS)
    status, output, error = command(*words_for(path))
    assert status == 0, error
    assert "40 values, 40% of rows, become 'other'" in line_of("age", output)


def test_patients_that_cannot_be_units_are_no_feature_either(tmp_path, command) -> None:
    path = written_table(tmp_path, patient=[None, *range(ROWS - 1)])
    output = command(*words_for(path))[1]
    assert line_of("patient", output).startswith("patient left out patients by its name")


MISTAKES = [
    (["--days-since", "admited=2020-01-01"], "no such column is free for that: did you mean 'adm"),
    (
        ["--days-since", "admitted"],
        "--days-since is 'admitted': write COLUMN=DAY, as admitted=2020",
    ),
    (["--days-since", "admitted=1.1.2020"], "write COLUMN=DAY, as admitted=2020-01-01"),
    (
        ["--days-since", "age=2020-01-01"],
        f"line 2 has '{AGES[0]}', which is no date: write dates as 2020-12-31 or 31.12.2020",
    ),
    (
        ["--event", "dead"],
        "no class of 'outcome' is called so: write  --event died  or  --event lived",
    ),
    (["--unit", "patents"], "--unit is 'patents': "),
]


@pytest.mark.parametrize(("options", "said"), MISTAKES)
def test_a_mistake_is_one_line_that_says_what_to_type(tmp_path, refusal, options, said) -> None:
    path = written_table(tmp_path, admitted=DAYS)
    error = refusal(*words_for(path, *options))
    assert said in error
    assert error.count("\n") == 1
    assert not path.with_suffix(".toml").exists()


def test_a_label_that_is_not_named_lists_the_columns(tmp_path, refusal) -> None:
    error = refusal("init", "--from", written_table(tmp_path), "--site", "hospital")
    assert "what is to be predicted; its columns are hospital, age, outcome\n" in error


def test_two_columns_of_one_name_are_refused(tmp_path, refusal) -> None:
    path = written_table(tmp_path, age2=AGES)
    path.write_text(path.read_text().replace("age2", "age", 1))
    said = "columns 2 and 4 of the first line have the same name, 'age': rename or remove one"
    assert said in refusal(*words_for(path))


def test_hospitals_that_are_too_small_are_told(tmp_path, command) -> None:
    hospitals = ["north", "south"] * 90 + ["east"] * 15 + ["west"] * 5
    output = command(*words_for(written_table(tmp_path, hospital=hospitals)))[1]
    assert line_of("hospital", output) == (
        "hospital site 2 hospitals; 20 of 200 rows are left out, as their 2 hospitals have fewer "
        "than 20 each: join small ones under one name"
    )
