"""The page of a run: its parts, its numbers, and that nothing in it can do anything but be read."""

import re
from html.parser import HTMLParser
from itertools import product

import pytest

from fl_dpbayes.calibration.records import CalibrationRecord, ConformalRecord
from fl_dpbayes.errors import UserError
from fl_dpbayes.report.answer import answer
from fl_dpbayes.report.curve_figures import net_benefit_figure
from fl_dpbayes.report.figures import _draw_shifts
from fl_dpbayes.report.measure_tables import _read_first, measure_tables
from fl_dpbayes.report.model_card import model_card
from fl_dpbayes.report.page import write_report
from fl_dpbayes.report.run_files import read_epsilon_curves
from fl_dpbayes.report.study.page import write_study_report
from fl_dpbayes.report.summary import parse_summary

HOSTILE = "<script>alert(1)</script>\" onload='x' <img src=//evil>"
SECTIONS = {"subgroups", "clinical", "conformal", "uncertainty", "truth"}
TERM_LINK = re.compile(r'<a class="term" href="#[a-z-]+">(.*?)</a>')
VOID = {"meta", "img", "br", "hr", "link", "input"}


class Reader(HTMLParser):
    """Collects text and tags, and checks that every tag is closed where it was opened."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.attributes, self.text, self.cells = [], [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attributes]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "title"):
            self.text.append(data)
        if "td" in self.open:
            self.cells[-1] += data


def read(path):
    reader = Reader()
    # Links to the glossary part no words.
    reader.feed(TERM_LINK.sub(r"\1", path.read_text(encoding="utf-8")))
    assert reader.open == []
    reader.cells = [" ".join(cell.split()) for cell in reader.cells]
    return reader


def words(reader):
    return " ".join(" ".join(reader.text).split())


def after(cells, *first):
    """The cells behind the first that follow each other so."""
    starts = [i for i in range(len(cells)) if tuple(cells[i : i + len(first)]) == first]
    assert starts, first
    return cells[starts[0] + len(first) :]


def sections(reader):
    return SECTIONS & {value for _, name, value in reader.attributes if name == "id"}


@pytest.fixture
def written(write_run, monkeypatch):
    """Write a run's report and read it; without figures, which take most of the time."""
    none: dict = {
        name: []
        for name in (
            "hospitals_figure",
            "panels",
            "reliability",
            "net_benefit",
            "epsilon",
            "shifts",
            "other_reliability",
            "other_figures",
        )
    }
    monkeypatch.setattr("fl_dpbayes.report.figures.draw_figures", lambda *_: none)
    return lambda summary, *rounds: read(write_report(write_run(summary, *rounds)))


@pytest.fixture
def drawn(texts):
    return lambda page, name: set(
        texts((page.parent / "figures" / f"{name}.svg").read_text(encoding="utf-8"))
    )


def check_needs_nothing_else(path):
    reader = read(path)
    assert not {"script", "link", "img", "iframe", "object", "base", "form"} & set(reader.tags)
    for _, name, value in reader.attributes:
        assert name != "src"
        assert not name.startswith("on")
        assert name != "href" or value.startswith("#")
    identifiers = [value for _, name, value in reader.attributes if name == "id"]
    assert len(identifiers) == len(set(identifiers))
    assert "default-src 'none'" in path.read_text(encoding="utf-8")
    return reader


def test_page_opens_with_the_answer_and_is_self_contained(reported, summary):
    text, found = words(check_needs_nothing_else(reported)), answer(parse_summary(summary))
    assert text.startswith(
        " ".join(["digits", found.lead, found.advice, found.calibration, *found.elsewhere])
    )
    assert not re.search(
        r"https?:|//\w+\.\w|@import|url\((?!#)", reported.read_text(encoding="utf-8")
    )


@pytest.mark.slow
def test_hostile_names_of_a_study_stay_text_and_its_page_needs_nothing_else(study_folder):
    record = {"study": HOSTILE, "question": HOSTILE, "versions": {"a": HOSTILE}}
    record["failed"] = [{"labels": {HOSTILE: HOSTILE}, "error": HOSTILE}]
    axes = {HOSTILE: [HOSTILE, "b"]}
    folder = study_folder(None, record, site=HOSTILE, shifts=True, further=True, extra_axes=axes)
    assert HOSTILE in words(check_needs_nothing_else(write_study_report(folder)))


@pytest.mark.slow
def test_hostile_strings_are_escaped(measured, write_run, measured_summary, privacy_rounds):
    plain, summary = set(read(measured).tags), measured_summary
    summary |= {
        "scenario": HOSTILE,
        "aggregation": HOSTILE,
        "adjacency": HOSTILE,
        "warnings": [HOSTILE],
    }
    summary |= {"versions": {HOSTILE: HOSTILE}, "releases": [{"item": HOSTILE, "how": HOSTILE}]}
    told = dict.fromkeys(
        ("computation", "products", "processor", "library", "reproducible"), HOSTILE
    )
    summary |= {"passes": [told | {"sites": [HOSTILE], "wanted": 64, "rows": 1, "slower": 2.0}]}
    summary |= {"seconds": {HOSTILE: 1.0}, "reliability": summary["reliability"][:2]}
    for row in (summary["sites"][0], summary["sites"][4]):
        row |= {"name": HOSTILE, "unit": HOSTILE, "shift": HOSTILE}
    summary["privacy"][0] |= dict.fromkeys(
        ("site", "unit", "status", "epsilon_method", "mu_kind"), HOSTILE
    )
    for row in summary["subgroups"]:
        row |= {"attribute": HOSTILE, "value": HOSTILE}
    for row in summary["conformal"]:
        row |= {"weights": HOSTILE, "calibrated_on": HOSTILE}
    lists = ("conformal", "shift_detection", "reliability")
    for row in (
        *summary["calibration"][6:],
        *privacy_rounds,
        *(row for name in lists for row in summary[name]),
    ):
        row["site"] = HOSTILE
    summary["calibration"][7]["predictor"] = HOSTILE
    path = write_report(write_run(summary, privacy_rounds))
    reader = check_needs_nothing_else(path)
    assert set(reader.tags) <= plain
    assert sections(reader) == SECTIONS
    assert HOSTILE in words(reader)
    assert "<script" not in path.read_text(encoding="utf-8")


def test_every_section_number_and_figure_is_there(reported):
    reader = read(reported)
    for expected in (
        "1.96 pld",
        "0.613 clt",
        "1.37 [0.910, 1.86]",
        "1e-4",
        "2.1 [1.2, 3.0]",
        "3.1 (3.8)",
        "960.0 kB",
    ):
        assert expected in reader.cells, expected
    identifiers = {value for _, name, value in reader.attributes if name == "id"}
    assert {"privacy", "releases", "calibration", "sites", "cost", "limits", "run"} <= identifiers
    assert not SECTIONS & identifiers
    assert reader.tags.count("figure") == 10
    assert len(list((reported.parent / "figures").glob("*.svg"))) == 10


def test_a_run_that_measured_nothing_still_has_a_page(written, summary):
    summary |= {
        "privacy": [],
        "calibration": [],
        "releases": [],
        "seconds": {},
        "sites": [],
        "versions": {},
    }
    summary |= {
        "bytes": {"up": [], "down": []},
        "configurations_tried": None,
        "seed": None,
        "seeded": True,
    }
    text = words(written(summary, []))
    assert text.startswith("digits (seeded: not private)")
    assert not {"None", "nan"} & set(text.split())
    assert "No calibration was measured." in text
    assert "No site trained." in text
    assert "How many configurations were tried is not recorded." in text


@pytest.mark.slow
def test_equal_runs_give_equal_pages(reported, write_run, summary):
    assert write_report(write_run(summary)).read_bytes() == reported.read_bytes()


def test_damaged_privacy_table_is_named_in_one_line(tmp_path):
    for content in (
        b"site,round,epsilon,budget\nnorth,1,x,2\n",
        b"round,epsilon,budget\n1,0.5,2\n",
        b"site,round,epsilon\n\xff\xfe,1,0.5\n",
        b"site,round,epsilon,budget\nnorth,1,\x00,2\n",
        b"site,round,epsilon,budget\nnorth,1\nnorth,one,0.5,2\n",
    ):
        (tmp_path / "privacy.csv").write_bytes(content)
        with pytest.raises(UserError, match=r"privacy.csv is damaged \(.*\): remove it") as caught:
            read_epsilon_curves(tmp_path)
        assert "\n" not in str(caught.value)


def test_file_in_the_place_of_the_figures_is_named(write_run, summary):
    run_dir = write_run(summary | {"calibration": [], "reliability": []})
    (run_dir / "figures").write_text("")
    with pytest.raises(UserError, match=r"figures cannot be written \(File exists\)"):
        write_report(run_dir)


def test_a_part_without_rows_is_left_out_alone(measured, written, measured_summary):
    assert sections(read(measured)) == SECTIONS
    for row in measured_summary["calibration"]:
        row["net_benefit"] = None
    measured_summary |= {"subgroups": [], "calibration": measured_summary["calibration"][:2]}
    assert sections(written(measured_summary)) == SECTIONS - {"subgroups", "clinical"}
    measured_summary["conformal"] = []
    for row in measured_summary["shift_detection"]:
        row |= {"auroc": None, "low": None, "high": None, "interval": None}
    assert sections(written(measured_summary)) == {"truth"}
    assert sections(written(measured_summary | {"shift_detection": []})) == {"truth"}


def test_tables_hold_the_numbers_of_the_summary(measured, measured_summary):
    cells = read(measured).cells
    assert after(cells, "sex: female", "all held-out sites")[:2] == ["61 few", "11.1 [10.2, 12.0]"]
    assert after(cells, "all held-out sites", "as calibrated")[:4] == [
        "85.0 [83.0, 87.0]",
        "too low",
        "1.26",
        "150",
    ]
    assert after(cells, "", "prevalence from its labels")[1] == "no clear difference"
    assert after(cells, "", "prevalence from its predictions")[1] == "above"
    slopes = after(cells, "all held-out sites", "last iterate", "450", "+0.21 [-0.02, +0.45]")
    assert slopes[:2] == ["0.81 [0.70, 0.93]", "0.970"]
    assert after(cells, "new-scanner", "detector noise, severity 3")[:3] == [
        "0.83 [0.73, 0.93], bounds [0.820, 0.840]",
        "0.41 [0.31, 0.51], bounds [0.400, 0.420]",
        "150",
    ]
    truth = after(cells, "", "average of posterior samples", "450", "2.1 [1.2, 3.0]", "2.8")
    assert truth[:3] == ["yes", "3.1", "1.9"]
    assert {"1.1", "2.2", "0.033"} <= set(cells)
    text = words(read(measured))
    assert "Asked for: 90%. Sets calibrated on the training records (n = 777)" in text
    assert "test records (n = 777)" in text
    for row in measured_summary["calibration"]:
        row["rms_true"] = 0.5
    outside = measure_tables(parse_summary(measured_summary))["truth"]
    assert [row[4:6] for row in outside.rows] == [(("50.0", ""), ("no", ""))] * 6


def test_sites_are_read_after_their_pool_and_never_twice():
    def record(site, role, predictor="posterior"):
        return ConformalRecord(site=site, role=role, predictor=predictor, level=0.9, weights="none")

    pool, one, two = (record(site, "held_out") for site in ("pooled:held_out", "a", "b"))
    alone, last = record("c", "shifted"), record("pooled:held_out", "held_out", "last")
    parts = _read_first([pool, one, two, alone])
    assert (parts.first, parts.further) == ([pool, alone], [one, two])
    parts = _read_first([pool, one])
    assert (parts.first, parts.further) == ([pool], [])
    parts = _read_first([pool, last, one], "posterior")
    assert (parts.first, parts.further) == ([pool], [last])


def test_shifts_are_a_map_that_names_the_five_worst(summary, texts):
    site, row = summary["sites"][-1], summary["calibration"][-1]
    for number, (kind, severity) in enumerate(product(("rotation", "missing_features"), (1, 2, 3))):
        name = f"moved-{number}"
        summary["sites"].append(site | {"name": name, "shift": f"{kind} (severity {severity})"})
        summary["calibration"].append(
            row | {"site": name, "predictor": "posterior", "rms_debiased": number / 100}
        )
    shown = " ".join(filter(None, texts(_draw_shifts(parse_summary(summary)).svg)))
    order = (
        "missing features 3 (5.0)",
        "missing features 2 (4.0)",
        "missing features 1 (3.0)",
        "rotation 3 (2.0)",
    )
    places = [shown.replace("\n", " ").find(text) for text in order]
    assert places == sorted(places)
    assert min(places) > 0
    assert "rotation 1 (0.0)" not in shown


def test_decision_curve_is_drawn_per_role_and_without_intervals(measured, drawn, measured_summary):
    names = {path.stem for path in (measured.parent / "figures").glob("net_benefit*.svg")}
    roles = ("held_out", "shifted", "train")
    assert names == {"net_benefit-held_out", *(f"net_benefits-{role}" for role in roles)}
    first = {"average of posterior samples", "treat all", "treat none"}
    assert first | {"Held-out sites, decision curve"} <= drawn(measured, "net_benefit-held_out")
    assert "last iterate" not in drawn(measured, "net_benefit-held_out")
    assert first | {"last iterate"} <= drawn(measured, "net_benefits-held_out")
    first = measured_summary["calibration"][0]
    points = [point | {"interval": None, "model": None} for point in first["net_benefit"]]
    row = CalibrationRecord.model_validate(first | {"net_benefit": points})
    assert "treat none" in [
        text.get_text() for text in net_benefit_figure([row], "").legends[0].get_texts()
    ]


def test_decisions_are_counted_at_the_threshold_that_is_declared(summary):
    point = {"threshold": 0.4, "counts": [30, 10, 5, 55], "model": 0.1, "all": 0.1, "none": 0.0}
    for row in summary["calibration"]:
        row["net_benefit"] = [point | {"threshold": step / 20} for step in range(1, 20)]
    tables = measure_tables(parse_summary(summary))
    assert tables["threshold"] == "35"
    cells = tables["operating"].rows[0]
    assert cells[0][0] == "all held-out sites"
    assert [value for value, _ in cells[-4:]] == ["85.7", "84.6", "75.0", "91.7"]
    # 30 of 40 with an alarm, 5 of 60 without.
    assert tables["alarms"] == (
        "At all held-out sites: of 100 with an alarm, 75 had the event; of 100 without an alarm, "
        "8 had the event."
    )
    assert [cells[-4][1], cells[-1][1]] == ["[70.6, 93.7]", "[81.9, 96.4]"]


def test_the_model_card_says_what_the_run_knows_and_what_it_does_not(reported, summary):
    said = model_card(parse_summary(summary | {"data": "a trial", "class_names": ["well", "ill"]}))
    assert said["Source of data"] == "a trial"
    assert said["Outcome"] == "well, ill"
    assert said["Sample size"].startswith(
        "4,936 units trained, 1,050 records tested (450 where it did not train + 600 where it did)"
    )
    assert said["Who could be included (eligibility)"] == "not known to the run"
    assert said["Privacy"] == answer(parse_summary(summary)).privacy
    assert "what this run knows of the items of TRIPOD+AI" in words(read(reported))
