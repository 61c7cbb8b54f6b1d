"""All figures of a run, drawn from its records and saved as SVG."""

import re
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeVar

from fl_dpbayes.calibration import METRICS, CalibrationRecord, ReliabilityRecord
from fl_dpbayes.config import PREDICTORS
from fl_dpbayes.report.calibration_figures import (
    heat_figure,
    reliability_figure,
    sites_figure,
)
from fl_dpbayes.report.curve_figures import epsilon_figure, net_benefit_figure, roc_figure
from fl_dpbayes.report.figure_style import DrawnFigure, drawn_figure, figure_name, save_figures
from fl_dpbayes.report.headline import headline_predictor, headline_role
from fl_dpbayes.report.hospital_figures import HospitalPanel, hospital_figure, hospitals_figure
from fl_dpbayes.report.hospitals import hospital_verdicts, most_telling
from fl_dpbayes.report.numbers import UNDEFINED, count, decimal, interval, probability
from fl_dpbayes.report.page_tables import error_cell
from fl_dpbayes.report.run_files import EpsilonCurve
from fl_dpbayes.report.summary import Summary
from fl_dpbayes.report.verdicts import calibration_words
from fl_dpbayes.report.wording import ROLES, in_reading_order, predictor_name

# "rotation (severity 3)", and as earlier runs wrote it.
SHIFT = re.compile(r"(.+?),? \(?severity (\d)\)?")
LEAST_SHIFTS = 4
Row = TypeVar("Row", CalibrationRecord, ReliabilityRecord)


def draw_figures(
    run_dir: Path, run: Summary, curves: Sequence[EpsilonCurve]
) -> dict[str, list[DrawnFigure]]:
    """Draw a run's figures and save them below its `figures` folder.

    Returns:
        By the page's names. Of the predictor that is read first: predicted risks and outcomes by
        hospital, calibration of each, reliability diagrams per role, the decision curve, the error
        by shift and severity. Of all: reliability diagrams, ROC and decision curves per role, each
        metric per site. Epsilon per round. A figure without data is left out.
    """
    places = in_reading_order(run.places)
    headline = headline_predictor(run)
    diagrams = _pooled_diagrams(run)
    own_diagrams = [row for row in diagrams if row.predictor == headline]
    own_curves = [row for row in _decision_curves(run) if row.predictor == headline]
    role = headline_role(run)
    figures = {
        "hospitals_figure": [_draw_hospitals(run)],
        "panels": _draw_panels(run),
        "reliability": [_draw_reliability(run, row) for row in own_diagrams],
        "net_benefit": [_draw_net_benefit([row]) for row in own_curves if row.role == role],
        "epsilon": [_draw_epsilon(run, curves)],
        "shifts": [_draw_shifts(run)],
        "other_reliability": [
            _draw_reliability(run, row) for row in diagrams if row.predictor != headline
        ],
        "other_figures": [
            *(_draw_roc(run, rows) for rows in _by_role(row for row in diagrams if row.roc)),
            *(
                _draw_net_benefit(rows, name="net_benefits")
                for rows in _by_role(_decision_curves(run))
            ),
            *(_draw_sites(places, key) for key in run.measures.drawn),
        ],
    }
    drawn = {
        name: [figure for figure in optional if figure is not None]
        for name, optional in figures.items()
    }
    save_figures(run_dir, chain.from_iterable(drawn.values()))
    return drawn


def _pooled_diagrams(run: Summary) -> list[ReliabilityRecord]:
    """Return the diagrams over all sites of a role that hold a record, in reading order."""
    roles = list(ROLES)
    predictors = list(PREDICTORS)
    rows = [
        row
        for row in run.reliability
        if row.site == f"pooled:{row.role}"
        and row.predictor in predictors
        and any(part.n for part in row.bins)
    ]
    return sorted(rows, key=lambda row: (roles.index(row.role), predictors.index(row.predictor)))


def _decision_curves(run: Summary) -> list[CalibrationRecord]:
    """Return the pooled rows with a decision curve, the headline predictor's first."""
    headline = headline_predictor(run)
    rows = [row for row in run.calibration if row.net_benefit and row.over == "pooled"]
    return sorted(rows, key=lambda row: row.predictor != headline)


def _by_role(rows: Iterable[Row]) -> list[list[Row]]:
    by_role: dict[str, list[Row]] = {role: [] for role in ROLES}
    for row in rows:
        by_role[row.role].append(row)
    return [members for members in by_role.values() if members]


def _draw_hospitals(run: Summary) -> DrawnFigure | None:
    rows = [hospital.row for hospital in hospital_verdicts(run)]
    rows = [row for row in rows if row.mean_risk is not None and row.event_rate is not None]
    if not rows:
        return None
    title = "Predicted and happened"
    subtitle = "one dot for each hospital, with its 95% interval\nfilled: took no part in training"
    return drawn_figure(
        name="hospitals",
        description=f"{title}: {subtitle}.".replace("\n", "; "),
        draw=lambda: hospitals_figure(rows, title, subtitle),
    )


def _draw_panels(run: Summary) -> list[DrawnFigure | None]:
    """Draw the calibration of each hospital of the page's first table."""
    diagrams = {(row.site, row.predictor): row for row in run.reliability if row.risk}
    panels: list[DrawnFigure | None] = []
    for hospital in most_telling(hospital_verdicts(run)):
        row = hospital.row
        words = calibration_words(hospital)
        content = HospitalPanel(
            row=row, words=words, diagram=diagrams.get((row.site, row.predictor))
        )
        if row.mean_risk is None:
            continue
        title = f"{row.site}: {hospital.word}"
        panels.append(
            drawn_figure(
                name=figure_name("calibration", str(len(panels))),
                description=f"Calibration. {title}; {words}",
                draw=partial(hospital_figure, content, title),
            )
        )
    return panels


def _draw_reliability(run: Summary, row: ReliabilityRecord) -> DrawnFigure | None:
    title = f"{ROLES[row.role].capitalize()}, {predictor_name(row)}"
    subtitle = f"n = {count(sum(part.n for part in row.bins))}"
    measured = run.measured(row.site, row.predictor)
    error, ends = error_cell(measured) if measured else (UNDEFINED, "")
    if error != UNDEFINED:
        subtitle = f"{subtitle}; off by {error} points {ends}".rstrip()
    return drawn_figure(
        name=figure_name("reliability", row.role, row.predictor),
        description=f"Reliability diagram. {title}; {subtitle}.",
        draw=lambda: reliability_figure(row, title, subtitle),
    )


def _draw_epsilon(run: Summary, curves: Sequence[EpsilonCurve]) -> DrawnFigure | None:
    deltas = sorted({row.delta for row in run.privacy if row.delta is not None})
    subtitle = f"at delta {probability(deltas[0])}" if len(deltas) == 1 else "at each site's delta"
    if run.epsilon_methods:
        subtitle = f"{subtitle}; by {run.epsilon_methods}"
    return drawn_figure(
        name="epsilon",
        description=f"Epsilon spent after each round at each site, {subtitle}.",
        draw=lambda: epsilon_figure(curves, subtitle),
    )


def _draw_sites(places: Sequence[CalibrationRecord], metric: str) -> DrawnFigure | None:
    title = METRICS[metric].name
    with_ends = any(row.intervals.get(metric) is not None for row in places)
    ends = ", with 95% intervals" if with_ends else ""
    return drawn_figure(
        name=figure_name("sites", metric),
        description=f"{title} at every site{ends}.",
        draw=lambda: sites_figure(places, metric, title),
    )


def _draw_shifts(run: Summary) -> DrawnFigure | None:
    """Draw the error at shifted sites by kind and severity, where there are enough."""
    shifts = {site.name: SHIFT.fullmatch(site.shift) for site in run.sites}
    predictor = headline_predictor(run)
    values: dict[tuple[str, str], float] = {}
    words = ""
    for row in run.places:
        shift = shifts.get(row.site)
        if row.over or row.predictor != predictor or row.rms_debiased is None or shift is None:
            continue
        kind, severity = shift.groups()
        key = (kind.replace("_", " "), severity)
        values[key] = max(100 * row.rms_debiased, values.get(key, 0.0))
        words = words or predictor_name(row)
    if len(values) < LEAST_SHIFTS:
        return None
    title = "Calibration error by shift and severity"
    subtitle = f"debiased RMS, points; {words}"
    return drawn_figure(
        name="shifts",
        description=f"{title}, {subtitle}.",
        draw=lambda: heat_figure(values, title, subtitle),
    )


def _draw_roc(run: Summary, rows: Sequence[ReliabilityRecord]) -> DrawnFigure | None:
    first = rows[0]
    title = f"{ROLES[first.role].capitalize()}, ROC"
    measured = [run.measured(diagram.site, diagram.predictor) for diagram in rows]
    areas = [
        f"{decimal(row.auroc)} {interval(row.intervals.get('auroc'), decimal)}".strip()
        for row in measured
        if row is not None
    ]
    subtitle = f"AUROC [95% interval]: {'; '.join(areas)}"
    return drawn_figure(
        name=figure_name("roc", first.role),
        description=f"{title}. {subtitle}.",
        draw=lambda: roc_figure(rows, title, subtitle),
    )


def _draw_net_benefit(
    rows: Sequence[CalibrationRecord], name: str = "net_benefit"
) -> DrawnFigure | None:
    title = f"{ROLES[rows[0].role].capitalize()}, decision curve"
    return drawn_figure(
        name=figure_name(name, rows[0].role),
        description=f"Net benefit per 100 records at each threshold. {title}.",
        draw=lambda: net_benefit_figure(rows, title),
    )
