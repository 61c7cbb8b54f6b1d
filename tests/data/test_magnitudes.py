"""Features of another size than 1 are named once, together."""

import numpy as np

from fl_dpbayes.config.sources import Table
from fl_dpbayes.config.task import Task
from fl_dpbayes.data.records import Records, magnitude_warnings
from fl_dpbayes.report.warnings import sentence

NAMES = [f"x{place}" for place in range(8)]
SOURCE = Table(
    kind="table",
    path="none.csv",
    label="y",
    classes=2,
    site_column="site",
    features=NAMES,
    centers=[0.0] * 8,
    scales=[1.0] * 8,
)


def records_of(sizes: list[float]) -> Records:
    features = np.outer([1, -1, 1, -1], sizes).astype(np.float32)
    return Records(
        features=features,
        labels=np.zeros(4, dtype=int),
        units=np.arange(4),
        natural_site=None,
        task=Task(input_shape=(8,), classes=2),
        unit="record",
    )


def test_odd_features_are_one_warning_that_names_five() -> None:
    (odd,) = magnitude_warnings(records_of([1, 70_000, 0.01, 20, 30, 40, 50, 60]), SOURCE)
    text = sentence(odd)
    assert text.startswith("7 features should be about 1 in size")
    assert "'x1' (about 70,000), 'x2' (about 0.01), 'x3' (about 20)" in text
    assert "'x5' (about 40) and 2 more. Correct data.source.centers and scales" in text
    assert "x6" not in text


def test_a_finding_that_nobody_has_is_not_named() -> None:
    assert magnitude_warnings(records_of([0, 1, 1, 1, 1, 1, 1, 9]), SOURCE) == []
