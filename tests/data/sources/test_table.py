import numpy as np
import pandas
import pytest
from pydantic import ValidationError

from fl_dpbayes.config.sources import Table
from fl_dpbayes.data.records import load_unscaled
from tests.asking import refused


@pytest.fixture
def table() -> pandas.DataFrame:
    columns = {
        "patient": ["007", "7", "007", "b"],
        "age": [50, 61, 50, 33],
        "bp": [120.0, 130.5, 118.0, 99.0],
        "sick": [0, 1, 0, 2],
    }
    return pandas.DataFrame(columns)


def source(path, **changes) -> Table:
    keys = {"path": path, "label": "sick", "classes": 3, "features": ("age", "bp")}
    return Table(**(keys | changes))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_features_are_scaled_by_the_stated_constants(tmp_path, table, suffix):
    path = tmp_path / f"t.{suffix}"
    table.to_csv(path, index=False) if suffix == "csv" else table.to_parquet(path)
    spec = source(path, centers=(50, 120), scales=(10, 20), unit_column="patient")
    records = load_unscaled(spec, "train").scaled()
    np.testing.assert_allclose(
        records.features, [[0, 0], [1.1, 0.525], [0, -0.1], [-1.7, -1.05]], atol=1e-6
    )
    assert records.features.dtype == np.float32
    assert records.labels.tolist() == [0, 1, 0, 2]
    # "007" and "7" are two patients: a unit's name is text, not a number.
    assert records.units.tolist() == ["007", "7", "007", "b"]
    assert records.unit == spec.unit == "patient"
    assert records.task == spec.task


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("bp", [120, None, 118, 99], "line 3, column 'bp': missing"),
        ("age", [50, 61, "old", 33], "line 4, column 'age'"),
        ("age", [50, 61, float("inf"), 33], "line 4, column 'age'"),
        ("sick", [0, 1, 0.5, 2], "line 4, column 'sick'"),
        ("sick", [0, 1, 0, 3], "line 5, column 'sick': no whole number from 0 to 2"),
        ("patient", ["a", None, "c", "d"], "line 3, column 'patient': missing"),
    ],
)
def test_a_bad_value_names_its_column(tmp_path, table, column, values, message):
    table[column] = values
    table.to_csv(tmp_path / "t.csv", index=False)
    refused(message, load_unscaled, source(tmp_path / "t.csv", unit_column="patient"), "train")


@pytest.mark.parametrize("missing", ["age", "sick", "patient"])
def test_an_absent_column_is_named(tmp_path, table, missing):
    table.drop(columns=missing).to_csv(tmp_path / "t.csv", index=False)
    whole = source(tmp_path / "t.csv", unit_column="patient")
    refused(f"has no column '{missing}': its columns are .*bp", load_unscaled, whole, "train")
    ward = source(tmp_path / "t.csv", features=("bp",), label="bp", group_columns=("ward",))
    refused("has no column 'ward'", load_unscaled, ward, "train")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", None, "does not exist"),
        ("t.xlsx", "", r"must end in \.csv or \.parquet"),
        ("t.csv", "", "is empty: give a first line"),
        ("t.parquet", "PAR?", "cannot be read"),
        ("t.csv", "age,bp,sick\n1,2,0\n1,2,0,5\n", "line 3 has 4 cells, and those before 3"),
        ("t.csv", "age,bp,sick\n", "has no rows"),
    ],
)
def test_an_unreadable_table_is_refused(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    refused(message, load_unscaled, source(tmp_path / name), "train")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_group_columns_are_read_as_text(tmp_path, table, suffix):
    table["sex"] = ["f", None, "m", "f"]
    table["ward"] = (
        pandas.Series([1, 2, None, 1], dtype="float64")
        if suffix == "parquet"
        else ["01", "2", None, "01"]
    )
    path = tmp_path / f"t.{suffix}"
    table.to_csv(path, index=False) if suffix == "csv" else table.to_parquet(path)
    records = load_unscaled(source(path, group_columns=("sex", "ward", "age")), "train").scaled()
    one = "1" if suffix == "parquet" else "01"
    assert {name: " ".join(values) for name, values in records.groups.items()} == {
        "sex": "f missing m f",
        "ward": f"{one} 2 missing {one}",
        "age": "50 61 50 33",
    }
    # A column may be a feature and a group.
    np.testing.assert_array_equal(records.features[:, 0], [50, 61, 50, 33])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"age": range(11)}, r"column 'age' of group_columns has 11 values: at most 10"),
        ({"ward": ["a" * 61] * 11}, "give 1 to 60 printable"),
        ({"ward": ["a\u202eb"] * 11}, "give 1 to 60 printable"),
        (
            {"a": [*range(9), 0, 0], "b": [*range(9), 0, 0], "c": [*range(9), 0, 0]},
            "27 values in all, at most 20",
        ),
    ],
)
def test_group_columns_of_too_many_or_odd_values_are_refused(tmp_path, columns, message):
    frame = pandas.DataFrame(
        {"x": range(11), "sick": 0} | {name: list(values) for name, values in columns.items()}
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    refused(
        message,
        load_unscaled,
        source(tmp_path / "t.csv", features=("x",), group_columns=tuple(columns)),
        "train",
    )


WORDS = {
    "ward": ["St. Mary", "Nord", "Nord", "St. Mary"],
    "smoker": ["never", "former", "never", "missing"],
    "outcome": ["alive", "dead", "alive", "alive"],
}


def test_words_become_classes_sites_and_categories(tmp_path, table):
    table = table.assign(**WORDS, bp=[120.0, None, 118.0, 99.0])
    table.to_csv(tmp_path / "t.csv", index=False)
    spec = source(
        tmp_path / "t.csv",
        label="outcome",
        classes=2,
        class_names=("dead", "alive"),
        site_column="ward",
        missing={"bp": 110.0},
        categories={"smoker": ("never", "former", "missing")},
        centers=(50, 100),
        scales=(10, 10),
    )
    records = load_unscaled(spec, "train").scaled()
    assert records.labels.tolist() == [1, 0, 1, 1]
    assert list(records.natural_site) == ["St.-Mary", "Nord", "Nord", "St.-Mary"]
    names = ("age", "bp", "bp missing", "smoker=never", "smoker=former", "smoker=missing")
    assert records.feature_names == spec.feature_names == names
    expected = [
        [0, 2, 0, 1, 0, 0],
        [1.1, 1, 1, 0, 1, 0],
        [0, 1.8, 0, 1, 0, 0],
        [-1.7, -0.1, 0, 0, 0, 1],
    ]
    np.testing.assert_allclose(records.features, expected, atol=1e-6)
    assert spec.task == records.task


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"label": "outcome", "classes": 2},
            r"line 2, column 'outcome': text.*class_names.*\['alive', 'dead'\]",
        ),
        (
            {"label": "outcome", "class_names": ("alive", "ill"), "classes": 2},
            "line 3, .*'outcome': 'dead'",
        ),
        (
            {"categories": {"smoker": ("never",)}},
            r"line 3, .*'smoker': 'former'.*and 1 more.*add them",
        ),
        ({"features": ("bp",)}, "source.missing"),
    ],
)
def test_a_word_that_was_not_declared_is_named(tmp_path, table, changes, message):
    table.assign(**WORDS, bp=[120.0, None, 118.0, 99.0]).to_csv(tmp_path / "t.csv", index=False)
    refused(
        message,
        load_unscaled,
        source(tmp_path / "t.csv", **({"features": ("age",)} | changes)),
        "train",
    )


def test_sites_that_become_one_name_are_refused(tmp_path, table):
    table.assign(ward=["a b", "a-b", "c", "c"]).to_csv(tmp_path / "t.csv", index=False)
    refused(
        "become one name or none.*a b, a-b",
        load_unscaled,
        source(tmp_path / "t.csv", site_column="ward"),
        "train",
    )


@pytest.mark.parametrize(
    ("separator", "decimal", "encoding"),
    [
        (";", ",", "utf-8-sig"),
        ("\t", ".", "cp1252"),
        ("|", ".", "utf-8"),
        (";", ".", "cp1252"),
    ],
)
def test_separators_and_encodings_are_told_apart(tmp_path, table, separator, decimal, encoding):
    path = tmp_path / "t.csv"
    table.assign(ward="Köln").to_csv(
        path, index=False, sep=separator, decimal=decimal, encoding=encoding
    )
    records = load_unscaled(source(path, group_columns=("ward",)), "train").scaled()
    np.testing.assert_array_equal(records.features, table[["age", "bp"]].to_numpy(dtype=np.float32))
    assert set(records.groups["ward"]) == {"Köln"}
    # Without a column of units each row is one.
    assert (records.units.tolist(), records.unit) == ([0, 1, 2, 3], "record")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"class_names": ("a", "b")}, "class_names has 2"),
        ({"missing": {"weight": 1.0}}, "'weight', which is none"),
        ({"features": ()}, "both empty"),
        ({"centers": (1.0,)}, "centers has 1 values for 2"),
        ({"scales": (1.0, 2.0, 3.0)}, "scales has 3 values for 2"),
        ({"scales": (1.0, 0.0)}, "scales is not above 0"),
    ],
)
def test_keys_that_do_not_fit_are_refused(changes, said):
    with pytest.raises(ValidationError, match=said):
        source("t.csv", **changes)


def test_several_files_are_one_table_and_their_names_may_be_the_sites(tmp_path, table):
    paths = tmp_path / "St. Mary.csv", tmp_path / "nord.csv"
    for path, rows in zip(paths, (table[:2], table[2:]), strict=True):
        rows.to_csv(path, index=False)
    spec = source(paths, site_column="file", unit_column="patient")
    records = load_unscaled(spec, "train").scaled()
    assert records.natural_site.tolist() == ["St.-Mary", "St.-Mary", "nord", "nord"]
    assert records.units.tolist() == ["007", "7", "007", "b"]
    table.assign(age=None).to_csv(paths[1], index=False)
    refused("line 2 of nord.csv, column 'age': missing", load_unscaled, spec, "train")
    table.drop(columns="age").to_csv(paths[1], index=False)
    refused("only one has a column 'age'", load_unscaled, spec, "train")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_dates_are_days_since_a_declared_day(tmp_path, table, suffix) -> None:
    dates = ["2020-01-01", "11.01.2020", "2019-12-31 23:59", None]
    table = table.assign(admitted=pandas.Series(dates, dtype=object))
    path = tmp_path / f"t.{suffix}"
    table.to_csv(path, index=False) if suffix == "csv" else table.to_parquet(path)
    spec = source(
        path,
        features=("age", "admitted"),
        days_since={"admitted": "2020-01-01"},
        missing={"admitted": 5},
        centers=(0, 0),
        scales=(1, 10),
    )
    features = load_unscaled(spec, "train").features
    np.testing.assert_allclose(features[:, 1], [0, 1, -0.1, 0.5], atol=1e-6)
    assert features[:, 2].tolist() == [0, 0, 0, 1]


def test_times_of_a_parquet_file_are_dates_too(tmp_path, table) -> None:
    table["admitted"] = pandas.to_datetime(["2020-01-02", "2020-01-01", "2020-01-01", "2020-03-01"])
    table.to_parquet(tmp_path / "t.parquet")
    spec = source(
        tmp_path / "t.parquet", features=("admitted",), days_since={"admitted": "2020-01-01"}
    )
    assert load_unscaled(spec, "train").features[:, 0].tolist() == [1, 0, 0, 60]


def test_values_that_are_not_declared_are_others_where_others_are_named(tmp_path, table) -> None:
    table["ward"] = ["a", "c", None, "b"]
    table.to_csv(tmp_path / "t.csv", index=False)
    declared = {"features": ("age",), "others": {"ward": "other"}}
    spec = source(tmp_path / "t.csv", categories={"ward": ("a", "missing")}, **declared)
    assert spec.feature_names == ("age", "ward=a", "ward=missing", "ward=other")
    features = load_unscaled(spec, "train").features
    assert features[:, 1:].tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0], [0, 0, 1]]
    # A value that is missing is not another one.
    without = source(tmp_path / "t.csv", categories={"ward": ("a", "b")}, **declared)
    refused("line 4, column 'ward': 'missing'", load_unscaled, without, "train")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"days_since": {"addmitted": "2020-01-01"}}, "days_since names 'addmitted'"),
        ({"others": {"ward": "other"}}, "others names 'ward', which is none of categories"),
        (
            {"categories": {"ward": ("a", "b")}, "others": {"ward": "b"}},
            "others of 'ward' is 'b', which categories names too",
        ),
    ],
)
def test_what_days_and_others_name_must_be_there(tmp_path, changes, said) -> None:
    with pytest.raises(ValidationError, match=said):
        source(tmp_path / "t.csv", **changes)


@pytest.mark.parametrize(
    ("cells", "changes", "said"),
    [
        (
            ["1.5", "2,5", "1", "1"],
            {},
            "line 3, column 'x': '2,5' has a comma for a decimal point: write all decimals alike, as 2.5",
        ),
        (
            ["1.5", "1", "<0.2", "2,5"],
            {},
            r"line 4, column 'x': '<0.2' is no finite number \(and 1 more\): correct it",
        ),
        (
            ["2020-01-01", "03/04/2020", "", ""],
            {"days_since": {"x": "2020-01-01"}, "missing": {"x": 1}},
            "line 3, column 'x': '03/04/2020' is no date as 2020-12-31 or 31.12.2020: write dates so",
        ),
        (
            ["2020-01-01", "2020-02-30", "", ""],
            {"days_since": {"x": "2020-01-01"}, "missing": {"x": 1}},
            "'2020-02-30' is no date",
        ),
    ],
)
def test_a_value_that_is_no_number_or_date_is_shown(tmp_path, table, cells, changes, said) -> None:
    table.assign(x=cells).to_csv(tmp_path / "t.csv", index=False)
    refused(said, load_unscaled, source(tmp_path / "t.csv", features=("x",), **changes), "train")


def test_two_columns_of_one_name_are_refused(tmp_path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("age,bp,sick,age\n1,2,0,3\n1,2,1,3\n")
    said = "columns 1 and 4 of the first line have the same name, 'age': rename or remove"
    refused(said, load_unscaled, source(path), "train")
    # Some programs end each line with a separator; such columns have no name at all.
    path.write_text("age,bp,sick,,\n1,2,0,,\n1,2,1,,\n")
    assert load_unscaled(source(path), "train").labels.tolist() == [0, 1]
