"""Every report page in a real browser: nothing on its console, nothing cut or wider than it."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from fl_dpbayes.report.page import write_report
from fl_dpbayes.report.study.page import write_study_report

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason=f"no browser on PATH: {', '.join(NAMES)}"),
]
LONG = "a_name_of_which_nobody_thought_that_it_could_be_so_long_without_any_blank_in_it"

SECONDS = 60
WIDTHS = (360, 800, 1280)
MOST_LINES = 2
# A window is never narrower than 500 pixels, a frame is.
FRAMES = (
    "<!DOCTYPE html><title></title><script>window.addEventListener('message', event => "
    "{ document.title += event.data + ';' })</script>"
)
FRAME = "<iframe src='PAGE' style='border: 0; width: WIDTHpx; height: 900px'></iframe>"
# Windows of page, document; how many tables cut their rows; the most lines of a column's label, in
# its head or, on a narrow page, beside its cell.
MEASURE = """<script>
function lines(element, height) {
  return Math.round(height / parseFloat(getComputedStyle(element).lineHeight));
}
function labelLines() {
  let most = 0;
  for (const head of document.querySelectorAll('th')) {
    if (!head.checkVisibility() || getComputedStyle(head.closest('thead')).position == 'absolute')
      continue;
    most = Math.max(most, lines(head, textHeight(head)));
  }
  for (const cell of document.querySelectorAll('td')) {
    const style = getComputedStyle(cell, '::before');
    if (!cell.checkVisibility() || style.cssFloat != 'left') continue;
    const probe = document.createElement('div');
    probe.textContent = cell.dataset.label;
    probe.style.cssText =
      `position:absolute;width:${style.width};font-size:${style.fontSize};` +
      `font-weight:${style.fontWeight};line-height:${style.lineHeight}`;
    cell.append(probe);
    most = Math.max(most, lines(probe, probe.offsetHeight));
    probe.remove();
  }
  return most;
}
function textHeight(head) {
  const range = document.createRange();
  range.selectNodeContents(head);
  return range.getBoundingClientRect().height;
}
window.addEventListener('load', () => {
  for (const part of document.querySelectorAll('details')) part.open = OPEN;
  const cut = [...document.querySelectorAll('.scroll')].filter(
    part => part.checkVisibility() && part.scrollWidth > part.clientWidth + 1);
  parent.postMessage([Number(OPENED), window.innerWidth, document.documentElement.scrollWidth,
    cut.length, labelLines()].join(' '), '*');
});
</script>"""
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
# What Chromium says of the machine it runs on, not of the page.
CONSOLE = re.compile(r"CONSOLE[:(]")


def load(page: Path, width: int, profile: Path, anchor: str = "") -> tuple[str, str]:
    """Load a page at an anchor; return its document and what the browser logged."""
    done = subprocess.run(
        [
            CHROMIUM,
            "--no-sandbox",
            "--headless=new",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--window-size={width},900",
            f"--user-data-dir={profile}",
            "--enable-logging=stderr",
            "--v=0",
            "--dump-dom",
            page.as_uri() + anchor,
        ],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    return done.stdout, done.stderr


@dataclass(frozen=True)
class Seen:
    """What a browser made of a page.

    Attributes:
        opened: Whether all details were opened.
        window: Its width, pixels.
        document: The page's width.
        cut_tables: How many tables that are seen cut their rows.
        label_lines: The most lines of a label that is seen.
    """

    opened: bool
    window: int
    document: int
    cut_tables: int
    label_lines: int


def seen(page: Path, folder: Path) -> list[Seen]:
    """Return what is seen of a page, its details opened and as they are, at each width.

    Measured are copies with a script, which the page's own policy would forbid; the page itself is
    left alone.
    """
    content, policies = POLICY.subn("", page.read_text(encoding="utf-8"))
    assert policies == 1
    frames = FRAMES
    for name, opened in (("opened", "true"), ("as-it-is", "part.open")):
        copy = folder / f"{page.stem}-{name}.html"
        script = MEASURE.replace("OPENED", str(opened == "true").lower()).replace("OPEN", opened)
        copy.write_text(content.replace("</head>", f"{script}</head>"), encoding="utf-8")
        frames += "".join(
            FRAME.replace("PAGE", copy.name).replace("WIDTH", str(width)) for width in WIDTHS
        )
    (folder / "frames.html").write_text(frames, encoding="utf-8")
    document, _ = load(folder / "frames.html", 1400, folder / "profile")
    title = re.search(r"<title>([\d ;]*)</title>", document)
    assert title is not None, document[:500]
    measured = []
    for numbers in filter(None, title[1].split(";")):
        opened, *further = map(int, numbers.split())
        measured.append(Seen(bool(opened), *further))
    assert sorted(what.window for what in measured) == sorted(2 * WIDTHS)
    return measured


@pytest.fixture
def study_page(study_folder) -> Path:
    axes = {"sampler": ["dp-sgd", "dp-sgld"], LONG: [LONG, f"{LONG}_too"]}
    return write_study_report(study_folder(shifts=True, further=True, extra_axes=axes, site=LONG))


@pytest.fixture
def hospitals_page(hospitals_summary, write_run) -> Path:
    return write_report(write_run(hospitals_summary(20)))


def test_no_page_is_wider_than_its_window(
    study_page: Path, reported: Path, measured: Path, tmp_path: Path
) -> None:
    for page in (study_page, reported, measured):
        for what in seen(page, tmp_path):
            assert what.document <= what.window, page


def test_no_table_cuts_its_rows_and_no_label_has_three_lines(
    measured: Path, hospitals_page: Path, tmp_path: Path
) -> None:
    for page in (measured, hospitals_page):
        for what in seen(page, tmp_path):
            assert what.document <= what.window, page
            # What is folded holds tables of twenty measures, which scroll.
            if not what.opened:
                assert what.cut_tables == 0, (page, what)
                assert what.label_lines in range(1, MOST_LINES + 1), (page, what)


def test_a_link_to_a_word_opens_the_folded_glossary(hospitals_page: Path, tmp_path: Path) -> None:
    for anchor, opened in (("#term-auroc", True), ("", False)):
        document, _ = load(hospitals_page, 1280, tmp_path / "profile", anchor)
        glossary = re.search(r'<details class="card" id="glossary"[^>]*>', document)
        assert glossary is not None
        assert ("open" in glossary[0]) is opened


def test_the_console_stays_empty(
    study_page: Path, reported: Path, measured: Path, tmp_path: Path
) -> None:
    for page in (study_page, reported, measured):
        document, log = load(page, 1280, tmp_path / "profile")
        assert "<svg" in document
        assert not CONSOLE.search(log)


def test_the_checks_can_fail(reported: Path, tmp_path: Path) -> None:
    page = tmp_path / "broken.html"
    wide = (
        '<div class="scroll"><p style="width: 2000px; max-width: none">wide</p></div>'
        '<table><thead><tr><th></th><th style="min-width: 0; width: 1px">a b c</th></tr></thead>'
        "</table>"
        '<div style="width: 2000px">wide</div><script>console.error(1)</script>'
    )
    page.write_text(
        reported.read_text(encoding="utf-8").replace("</main>", f"{wide}</main>"), encoding="utf-8"
    )
    for what in seen(page, tmp_path):
        assert what.document > what.window
        assert what.cut_tables > 0
        assert what.label_lines > MOST_LINES
    _, log = load(page, 1280, tmp_path / "profile")
    assert CONSOLE.search(log)
