"""What a source of one's own gives is checked before anything is made of it."""

from dataclasses import replace

import pytest

from fl_dpbayes.config.sources import BuiltIn
from fl_dpbayes.data import records
from fl_dpbayes.data.records import load_unscaled
from fl_dpbayes.data.sources import digits
from fl_dpbayes.files.kept import Kept
from tests.asking import refused


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda good: {"labels": good.labels[:-3]},
            r"gave labels of shape \(\d+,\), its task needs",
        ),
        (lambda good: {"labels": good.labels[:, None]}, r"labels of shape \(\d+, 1\), its task"),
        (lambda good: {"labels": good.labels.astype(str)}, "gave labels of <U.*must be numbers"),
        (lambda good: {"units": good.units[:5]}, r"gave units of shape \(5,\)"),
        (
            lambda good: {"features": good.features[..., :7]},
            "gave features of shape .*needs .*8, 8",
        ),
    ],
)
def test_records_that_do_not_fit_their_task_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, change, said: str
) -> None:
    load = digits.load

    def changed(source, part):
        good = load(source, part)
        return replace(good, **change(good))

    monkeypatch.setattr(records, "KEPT", Kept())
    monkeypatch.setattr(digits, "load", changed)
    refused(f"^source 'digits' .*{said}", load_unscaled, BuiltIn(kind="digits"), "train")
