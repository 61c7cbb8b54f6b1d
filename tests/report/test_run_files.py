import contextlib
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_dpbayes.errors import UserError
from fl_dpbayes.files.record import json_values
from fl_dpbayes.report import run_files
from fl_dpbayes.report.run_files import read_csv, read_summary, write_csv, write_summary
from fl_dpbayes.report.summary import Summary, parse_summary, shortened
from tests.asking import refused

NUMBERS = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**9), 10**9), st.floats(), st.text(max_size=5)
)
VALUES = st.recursive(
    NUMBERS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(VALUES)
def test_json_values_property_strict_and_idempotent(value):
    once = json_values(value)
    json.dumps(once, allow_nan=False)
    assert json_values(once) == once


def test_json_values_of_numpy_special_numbers_and_other_types():
    value = {
        "a": np.float32(0.5),
        "b": np.array([1, 2]),
        "c": float("nan"),
        "d": (math.inf, -math.inf),
        3: np.bool_(1),
    }
    assert json_values(value) == {"a": 0.5, "b": [1, 2], "c": None, "d": ["inf", "-inf"], "3": True}
    with pytest.raises(ValueError, match="set is no JSON value"):
        json_values({"a": {1, 2}})


def test_a_summary_is_written_as_it_was_read_in_the_order_of_its_fields(measured_summary, tmp_path):
    (
        measured_summary["privacy"][0]["epsilon"],
        measured_summary["privacy"][1]["recalibration_epsilon"],
    ) = math.inf, 0.5
    measured_summary["calibration"][0]["auroc"] = float("nan")
    run = Summary.model_validate(measured_summary)
    text = write_summary(run, tmp_path / "new").read_text(encoding="utf-8")
    assert not [word for word in ("NaN", "Infinity") if word in text]
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["summary.json"]
    written = json.loads(text)
    assert Summary.model_validate(written) == run == read_summary(tmp_path / "new")
    assert written["privacy"][0]["epsilon"] == "inf"
    order = [name for name in Summary.model_fields if name in written]
    assert [*order, "checksums_beside", "checksum"] == list(written)
    assert list(written["subgroups"][0])[:7] == [
        "site",
        "role",
        "predictor",
        "attribute",
        "value",
        "n",
        "accuracy",
    ]
    assert list(written["calibration"][0])[-1] == "intervals"


def test_write_summary_keeps_the_old_file_when_it_fails(summary, tmp_path):
    write_summary(summary, tmp_path)
    before = (tmp_path / "summary.json").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="is no JSON value"):
        write_summary({**summary, "seed": object()}, tmp_path)
    assert (tmp_path / "summary.json").read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is not a run directory"),
        ("{", "cannot be read as JSON"),
        ("[1]", "expected a JSON object"),
        (
            '{"scenario": "a"}',
            "summary.json is not as a run writes it: it has no checksum: an older version",
        ),
        ({"scenario": "a"}, "summary.json is not as a run writes it: seed"),
        ({"calibration": [{"n": "many"}]}, r"calibration\.0"),
    ],
)
def test_read_summary_names_what_is_wrong(content, message, tmp_path, summary):
    if isinstance(content, str):
        (tmp_path / "summary.json").write_text(content, encoding="utf-8")
    elif content is not None:
        write_summary(content if "scenario" in content else summary | content, tmp_path)
    refused(message, read_summary, tmp_path)


def test_any_flipped_bit_of_a_summary_or_its_table_is_refused_or_harmless(summary, tmp_path):
    (tmp_path / "privacy.csv").write_text("site,round\nnorth,1\n")
    path = write_summary(summary, tmp_path)
    whole = read_summary(tmp_path)
    for file in (path, tmp_path / "privacy.csv"):
        content = file.read_bytes()
        for place in np.linspace(0, len(content) - 1, 40, dtype=int):
            file.write_bytes(
                content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :]
            )
            # A bit of white space or of the case of an exponent changes no value.
            with contextlib.suppress(UserError):
                assert read_summary(tmp_path) == whole
        file.write_bytes(content[:-3])
        refused(
            f"{file.name} is not as a run writes it.* simulate --resume", read_summary, tmp_path
        )
        file.write_bytes(content)
    (tmp_path / "privacy.csv").unlink()
    refused(r"privacy.csv is not as a run writes it: it is missing", read_summary, tmp_path)


def test_csv_round_trip_with_undefined_and_infinite(tmp_path):
    rows = [{"a": 1, "b": math.inf, "c": float("nan")}, {"a": "x,\ny", "b": np.float64(0.1)}]
    path = write_csv(tmp_path / "deep" / "t.csv", rows, ("a", "b", "c"))
    assert read_csv(path) == [{"a": "1", "b": "inf", "c": ""}, {"a": "x,\ny", "b": "0.1", "c": ""}]
    assert read_csv(tmp_path / "none.csv") == []
    with pytest.raises(ValueError, match="other"):
        write_csv(tmp_path / "t.csv", [{"a": 1, "other": 2}], ("a",))


def test_calibration_csv_row_flattens_intervals(summary):
    row = run_files.calibration_csv_row(parse_summary(summary).calibration[0])
    assert set(row) == set(run_files.CALIBRATION_COLUMNS)
    ends = summary["calibration"][0]["intervals"]["rms_debiased"]
    assert [row["rms_debiased_low"], row["rms_debiased_high"]] == ends
    assert row["mce_low"] is None
    assert (row["auroc_low"], row["auroc_high"]) == (0.968, 0.972)


def test_a_long_text_ends_at_a_word_with_an_ellipsis():
    assert shortened("uncommon (1 in 4; total anterior stroke)", 28) == "uncommon (1 in 4; total…"
    assert shortened("uncommon (1 in 4; total)", 24) == "uncommon (1 in 4; total)"
    assert shortened("x" * 30, 10) == "x" * 9 + "…"
