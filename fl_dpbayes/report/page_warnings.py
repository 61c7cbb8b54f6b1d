"""The warnings of a run's page: few that a clinician meets, in full for the coordinator."""

import re
from dataclasses import dataclass

from fl_dpbayes.calibration import CalibrationRecord, wilson_interval
from fl_dpbayes.config import Role
from fl_dpbayes.report.headline import headline_predictor
from fl_dpbayes.report.numbers import count
from fl_dpbayes.report.summary import Summary
from fl_dpbayes.report.warnings import DECIDES, ROLE_WORDS

MOST_WARNINGS = 3
PLACES: dict[Role, str] = {
    "held_out": "where the model did not train",
    "shifted": "with changed records",
    "train": "where the model trained",
}
_DECISIVE = re.compile(rf"(.+?) {DECIDES} \d+ (\S+) sites: ")


@dataclass(frozen=True)
class PageWarnings:
    """What a page warns of.

    Attributes:
        shown: What is read first.
        folded: Further ones, and the whole of those that are shown in short.
    """

    shown: tuple[str, ...]
    folded: tuple[str, ...]


def page_warnings(run: Summary) -> PageWarnings:
    """Choose what a page warns of; that one site decides a pooled result is said once for it.

    The run's own warning may be of another predictor than the one that the page shows.
    """
    texts: dict[str, None] = {}
    in_full: list[str] = []
    for warning in run.warnings:
        match = _DECISIVE.match(warning)
        short = _decisive_site(run, match[1], match[2]) if match else ""
        texts[short or warning] = None
        if short:
            in_full.append(warning)
    listed = list(texts)
    return PageWarnings(
        shown=tuple(listed[:MOST_WARNINGS]), folded=(*listed[MOST_WARNINGS:], *in_full)
    )


def _decisive_site(run: Summary, site: str, role_words: str) -> str:
    """Say how large a site is among those of its role, and how it differs; empty if not known.

    Args:
        run: The run.
        site: Its name.
        role_words: Its role, as warnings say it.
    """
    predictor = headline_predictor(run)
    rows = {
        row.site: row
        for row in run.calibration
        if not row.over and row.predictor == predictor and row.n and row.accuracy is not None
        if ROLE_WORDS.get(row.role, row.role) == role_words
    }
    decisive = rows.pop(site, None)
    if decisive is None or not rows:
        return ""
    n = decisive.n or 0
    total = n + sum(row.n or 0 for row in rows.values())
    size = f"{site} is {count(n)} of the {count(total)} patients tested {PLACES[decisive.role]}"
    here, elsewhere = _right([decisive]), _right([*rows.values()])
    if here.high < elsewhere.low or elsewhere.high < here.low:
        difference = (
            f"differs from the others ({here.share:.0%} right, without it {elsewhere.share:.0%})"
        )
    else:
        difference = "decides what all of them together show"
    return f"{size}, and {difference}: read each hospital's row."


@dataclass(frozen=True)
class _Right:
    """The share of records whose class was predicted, with its 95 % interval."""

    share: float
    low: float
    high: float


def _right(rows: list[CalibrationRecord]) -> _Right:
    records = sum(row.n or 0 for row in rows)
    right = sum((row.n or 0) * (row.accuracy or 0.0) for row in rows)
    low, high = wilson_interval(right, records) or (0.0, 1.0)
    return _Right(share=right / records, low=low, high=high)
