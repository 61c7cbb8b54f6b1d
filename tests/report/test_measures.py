import html
import re
import xml.etree.ElementTree as ElementTree

import pytest

from fl_dpbayes.config.summary import CalibrationRecord, ConformalRecord, parse_summary
from fl_dpbayes.report.figures import site_reliability
from fl_dpbayes.report.measure_tables import _split_rows
from fl_dpbayes.report.net_benefit_figure import net_benefit_figure
from fl_dpbayes.report.page import write_report

HOSTILE = "<script>alert(1)</script>\" onload='x' <img src=//evil>"
SECTIONS = {"subgroups", "clinical", "conformal", "uncertainty", "truth"}


def words(path):
    text = html.unescape(re.sub(r"<[^>]*>", "", path.read_text(encoding="utf-8")))
    return " ".join(text.split())


def cells(path):
    found = re.findall(r"<td[^>]*>(.*?)</td>", path.read_text(encoding="utf-8"), re.S)
    return [" ".join(html.unescape(re.sub(r"<[^>]*>", "", cell)).split()) for cell in found]


def row_after(path, *first):
    """The cells behind the first that follow each other so."""
    found = cells(path)
    starts = [i for i in range(len(found)) if tuple(found[i : i + len(first)]) == first]
    assert starts, first
    return found[starts[0] + len(first) :]


def sections(path):
    return set(re.findall(r'<h2 id="(\w+)"', path.read_text(encoding="utf-8"))) & SECTIONS


def texts(svg):
    return [node.text for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def drawn(page, name):
    return texts((page.parent / "figures" / f"{name}.svg").read_text(encoding="utf-8"))


def test_sections_appear_only_where_data_exist(measured, reported):
    assert sections(measured) == SECTIONS
    assert sections(reported) == set()


@pytest.mark.parametrize(
    ("section", "key"), [("subgroups", "subgroups"), ("conformal", "conformal"), ("uncertainty", "shift_detection")]
)
def test_a_part_without_rows_is_left_out_alone(write_run, measured_summary, section, key):
    measured_summary["reliability"] = []
    measured_summary[key] = []
    assert sections(write_report(write_run(measured_summary))) == SECTIONS - {section}


def test_an_uncertainty_that_is_undefined_everywhere_has_no_section(write_run, measured_summary):
    measured_summary["reliability"] = []
    for row in measured_summary["shift_detection"]:
        row |= {"auroc": None, "low": None, "high": None, "interval": None}
    assert "uncertainty" not in sections(write_report(write_run(measured_summary)))


def test_tables_hold_the_numbers_of_the_summary(measured):
    assert row_after(measured, "sex: female", "all held-out sites")[:2] == ["61", "11.1 [10.2, 12.0]"]
    assert row_after(measured, "all held-out sites", "none")[:4] == ["85.0 [83.0, 87.0]", "too low", "1.26", "150"]
    assert row_after(measured, "", "prevalence from its labels")[1] == "no clear difference"
    assert row_after(measured, "", "prevalence from its predictions")[1] == "above"
    slopes = row_after(measured, "all held-out sites", "last iterate", "450", "+0.21 [-0.02, +0.45]")
    assert slopes[:2] == ["0.81 [0.70, 0.93]", "0.970 [0.968, 0.972]"]
    assert row_after(measured, "new-scanner", "detector_noise, severity 3")[:3] == [
        "0.83 [0.73, 0.93], bounds [0.820, 0.840]", "0.41 [0.31, 0.51], bounds [0.400, 0.420]", "150"
    ]  # fmt: skip
    truth = row_after(measured, "", "averaged posterior", "450", "2.1 [1.2, 3.0]", "2.8")
    assert truth[:3] == ["yes", "3.1", "1.9"]
    assert row_after(measured, "25.0")[:4] == ["27.5 [22.5, 32.5]", "17.5 [12.5, 22.5]", "15.0", "0.0"]
    assert {"1.1", "2.2", "0.033", "94.4"} <= set(cells(measured))
    text = words(measured)
    assert "Asked for: 90%. Sets calibrated on the training records (n = 777)" in text
    assert "test records (n = 777)" in text


def test_a_true_error_outside_its_interval_is_said(write_run, measured_summary):
    measured_summary["reliability"] = []
    for row in measured_summary["calibration"]:
        row["rms_true"] = 0.5
    page = write_report(write_run(measured_summary))
    assert row_after(page, "", "averaged posterior", "450", "2.1 [1.2, 3.0]", "50.0")[0] == "no"


def test_sites_are_read_after_their_pool_and_never_twice():
    def record(site, role, predictor="posterior"):
        return ConformalRecord(site=site, role=role, predictor=predictor, level=0.9, weights="none")

    pool, one, two = record("pooled:held_out", "held_out"), record("a", "held_out"), record("b", "held_out")
    alone, last = record("c", "shifted"), record("pooled:held_out", "held_out", "last")
    assert _split_rows([pool, one, two, alone]) == ([pool, alone], [one, two])
    assert _split_rows([pool, one]) == ([pool], [])
    assert _split_rows([pool, last, one], "posterior") == ([pool], [last])


def test_panels_are_of_single_sites_and_one_predictor(summary):
    rows = site_reliability(parse_summary(summary))
    assert [row.site for row in rows] == [
        "island", "university", "new-scanner", "harbour-hospital", "north-clinic", "st-anne", "valley"
    ]  # fmt: skip
    assert {row.predictor for row in rows} == {"posterior"}


def test_each_site_has_its_panel(reported):
    shown = drawn(reported, "reliability-sites")
    assert {"Site by site, averaged posterior", "island", "new-scanner", "held out, n = 450"} <= set(shown)
    assert "harbour…ospital" in shown
    assert not any("pooled" in text for text in shown if text)


def test_every_site_of_a_full_grid_stands_within_the_figure(write_run, figures_of, summary):
    summary["sites"] = [{"name": f"s{i}", "role": "train"} for i in range(24)]
    row, summary["calibration"] = summary["reliability"][0], []
    summary["reliability"] = [row | {"site": f"s{i}", "role": "train"} for i in range(24)]
    svg = figures_of(write_run(summary))["reliability-sites"].svg
    assert {f"s{i}" for i in range(24)} <= set(texts(svg))


def test_decision_curve_is_drawn_per_role(measured):
    names = {path.stem for path in (measured.parent / "figures").glob("net_benefit-*.svg")}
    assert names == {"net_benefit-held_out", "net_benefit-shifted", "net_benefit-train"}
    shown = set(drawn(measured, "net_benefit-held_out"))
    assert {"Held-out sites, decision curve", "averaged posterior", "last iterate", "treat all", "treat none"} <= shown


def test_a_curve_without_intervals_is_drawn(measured_summary):
    points = [point | {"interval": None, "model": None} for point in measured_summary["calibration"][0]["net_benefit"]]
    row = CalibrationRecord.model_validate(measured_summary["calibration"][0] | {"net_benefit": points})
    assert "treat none" in [text.get_text() for text in net_benefit_figure([row], "").texts]


def test_hostile_strings_are_escaped(measured, write_run, measured_summary):
    tags = re.compile(r"<([a-z]\w*)")
    plain = set(tags.findall(measured.read_text(encoding="utf-8")))
    for row in measured_summary["subgroups"]:
        row |= {"attribute": HOSTILE, "value": HOSTILE}
    for row in measured_summary["conformal"]:
        row |= {"site": HOSTILE, "weights": HOSTILE, "calibrated_on": HOSTILE}
    for row in measured_summary["shift_detection"]:
        row |= {"site": HOSTILE}
    measured_summary["sites"][0]["name"] = HOSTILE
    for row in measured_summary["reliability"]:
        row["site"] = HOSTILE
    page = write_report(write_run(measured_summary))
    assert set(tags.findall(page.read_text(encoding="utf-8"))) <= plain
    assert HOSTILE in words(page)
    assert sections(page) == SECTIONS
