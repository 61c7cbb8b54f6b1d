import math
import re
from html.parser import HTMLParser

import pytest

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.summary import parse_summary
from fl_dpbayes.report.answer import answer
from fl_dpbayes.report.page import write_report
from fl_dpbayes.report.run_files import write_summary

HOSTILE = "<script>alert(1)</script>\" onload='x' <img src=//evil>"
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
    reader.feed(path.read_text(encoding="utf-8"))
    assert reader.open == []
    return reader


def words(reader):
    return " ".join(" ".join(reader.text).replace("\N{NO-BREAK SPACE}", " ").split())


def test_page_opens_with_the_answer(reported, summary):
    text = words(read(reported))
    found = answer(parse_summary(summary))
    assert text.startswith(f"quickstart {found.calibration} {found.elsewhere} {found.privacy} 2.1 points off")


def test_page_is_self_contained(reported):
    reader = read(reported)
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(reader.tags)
    assert not re.search(r"https?:|//\w+\.\w|@import|url\((?!#)", reported.read_text(encoding="utf-8"))
    for _, name, value in reader.attributes:
        assert name != "src"
        assert not name.startswith("on")
        assert name != "href" or value.startswith("#")
    identifiers = [value for _, name, value in reader.attributes if name == "id"]
    assert len(identifiers) == len(set(identifiers))


def test_hostile_strings_are_escaped(reported, write_run, summary, privacy_rounds):
    plain = set(read(reported).tags)
    summary |= {"scenario": HOSTILE, "aggregation": HOSTILE, "adjacency": HOSTILE, "warnings": [HOSTILE]}
    summary["versions"] = {HOSTILE: HOSTILE}
    summary["releases"] = [{"item": HOSTILE, "how": HOSTILE}]
    summary["seconds"] = {HOSTILE: 1.0}
    for row in (summary["sites"][0], summary["sites"][4]):
        row |= {"name": HOSTILE, "unit": HOSTILE, "shift": HOSTILE}
    summary["privacy"][0] |= dict.fromkeys(("site", "unit", "status", "epsilon_method", "mu_kind"), HOSTILE)
    for row in [*summary["calibration"][6:], *summary["reliability"]]:
        row |= {"site": HOSTILE}
    summary["calibration"][7]["predictor"] = HOSTILE
    for row in privacy_rounds:
        row["site"] = HOSTILE
    path = write_report(write_run(summary, privacy_rounds))
    reader = read(path)
    assert set(reader.tags) <= plain
    assert HOSTILE in words(reader)
    assert "<script" not in path.read_text(encoding="utf-8")
    assert not any(name.startswith("on") for _, name, _ in reader.attributes)


def test_tables_hold_the_given_numbers(reported):
    cells = read(reported).cells
    for expected in ("1.96 pld", "0.613 clt", "1.37 [0.910, 1.86]", "1e-4", "2.1 [1.2, 3.0]", "3.1 (3.8)", "960.0 kB"):
        assert expected in [" ".join(cell.split()) for cell in cells], expected


def test_undefined_is_a_dash_and_infinite_a_sign(write_run, summary, privacy_rounds):
    summary["privacy"][0] |= {"epsilon": math.inf, "mu": math.inf, "budget": math.inf}
    summary["privacy"][1] = {"site": "harbour-hospital"}
    summary["reliability"] = []
    summary["calibration"] = [row | {"auroc": None, "brier": float("nan")} for row in summary["calibration"]]
    reader = read(write_report(write_run(summary)))
    rows = [" ".join(cell.split()) for cell in reader.cells]
    assert rows[rows.index("north-clinic") + 4] == "∞ pld"
    assert rows[rows.index("harbour-hospital") + 4] == "–"
    assert "nan" not in rows
    assert "None" not in " ".join(rows)
    assert "There is no privacy guarantee: epsilon is infinite at 1 of 3 sites." in words(reader)


def test_every_section_and_the_numbers_of_every_figure(reported):
    reader = read(reported)
    identifiers = {value for _, name, value in reader.attributes if name == "id"}
    assert {"privacy", "releases", "calibration", "sites", "cost", "limits", "run"} <= identifiers
    assert reader.tags.count("figure") == 12
    assert reported.read_text(encoding="utf-8").count("Numbers of this figure") == 12
    assert len(list((reported.parent / "figures").glob("*.svg"))) == 12


def test_a_run_that_measured_nothing_still_has_a_page(write_run, summary):
    summary |= {"privacy": [], "calibration": [], "reliability": [], "releases": [], "seconds": {}, "sites": []}
    summary |= {"bytes": {"up": [], "down": []}, "configurations_tried": None, "seed": None, "versions": {}}
    text = words(read(write_report(write_run(summary, []))))
    assert "No calibration was measured." in text
    assert "No site trained." in text
    assert "How many configurations were tried is not recorded." in text


def test_seeded_run_is_marked(write_run, summary):
    text = words(read(write_report(write_run({**summary, "seeded": True, "reliability": []}))))
    assert text.startswith("quickstart (seeded: not private)")
    assert "Seeded: not private." in text


def test_equal_runs_give_equal_pages(reported, write_run, summary):
    assert write_report(write_run(summary)).read_bytes() == reported.read_bytes()


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="is not a run directory"):
        write_report(tmp_path)


def test_privacy_unit_is_named(summary, tmp_path):
    for row in (*summary["sites"], *summary["privacy"]):
        row["unit"] = "family"
    write_summary(summary, tmp_path)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "one family" in page
    assert re.search(r"<td[^>]*>\s*family\s*</td>", page)


DAMAGED = {
    "not a number": b"site,round,epsilon,budget\nnorth,1,x,2\n",
    "no site": b"round,epsilon,budget\n1,0.5,2\n",
    "not text": b"site,round,epsilon\n\xff\xfe,1,0.5\n",
    "NUL": b"site,round,epsilon,budget\nnorth,1,\x00,2\n",
    "half a row": b"site,round,epsilon,budget\nnorth,1\nnorth,one,0.5,2\n",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_privacy_table_is_named_in_one_line(write_run, summary, name):
    run_dir = write_run(summary)
    (run_dir / "privacy.csv").write_bytes(DAMAGED[name])
    with pytest.raises(UserError, match=r"privacy.csv is damaged \(.*\): remove it") as caught:
        write_report(run_dir)
    assert "\n" not in str(caught.value)


def test_file_in_the_place_of_the_figures_is_named(write_run, summary):
    run_dir = write_run(summary)
    (run_dir / "figures").write_text("")
    with pytest.raises(UserError, match=r"figures cannot be written \(File exists\)"):
        write_report(run_dir)


def test_cost_of_noised_test_results_is_in_the_privacy_section(write_run, summary):
    summary["evaluation_privacy"] = [
        {"site": "island", "unit": "patient", "delta": 1e-4, "epsilon": 0.8941, "epsilon_method": "pld", "mu": 0.35,
         "mu_kind": "exact", "budget": 2.5},
    ]  # fmt: skip
    reader = read(write_report(write_run(summary)))
    cells = [" ".join(cell.split()) for cell in reader.cells]
    start = cells.index("island")
    assert cells[start : start + 10] == [
        "island", "patient", "", "", "0.895 pld", "2.50", "1e-4", "0.350 exact", "", "evaluation"
    ]  # fmt: skip
    assert "Noised test results, on other units, cost at most epsilon 0.895." in words(reader)
    summary["evaluation_privacy"][0]["epsilon"] = None
    assert "is not recorded" in answer(parse_summary(summary)).privacy
