"""The scenario with known truth runs whole, and its posterior reads records from outside the run with care."""

import json
import re
from pathlib import Path

import numpy as np
import pandas
import pytest
from PIL import Image
from rich.console import Console

from fl_dpbayes.config.scenario import load_scenario
from fl_dpbayes.config.site_file import read_site_file
from fl_dpbayes.config.sources import BuiltIn, ImageFolder, Logistic2D, Radiographs, Table
from fl_dpbayes.config.task import Task
from fl_dpbayes.data.records import load_unscaled
from fl_dpbayes.data.simulation import run_identifier
from fl_dpbayes.data.site import load_site
from fl_dpbayes.engine.simulate import simulate
from fl_dpbayes.errors import UserError
from fl_dpbayes.predict.new_records import read_new_records
from tests.asking import refused

SHORT = [
    "training={rounds=2, steps_per_round=20, burn_in=20, thinning=10}",
    "privacy.sampling_rate=1.0",
    "simulation.insecure_seed=5",
]


def run_of(folder: Path, *settings: str) -> Path:
    return simulate(
        load_scenario("known-truth", [*SHORT, *settings]),
        "inline",
        folder,
        None,
        Console(quiet=True),
    )


@pytest.mark.slow
def test_every_site_knows_its_truth_and_new_records_are_predicted_and_evaluated(
    tmp_path, command, refusal
):
    run = run_of(tmp_path / "known-truth")
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    roles = {site["name"]: site["role"] for site in summary["sites"]}
    assert list(roles.values()) == ["train"] * 4 + ["held_out", "shifted"]
    rows = {(row["site"], row["predictor"]): row for row in summary["calibration"]}
    for name in roles:
        assert rows[name, "posterior"]["accuracy"] > 0.6
    for path in sorted((run / "sites").glob("*.toml")):
        test = load_site(read_site_file(path)).test
        assert test.truth is not None
        spread = np.sqrt((test.truth[:, 1] * test.truth[:, 0]).sum())
        assert abs(test.labels.sum() - test.truth[:, 1].sum()) < 4 * spread
    records = load_unscaled(Logistic2D(records=6, test_records=300, seed=9), "test").scaled()
    new, page = archive(tmp_path, records.features, labels=records.labels), tmp_path / "page"
    assert command("predict", run, new, "--out", tmp_path / "predicted.csv")[0] == 0
    predicted = pandas.read_csv(tmp_path / "predicted.csv")
    assert len(predicted) == 300
    assert predicted[["probability_0", "probability_1"]].sum(axis=1).to_numpy() == pytest.approx(
        1, abs=1e-4
    )
    said = json.loads(command("evaluate", run, new, "--json")[1])
    assert said["n"] == 300
    accuracy = f"{100 * said['accuracy']:.1f}"
    assert re.search(rf"Accuracy +{accuracy} ", command("evaluate", run, new, "--out", page)[1])
    text = (page / "report.html").read_text()
    assert f">{accuracy} <small>" in text
    assert re.search(r"new <small><a [^>]*>took no part</a></small>", text)
    assert "page cannot be made" in refusal("evaluate", run, new, "--out", page)


def test_a_seeded_run_is_named_by_its_source_and_another_kind_of_source_keeps_the_common_keys() -> (
    None
):
    seeds = [["data.source.seed=2"], [], []]
    other, *same = (run_identifier(load_scenario("known-truth", [*SHORT, *seed])) for seed in seeds)
    assert same[0] == same[1] != other
    source = load_scenario("known-truth", ["data.source.kind=radiographs"]).data.source
    assert source == Radiographs(records=12_000, sites=6, heterogeneity=0.5, seed=1)


DIGITS = BuiltIn(kind="digits")
PIXELS = Task(input_shape=(1, 2, 2), classes=3)
NUMBERS = Task(input_shape=(2,), classes=3)
# To load the last would need pickle.
BAD_LABELS = [
    np.array([0, 1, 9]),
    np.array(["a", "b", "c"]),
    np.array([0]),
    np.array([{}, {}, {}], dtype=object),
]


def archive(folder, features, **more):
    path = folder / "new.npz"
    np.savez(path, features=np.asarray(features), **more)
    return path


def test_labels_of_an_archive_matter_only_where_asked_for(tmp_path):
    for labels in BAD_LABELS:
        path = archive(tmp_path, np.full((3, 4), 0.5), labels=labels)
        assert read_new_records(path, PIXELS, DIGITS, labelled=False).labels is None
        refused(
            r"labels must be whole numbers|plain arrays",
            read_new_records,
            path,
            PIXELS,
            DIGITS,
            labelled=True,
        )
    path = archive(tmp_path, np.full((3, 4), 0.5), labels=np.array([0, 2, 1]))
    assert read_new_records(path, PIXELS, DIGITS, labelled=True).labels.tolist() == [0, 2, 1]


def test_labels_of_a_table_matter_only_where_asked_for(tmp_path):
    path = tmp_path / "new.csv"
    source = Table(path=path, label="label", classes=3, features=("x", "y"))
    path.write_text("x,y\n1,7\n")
    refused(
        "no column 'label', which holds the labels of this run: add it",
        read_new_records,
        path,
        NUMBERS,
        source,
        labelled=True,
    )
    for label, said in (
        ("9", "no whole number"),
        ("unknown", "text"),
        ("", "missing"),
        ("1.5", "no whole"),
    ):
        path.write_text(f"x,y,label\n1,7,0\n2,40,{label}\n")
        records = read_new_records(path, NUMBERS, source, labelled=False)
        assert (records.labels, records.features.tolist()) == (None, [[1, 7], [2, 40]])
        refused(
            rf"line 3, column 'label': {said}",
            read_new_records,
            path,
            NUMBERS,
            source,
            labelled=True,
        )


@pytest.mark.parametrize(("low", "high"), [(0, 16), (-1, 1), (0, 1.001)])
def test_pixels_that_are_not_scaled_are_refused_with_the_remedy(tmp_path, low, high):
    features = np.full((3, 2, 2), 0.5)
    features[1, 0, 0], features[2, 1, 1] = low, high
    pictures, numbers = ImageFolder(path="x", height=2, width=2), archive(tmp_path, [[-3.0, 200.0]])
    assert len(read_new_records(numbers, NUMBERS, BuiltIn(kind="heart"), labelled=False).names) == 1
    for source, brightest in ((DIGITS, 16), (BuiltIn(kind="mnist"), 255), (pictures, 255)):
        said = rf"pixels from {low:g} to {high:g}: .* \[0, 1\], so divide .* by {brightest} "
        with pytest.raises(UserError, match=said):
            read_new_records(archive(tmp_path, features), PIXELS, source, labelled=False)


def test_bad_rows_are_named_by_line_and_column_or_left_out(tmp_path):
    path = tmp_path / "new.csv"
    # A blank line, and a cell of two lines.
    path.write_text('note,x,y\n\n"a\nb",1,7\nc,,8\nd,2,high\ne,3,9\n')
    source = Table(path="elsewhere.csv", label="label", classes=3, features=("x", "y"))
    refused(
        r"line 5, column 'x': missing.* --skip-bad-rows",
        read_new_records,
        path,
        NUMBERS,
        source,
        labelled=False,
    )
    records = read_new_records(path, NUMBERS, source, labelled=False, skip_bad_rows=True)
    assert records.features[[0, 3]].tolist() == [[1, 7], [3, 9]]
    assert (records.numbered, records.names) == ("line", ["3", "5", "6", "7"])
    assert records.bad == {1: "line 5 (x)", 2: "line 6 (y)"}


def test_images_of_unknown_classes_are_predicted(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        Image.new("L", (2, 2), 255).save(tmp_path / name / "1.png")
    source = ImageFolder(path=tmp_path, height=2, width=2)
    assert read_new_records(tmp_path, PIXELS, source, labelled=False).labels is None
    assert read_new_records(tmp_path, PIXELS, source, labelled=True).labels.tolist() == [0, 1, 2]
