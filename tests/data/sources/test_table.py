import numpy as np
import pandas
import pytest
from pydantic import ValidationError

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.sources import Table
from fl_dpbayes.data.records import load_source
from tests.asking import refused


@pytest.fixture
def table() -> pandas.DataFrame:
    columns = {"patient": ["007", "7", "007", "b"], "age": [50, 61, 50, 33],
               "bp": [120.0, 130.5, 118.0, 99.0], "sick": [0, 1, 0, 2]}  # fmt: skip
    return pandas.DataFrame(columns)


def source(path, **changes) -> Table:
    keys = {"path": path, "label": "sick", "classes": 3, "features": ("age", "bp")}
    return Table(**(keys | changes))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_features_are_scaled_by_the_stated_constants(tmp_path, table, suffix):
    path = tmp_path / f"t.{suffix}"
    table.to_csv(path, index=False) if suffix == "csv" else table.to_parquet(path)
    spec = source(path, centers=(50, 120), scales=(10, 20), unit_column="patient")
    records = load_source(spec, "train")
    np.testing.assert_allclose(records.features, [[0, 0], [1.1, 0.525], [0, -0.1], [-1.7, -1.05]], atol=1e-6)
    assert records.features.dtype == np.float32
    assert records.labels.tolist() == [0, 1, 0, 2]
    # "007" and "7" are two patients: a unit's name is text, not a number.
    assert records.units.tolist() == ["007", "7", "007", "b"]
    assert records.unit == spec.unit == "patient"
    assert records.task == spec.task


def test_without_a_unit_column_a_row_is_a_unit(tmp_path, table):
    table.to_csv(tmp_path / "t.csv", index=False)
    spec = source(tmp_path / "t.csv")
    records = load_source(spec, "train")
    assert records.units.tolist() == [0, 1, 2, 3]
    assert records.unit == spec.unit == "record"
    np.testing.assert_array_equal(records.features[:, 0], [50, 61, 50, 33])


@pytest.mark.parametrize(("column", "values", "message"), [
    ("bp", [120, None, 118, 99], r"column 'bp' has 1 values that are missing .*row 2"),
    ("age", [50, 61, "old", 33], r"column 'age' has 1 values .*row 3"),
    ("age", [50, 61, float("inf"), 33], r"column 'age' has 1 values .*row 3"),
    ("sick", [0, 1, 0, 3], r"column 'sick' has 1 values .*0 to 2.*row 4"),
    ("sick", [0, 1, 0.5, 2], r"column 'sick' has 1 values .*row 3"),
    ("patient", ["a", None, "c", "d"], r"column 'patient' has 1 values that are missing .*row 2"),
])  # fmt: skip
def test_a_bad_value_names_its_column(tmp_path, table, column, values, message):
    table[column] = values
    table.to_csv(tmp_path / "t.csv", index=False)
    refused(message, load_source, source(tmp_path / "t.csv", unit_column="patient"), "train")


@pytest.mark.parametrize("missing", ["age", "sick", "patient"])
def test_an_absent_column_is_named(tmp_path, table, missing):
    table.drop(columns=missing).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(UserError, match=f"has no column '{missing}': its columns are .*bp"):
        load_source(source(tmp_path / "t.csv", unit_column="patient"), "train")
    with pytest.raises(UserError, match="has no column 'ward'"):
        load_source(source(tmp_path / "t.csv", features=("bp",), label="bp", group_columns=("ward",)), "train")


@pytest.mark.parametrize(("name", "content", "message"), [
    ("t.csv", None, "does not exist"),
    ("t.xlsx", "", r"must end in \.csv or \.parquet"),
    ("t.csv", "", "cannot be read"),
    ("t.parquet", "PAR?", "cannot be read"),
    ("t.csv", "age,bp,sick\n", "has no rows"),
])  # fmt: skip
def test_an_unreadable_table_is_refused(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    refused(message, load_source, source(tmp_path / name), "train")


@pytest.mark.parametrize("changes", [{"centers": (1.0,)}, {"scales": (1.0, 2.0, 3.0)}, {"scales": (1.0, 0.0)}])
def test_constants_must_fit_the_features(changes):
    with pytest.raises(ValidationError, match=r"centers|scales"):
        source("t.csv", **changes)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_group_columns_are_read_as_text(tmp_path, table, suffix):
    table["sex"] = ["f", None, "m", "f"]
    table["ward"] = pandas.Series([1, 2, None, 1], dtype="float64") if suffix == "parquet" else ["01", "2", None, "01"]
    path = tmp_path / f"t.{suffix}"
    table.to_csv(path, index=False) if suffix == "csv" else table.to_parquet(path)
    records = load_source(source(path, group_columns=("sex", "ward", "age")), "train")
    one = "1" if suffix == "parquet" else "01"
    assert {name: " ".join(values) for name, values in records.groups.items()} == {
        "sex": "f missing m f", "ward": f"{one} 2 missing {one}", "age": "50 61 50 33"}  # fmt: skip
    # A column may be a feature and a group.
    np.testing.assert_array_equal(records.features[:, 0], [50, 61, 50, 33])


@pytest.mark.parametrize(("columns", "message"), [
    ({"age": range(11)}, r"column 'age' of group_columns has 11 values: at most 10"),
    ({"ward": ["a" * 61] * 11}, "give 1 to 60 printable"),
    ({"ward": ["a\u202eb"] * 11}, "give 1 to 60 printable"),
    ({"a": [*range(9), 0, 0], "b": [*range(9), 0, 0], "c": [*range(9), 0, 0]}, "27 values together: at most 20"),
])  # fmt: skip
def test_group_columns_of_too_many_or_odd_values_are_refused(tmp_path, columns, message):
    frame = pandas.DataFrame({"x": range(11), "sick": 0} | {name: list(values) for name, values in columns.items()})
    frame.to_csv(tmp_path / "t.csv", index=False)
    refused(message, load_source, source(tmp_path / "t.csv", features=("x",), group_columns=tuple(columns)), "train")
