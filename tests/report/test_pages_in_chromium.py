"""Every report page in a real browser: nothing on its console, nothing wider than the window."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fl_dpbayes.report.study.page import write_study_report

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason=f"no browser on PATH: {', '.join(NAMES)}"),
]
LONG = "a_name_of_which_nobody_thought_that_it_could_be_so_long_without_any_blank_in_it"

SECONDS = 60
WIDTHS = (360, 1280)
# A window is never narrower than 500 pixels, a frame is.
FRAMES = (
    "<!DOCTYPE html><title></title><script>window.addEventListener('message', event => "
    "{ document.title += event.data + ';' })</script>"
)
FRAME = "<iframe src='PAGE' style='border: 0; width: WIDTHpx; height: 900px'></iframe>"
MEASURE = (
    "<script>window.addEventListener('load', () => { for (const d of "
    "document.querySelectorAll('details')) "
    "d.open = OPEN; parent.postMessage([window.innerWidth, "
    "document.documentElement.scrollWidth].join(' '), '*') })"
    "</script>"
)
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
# What Chromium says of the machine it runs on, not of the page.
CONSOLE = re.compile(r"CONSOLE[:(]")


def load(page: Path, width: int, profile: Path) -> tuple[str, str]:
    """Load a page; return its document and what the browser logged."""
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
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    return done.stdout, done.stderr


def widths(page: Path, folder: Path) -> list[tuple[int, int]]:
    """Return the widths of window and document of a page, its details opened and as they are, narrow and wide.

    Measured are copies with a script, which the page's own policy would forbid; the page itself is
    left alone.
    """
    content, policies = POLICY.subn("", page.read_text(encoding="utf-8"))
    assert policies == 1
    frames = FRAMES
    for name, opened in (("opened", "true"), ("as-it-is", "d.open")):
        copy = folder / f"{page.stem}-{name}.html"
        copy.write_text(
            content.replace("</head>", f"{MEASURE.replace('OPEN', opened)}</head>"),
            encoding="utf-8",
        )
        frames += "".join(
            FRAME.replace("PAGE", copy.name).replace("WIDTH", str(width)) for width in WIDTHS
        )
    (folder / "frames.html").write_text(frames, encoding="utf-8")
    document, _ = load(folder / "frames.html", 1400, folder / "profile")
    title = re.search(r"<title>([\d ;]*)</title>", document)
    assert title is not None, document[:500]
    found = [tuple(map(int, pair.split())) for pair in title[1].split(";") if pair]
    assert sorted(window for window, _ in found) == sorted(2 * WIDTHS)
    return found


@pytest.fixture
def study_page(study_folder) -> Path:
    axes = {"sampler": ["dp-sgd", "dp-sgld"], LONG: [LONG, f"{LONG}_too"]}
    return write_study_report(study_folder(shifts=True, further=True, extra_axes=axes, site=LONG))


def test_no_page_is_wider_than_its_window(
    study_page: Path, reported: Path, measured: Path, tmp_path: Path
) -> None:
    for page in (study_page, reported, measured):
        for window, document in widths(page, tmp_path):
            assert document <= window, page


def test_the_console_stays_empty(
    study_page: Path, reported: Path, measured: Path, tmp_path: Path
) -> None:
    for page in (study_page, reported, measured):
        document, log = load(page, 1280, tmp_path / "profile")
        assert "<svg" in document
        assert not CONSOLE.search(log)


def test_the_checks_can_fail(reported: Path, tmp_path: Path) -> None:
    page = tmp_path / "broken.html"
    wide = '<div style="width: 2000px">wide</div><script>console.error(1)</script>'
    page.write_text(
        reported.read_text(encoding="utf-8").replace("</main>", f"{wide}</main>"), encoding="utf-8"
    )
    assert all(document > window for window, document in widths(page, tmp_path))
    _, log = load(page, 1280, tmp_path / "profile")
    assert CONSOLE.search(log)
