"""What a reader meets on a page of a run: how many words and rows, and that none contradicts."""

import re
from collections import Counter
from html.parser import HTMLParser

import pytest

from fl_dpbayes.calibration import MOST_SHOWN
from fl_dpbayes.config import PREDICTORS
from fl_dpbayes.report.answer import answer
from fl_dpbayes.report.hospitals import hospital_verdicts
from fl_dpbayes.report.measure_tables import measure_tables
from fl_dpbayes.report.page import write_report
from fl_dpbayes.report.summary import parse_summary
from fl_dpbayes.report.term_links import link_terms
from fl_dpbayes.report.verdicts import SIGNS, calibration_words, verdicts

MOST_WORDS = 1200
LONGEST_SENTENCE = 35
VOID = {"meta", "br"}
ADVICE = {
    "does not fit": "Do not rely on the model",
    "recalibrate first": "Recalibrate first, then measure again",
    "fits here": "Watch",
    "too few to tell": "Look at more patients",
}
BLOCKS = {"p", "li", "td", "th", "dd", "dt", "summary", "h1", "h2", "h3"}
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


class VisiblePage(HTMLParser):
    """The text of a page outside closed details, without the texts of figures.

    Attributes:
        words: All of it.
        blocks: Paragraphs, cells and so on of the whole page, what is folded too.
        unfolded_blocks: Those outside closed details.
        rows: How many rows each table outside closed details has, its header apart.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self._open: list[tuple[str, bool, bool]] = []
        self._text: list[str] = []
        self.blocks: list[str] = []
        self.unfolded_blocks: list[str] = []
        self.rows: list[int] = []
        self.feed(page)
        assert not self._open

    @property
    def words(self) -> list[str]:
        return " ".join(self._text).split()

    @property
    def _hidden(self) -> bool:
        return any(hidden for _, hidden, _ in self._open)

    @property
    def _folded(self) -> bool:
        closed = [place for place, (_, _, closed) in enumerate(self._open) if closed]
        in_summary = self._open and any(tag == "summary" for tag, _, _ in self._open)
        # The summary of closed details is seen, unless they are in others.
        return bool(closed) and not (in_summary and len(closed) == 1)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag in VOID:
            return
        values = dict(attributes)
        hidden = tag in ("svg", "style", "title") or values.get("class") == "hidden"
        self._open.append((tag, hidden, tag == "details" and "open" not in values))
        if tag in BLOCKS and not self._hidden:
            self.blocks.append("")
            if not self._folded:
                self.unfolded_blocks.append("")
        if tag == "tbody" and not self._folded:
            self.rows.append(0)
        if tag == "tr" and not self._folded and self._open[-2][0] == "tbody":
            self.rows[-1] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if self._hidden:
            return
        in_block = any(tag in BLOCKS for tag, _, _ in self._open)
        if in_block:
            self.blocks[-1] += data
        if not self._folded:
            self._text.append(data)
            if in_block:
                self.unfolded_blocks[-1] += data


NO_FIGURES = (
    "hospitals_figure",
    "panels",
    "reliability",
    "net_benefit",
    "epsilon",
    "shifts",
    "other_reliability",
    "other_figures",
)


@pytest.fixture
def page_of(write_run, monkeypatch):
    """Write the page of a summary, without figures, whose texts are not counted."""

    def page(summary: dict) -> str:
        return write_report(write_run(summary)).read_text(encoding="utf-8")

    monkeypatch.setattr(
        "fl_dpbayes.report.figures.draw_figures", lambda *_: {name: [] for name in NO_FIGURES}
    )
    return page


@pytest.mark.slow
@pytest.mark.parametrize("hospitals", [0, 6, 259])
def test_a_page_has_few_words_and_short_tables_and_sentences(
    hospitals, page_of, hospitals_summary, measured_summary
):
    summary = hospitals_summary(hospitals) if hospitals else measured_summary
    page = VisiblePage(page_of(summary))
    assert 200 < len(page.words) <= MOST_WORDS
    assert max(page.rows) <= MOST_SHOWN
    assert len(page.rows) >= 3
    sentences = [part for block in page.blocks for part in SENTENCE_END.split(block.strip())]
    longest = max(sentences, key=lambda sentence: len(sentence.split()))
    assert len(longest.split()) <= LONGEST_SENTENCE, longest


def test_unfolded_text_tells_of_risks_and_of_three_warnings(page_of, hospitals_summary):
    summary = hospitals_summary(6)
    summary["description"] = "Who is <b>dead</b> after a stroke"
    summary["warnings"] = [f"Warning {number}." for number in range(5)]
    text = page_of(summary)
    page = VisiblePage(text)
    unfolded = " ".join(" ".join(page.unfolded_blocks).split())
    whole = " ".join(" ".join(page.blocks).split())
    for folded in ("percentage points [", "Warning 4.", "certainty of the predicted class"):
        assert folded in whole
        assert folded not in unfolded
    assert "Warning 2." in unfolded
    assert "Warning 3." not in unfolded
    for told in ("risks differ from what happened by", "For research: not for decisions"):
        assert told in unfolded
    # So does the table of subgroups; every measure of them is folded.
    for row in summary["subgroups"]:
        row |= {"predictor": "posterior", "mean_risk": 0.4, "event_rate": 0.3}
    tables = measure_tables(parse_summary(summary))
    assert tables["subgroups"].columns[-2:] == ("Of 100 patients, dead or dependent", "AUROC")
    assert "RMS debiased" in tables["further_subgroups"].columns
    # Every hospital spent the same, so the sentence above the table says it all.
    assert "hospital-1 144" not in unfolded
    assert "Each site, all alike" in unfolded
    first = page.unfolded_blocks
    assert first[1] == "Who is <b>dead</b> after a stroke"
    assert "&lt;b&gt;dead" in text
    assert first[3].startswith("For research")
    # Its name does not end a line at the hyphen.
    assert re.search(r'measure again: .*<span class="name">hospital-\d,?</span>', text)


@pytest.mark.slow
def test_no_unfolded_line_compares_two_predictors(page_of, hospitals_summary):
    names = [PREDICTORS[name] for name in ("last", "posterior", "recalibrated", "central")]
    page = VisiblePage(page_of(hospitals_summary(20)))
    unfolded = " ".join(page.unfolded_blocks)
    assert PREDICTORS["posterior"] in unfolded
    assert PREDICTORS["last"] not in unfolded
    assert "iterate" not in unfolded
    # What is folded does.
    assert any(sum(name in block for name in names) == 2 for block in page.blocks)


def test_each_section_links_a_word_once_to_the_glossary_that_holds_it():
    page = link_terms(
        "<h2>a</h2><p>The AUROC and the AUROC, ECE.</p><svg><text>RMS</text></svg>"
        "<details><summary>NLL</summary><p>AUROC, Slope</p></details>"
        '<h2>b</h2><p title="x">AUROC</p><p>slopes Recalibrate first</p>'
    )
    links = re.findall(r'<a class="term" href="#(.+?)">(.+?)</a>', page.page)
    assert links == [
        ("term-auroc", "AUROC"),
        ("term-ece", "ECE"),
        ("term-slope", "Slope"),
        ("term-auroc", "AUROC"),
        ("term-recalibrate-first", "Recalibrate first"),
    ]
    assert {term.name for term in page.terms} == {"AUROC", "ECE", "slope", "recalibrate first"}


@pytest.mark.slow
def test_every_link_of_a_page_leads_somewhere(page_of, hospitals_summary):
    page = page_of(hospitals_summary(20))
    identifiers = set(re.findall(r'\bid="([^"]+)"', page))
    targets = set(re.findall(r'href="#([^"]+)"', page))
    assert {"term-epsilon", "term-auroc", "term-recalibrate-first", "privacy"} <= targets
    assert targets <= identifiers
    glossary = re.findall(r'<dt id="(term-[^"]+)"', page)
    # Only words that the page uses.
    assert len(glossary) == len(set(glossary))
    assert set(glossary) == {target for target in targets if target.startswith("term-")}


def holds(ends, low, high):
    return low <= ends[0] and ends[1] <= high


@pytest.mark.parametrize("seed", range(5))
def test_no_word_contradicts_the_intervals_or_the_sentences_beside_it(hospitals_summary, seed):
    run = parse_summary(hospitals_summary(80, seed))
    hospitals = hospital_verdicts(run)
    assert set(Counter(hospital.word for hospital in hospitals)) == set(SIGNS)
    for hospital in hospitals:
        level = hospital.row.intervals["calibration_intercept"]
        slope = hospital.row.intervals["calibration_slope"]
        order = hospital.row.intervals["auroc"]
        words = calibration_words(hospital)
        off = re.search(r"times too (high|low) \(|too extreme|too timid", words)
        match hospital.word:
            case "fits here":
                assert order[0] > 0.5
                assert holds(level, -0.6932, 0.6932)
                assert slope[0] <= 1 <= slope[1] or holds(slope, 0.5, 2)
                assert not re.search("too extreme|too timid|Too few", words)
            case "recalibrate first":
                assert off, words
            case "does not fit":
                assert order[1] < 0.6
            case "too few to tell":
                assert words.startswith("Too few to tell.")
        if "times too high (" in words:
            assert level[1] < 0
        if "times too low (" in words:
            assert level[0] > 0
        assert ("off by less than 2 times" in words) <= holds(level, -0.6932, 0.6932)
    untrained = Counter(hospital.word for hospital in hospitals if hospital.row.role != "train")
    sentence, advice = verdicts(run).sentence, answer(run).advice
    for word, count in untrained.items():
        assert f"{count} {word}" in sentence
    for word, step in ADVICE.items():
        names = [hospital.row.site for hospital in hospitals if hospital.word == word]
        listed = re.search(rf"{step}: (.+?)\.", advice)[1]
        further = f" and {len(names) - 6} more" if len(names) > 6 else ""
        assert listed == ", ".join(names[:6]) + further
    assert "no error was seen" not in advice


@pytest.mark.slow
def test_table_and_panels_of_a_page_say_the_same(write_run, hospitals_summary):
    summary = hospitals_summary(20)
    page = write_report(write_run(summary)).read_text(encoding="utf-8")
    panels = dict(re.findall(r'aria-label="Calibration\. (hospital-\d+): ([a-z ]+);', page))
    rows = dict(re.findall(r">(hospital-\d+) <small>.*?<span class=.*?>. (.+?)</span>", page, re.S))
    assert len(panels) == MOST_SHOWN
    assert len(rows) == 20
    linked = {name: re.sub("<.+?>", "", word) for name, word in rows.items()}
    assert panels == {name: linked[name] for name in panels}
