"""The stroke trial as shipped: what the published file holds, and nothing else."""

import csv
import hashlib
import json

import numpy as np
import pytest

from fl_dpbayes.config.sources import BuiltIn
from fl_dpbayes.data.records import load_unscaled
from fl_dpbayes.data.sources import stroke
from tests.asking import refused

SOURCE = BuiltIn(kind="stroke")
SUBTYPES = {"LACS": "L", "PACS": "A", "POCS": "P", "TACS": "T", "OTH": "O"}


def test_patients_and_hospitals_golden():
    records = load_unscaled(SOURCE, "train").scaled()
    assert records.features.shape == (19_285, *SOURCE.task.input_shape)
    assert records.labels.sum() == 4241 + 7884
    assert len(np.unique(records.units)) == 19_285
    assert records.unit == SOURCE.unit == "patient"
    assert len(set(records.natural_site)) == 464
    assert (records.natural_site == "uk-134").sum() == 524
    first = dict(zip(records.feature_names, records.features[0], strict=True))
    assert {name: value for name, value in first.items() if value} == pytest.approx(
        {
            "age": -0.1,
            "hours since onset": -7 / 12,
            "systolic blood pressure": -0.8,
            "male": 1,
            "drowsy": 1,
            "symptoms on waking": 1,
            "scanned before": 1,
            "infarct visible": 1,
            "atrial fibrillation not recorded": 1,
            "speech deficit": 1,
            "spatial deficit": 1,
            "other deficit": 1,
        }
    )
    # What could not be assessed lies between absent and present.
    assert set(records.features[:, records.feature_names.index("sight deficit")]) == {0, 0.5, 1}


def test_every_shipped_column_is_the_published_one(data_folder):
    path = data_folder / "ist/ist.csv"
    content = json.loads(stroke.PATH.read_text(encoding="utf-8"))
    assert hashlib.sha256(path.read_bytes()).hexdigest() == content["original_sha256"]
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for name, values in content["columns"].items():
        read = type(values[0])
        letters = SUBTYPES if name == "STYPE" else {"": "-"}
        assert [read(letters.get(row[name], row[name])) for row in rows] == list(values), name
    country = {number: code for code, numbers in content["countries"].items() for number in numbers}
    assert [country[int(row["HOSPNUM"])] for row in rows] == [row["COUNTRY"] for row in rows]
    assert set(stroke.COUNTRIES) == set(content["countries"])


def test_a_changed_file_is_refused(tmp_path, monkeypatch):
    changed = tmp_path / "stroke.json"
    changed.write_text(stroke.PATH.read_text(encoding="utf-8").replace("[1,1,1,1,4", "[1,1,1,4,4"))
    monkeypatch.setattr(stroke, "PATH", changed)
    refused(r"stroke.json is damaged .*SHA-256.*new installation", load_unscaled, SOURCE, "train")
