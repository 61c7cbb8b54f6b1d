"""UCI heart disease: 740 patients of four real hospitals, from the data folder."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas

from fl_dpbayes.config import BuiltIn, OfficialPart, Table, check_rows, damaged, data_file
from fl_dpbayes.data.records import Records
from fl_dpbayes.data.sources.table import framed_records

ORIGIN = "https://archive.ics.uci.edu/dataset/45/heart+disease"
COLUMNS = (
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
    "num",
)
# Complete rows after the drop, SHA-256 over them sorted.
HOSPITALS = {
    "cleveland": (303, "32fd17299120fdcfa177e72bbe3edf073ce7d8b9423035d882319e1526457ead"),
    "hungarian": (261, "54ab8d844f40b353d2cda76fb4b7bcd2831b2e5b155224805adb40f571e56222"),
    "switzerland": (46, "f8a54806e24f1152866a8b59e536e6a514531ab0db829eb24194fc704e8d6a02"),
    "va": (130, "381ec562a5ee6e57979a33a6d5b9a6028020816e469ff9a520b35ff2deeb4201"),
}
# Centre and scale: round values of clinical use, none computed from these patients.
CENTERS_AND_SCALES = {
    # Years.
    "age": (50.0, 10.0),
    # 1 = male.
    "sex": (0.0, 1.0),
    # mmHg; 120 is the upper end of normal.
    "trestbps": (120.0, 20.0),
    # mg/dl; 200 is the upper end of desirable; 0 codes a value that was not measured.
    "chol": (200.0, 100.0),
    # 1 = fasting blood sugar above 120 mg/dl.
    "fbs": (0.0, 1.0),
    # Beats per minute.
    "thalach": (150.0, 25.0),
    # 1 = angina on exercise.
    "exang": (0.0, 1.0),
    # mm of ST depression; 1 mm is the usual threshold.
    "oldpeak": (1.0, 1.0),
}
# Codes of chest pain and of the resting ECG.
CATEGORIES = {"cp": ("1", "2", "3", "4"), "restecg": ("0", "1", "2")}


def load(source: BuiltIn, part: OfficialPart) -> Records:
    """Load the four hospitals' patients by FLamby's rule.

    That is: drop slope, ca and thal, then rows with a missing value. Eight features are centred and
    scaled by public constants; chest pain type (4) and resting ECG (3) become indicators. Label 1
    is any diagnosis above 0. Each of the 303 + 261 + 46 + 130 records is one patient;
    `natural_site` is the hospital, `groups` are sex and age.

    Args:
        source: Heart disease; its folder is the data folder.
        part: The official part; there is one only.

    Raises:
        UserError: If a file is missing or another one.

    Source:
        Detrano et al., Am. J. Cardiol. 64, 1989.
    """
    tables = {hospital: _complete_rows(source, hospital) for hospital in HOSPITALS}
    table = pandas.concat(tables.values(), ignore_index=True)
    centers, scales = zip(*CENTERS_AND_SCALES.values(), strict=True)
    table_source = Table(
        path=Path("heart-disease"),
        label="num",
        features=tuple(CENTERS_AND_SCALES),
        centers=centers,
        scales=scales,
        categories=CATEGORIES,
        **source.task.outcome.source_keys,
    )
    has_disease = (table["num"] > 0).astype(int)
    records = framed_records(table.assign(num=has_disease), table_source)
    groups = {
        "sex": np.where(table["sex"] == 1, "male", "female"),
        "age": np.where(table["age"] < 55, "under 55", "55 and over"),
    }
    hospitals = np.repeat(list(tables), [len(rows) for rows in tables.values()])
    return replace(records, natural_site=hospitals, unit=source.unit, groups=groups)


def _complete_rows(source: BuiltIn, hospital: str) -> pandas.DataFrame:
    path = data_file(source.folder, f"heart-disease/processed.{hospital}.data", ORIGIN)
    try:
        table = pandas.read_csv(
            path, header=None, names=list(COLUMNS), na_values="?", dtype=np.float64
        )
    except ValueError as error:
        raise damaged(path, str(error), ORIGIN) from None
    table = table.drop(columns=["slope", "ca", "thal"]).dropna()
    count, checksum = HOSPITALS[hospital]
    if len(table) != count:
        raise damaged(path, f"{len(table)} complete rows, not {count}", ORIGIN)
    # Adding zero turns -0.0 into 0.0, which is the same value with other bytes.
    check_rows([row.tobytes() for row in table.to_numpy(dtype="<f8") + 0.0], checksum, path, ORIGIN)
    return table
