"""Where records are computed one by one, whoever reads of the run is told so, and what it costs."""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pydantic import ValidationError

from fl_dpbayes.files.kept import KEPT
from fl_dpbayes.files.run_store import RunStore
from fl_dpbayes.hospital.check_passes import finding_of
from fl_dpbayes.models import rows as row_check
from fl_dpbayes.models.rows import PassShape, note, noted_shapes, shapes_so_far
from fl_dpbayes.protocol.passes import StatedPasses
from fl_dpbayes.report.page_tables import passes_table
from fl_dpbayes.report.warnings import sentences
from server.run_record import RunRecord

SHORT = "training={rounds=1, steps_per_round=2, burn_in=0, thinning=1}"
ONE = {"computation": "gradients", "wanted": 64, "rows": 1, "products": "plain", "slower": 8.5}
STATED = {
    "processor": "AuthenticAMD EPYC",
    "library": "torch 2.15",
    "reproducible": "off",
    "passes": [ONE],
}


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine on which no record stands alone but in a pass of its own."""
    KEPT.clear()
    monkeypatch.setattr(row_check, "_known", {})
    monkeypatch.setattr(row_check, "_stands_alone", lambda shape, _: shape.rows == 1)
    monkeypatch.setattr(
        row_check, "_seconds_of_row", lambda shape, _: 12.0 if shape.rows == 1 else 1.0
    )
    yield
    KEPT.clear()


@pytest.mark.slow
def test_terminal_page_and_summary_say_it_and_what_it_costs(alone, tmp_path: Path, command) -> None:
    out = tmp_path / "run"
    asked = (
        "simulate",
        "digits",
        "--engine",
        "inline",
        "--out",
        out,
        "--set",
        SHORT,
        "--set",
        "privacy.epsilon=8",
    )
    status, shown, error = command(*asked)
    assert status == 0, error
    said = r"gradients of one record at a time, about 12\s+times as slow"
    assert re.search(said, " ".join((shown + error).split()))
    page = (out / "report.html").read_text(encoding="utf-8")
    assert re.search(said, page)
    assert "How many records were computed at a time" in page
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert any(re.search(said, text) for text in summary["warnings"])
    passes = {row["computation"]: row for row in summary["passes"]}
    assert (passes["gradients"]["rows"], passes["gradients"]["slower"]) == (1, 12.0)
    assert passes["gradients"]["wanted"] > 1
    assert passes["predictions"]["rows"] == 1
    assert passes["gradients"]["processor"]
    assert "torch" in passes["gradients"]["library"]
    everyone = {site["name"] for site in summary["sites"]}
    assert {site for row in summary["passes"] for site in row["sites"]} == everyone


def test_a_finding_names_rows_products_processor_and_library() -> None:
    device = torch.device("cpu")
    sound = finding_of(PassShape("gradients", wanted=64, rows=64, products="aligned"), device)
    assert sound.status == "PASS"
    assert re.search(
        r"64 records .* aligned products \(.+, torch .+, reproducible: \w+\)", sound.message
    )


def test_who_asks_python_hears_what_it_costs(monkeypatch, caplog) -> None:
    monkeypatch.setattr(row_check, "_known", {})
    monkeypatch.setattr(row_check, "_stands_alone", lambda shape, _: shape.rows == 1)
    monkeypatch.setattr(
        row_check, "_seconds_of_row", lambda shape, _: 12.0 if shape.rows == 1 else 1.0
    )
    with caplog.at_level(logging.WARNING, logger="fl_dpbayes.site"):
        row_check.checked_shape("any", PassShape("features", wanted=64, rows=64), lambda _: [])
    assert "features are computed one by one, 12 times as slow" in caplog.text


def test_what_is_said_is_what_the_work_took_and_no_more() -> None:
    first, second = (
        PassShape("features", wanted=64, rows=64),
        PassShape("gradients", wanted=64, rows=128),
    )
    note(first)
    assert shapes_so_far() == set()
    with noted_shapes() as noted:
        note(second)
        note(second)
        assert shapes_so_far() == noted == {second}
    assert shapes_so_far() == set()


@pytest.mark.parametrize(
    "changed",
    [
        {"passes": []},
        {"passes": [ONE] * 9},
        {"passes": [ONE | {"rows": 0}]},
        {"passes": [ONE | {"wanted": 2**40}]},
        {"passes": [ONE | {"slower": float("inf")}]},
        {"passes": [ONE | {"slower": 0.5}]},
        {"passes": [ONE | {"computation": "labels"}]},
        {"passes": [ONE | {"products": "x" * 100}]},
        {"processor": "x" * 201},
        {"reproducible": "<b>"},
        {"labels": "1"},
    ],
)
def test_a_hostile_site_can_say_nothing_else(changed) -> None:
    StatedPasses.model_validate(STATED)
    with pytest.raises(ValidationError):
        StatedPasses.model_validate(STATED | changed)


def test_a_site_is_heard_once_for_each_computation_and_its_text_steers_nothing(
    tmp_path: Path,
) -> None:
    record = RunRecord(RunStore.make(tmp_path))
    for times in range(1, 50):
        hostile = {
            "processor": f"\x1b[2J<script>{times}</script>" + "x" * 100,
            "passes": [ONE | {"slower": times}],
        }
        record.add_passes("west", StatedPasses.model_validate(STATED | hostile))
    record.add_passes("east", None)
    ((row, sites),) = record.passes.items()
    assert sites == ["west"]
    assert row.processor.startswith("?[2J<script>1")
    assert len(row.processor) <= 80
    (text,) = sentences(record.warnings)
    assert text.startswith("west computes gradients of one record at a time, about 1 times as slow")
    shown = passes_table(SimpleNamespace(passes=[row.model_copy(update={"sites": ("west",)})]))
    assert shown.rows[0][2] == ("1", "64 wanted")
