"""All figures of a run with their numbers, drawn from its records and saved as SVG."""

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from fl_dpbayes.config import METRICS, PREDICTORS, CalibrationRecord, ReliabilityRecord, Summary
from fl_dpbayes.report.answer import headline_predictor
from fl_dpbayes.report.calibration_figures import heat_figure, reliability_figure, sites_figure
from fl_dpbayes.report.curve_figures import epsilon_figure, net_benefit_figure, roc_figure
from fl_dpbayes.report.figure_style import DrawnFigure, drawn_figure, figure_name, save_figures
from fl_dpbayes.report.measure_tables import net_benefit_table
from fl_dpbayes.report.numbers import UNDEFINED, count, decimal, interval, points, probability
from fl_dpbayes.report.page_tables import PageTable, epsilon_table, error_cell, once, page_table
from fl_dpbayes.report.run_files import EpsilonCurve
from fl_dpbayes.report.wording import ROLES, in_reading_order, predictor_name

# "rotation (severity 3)", and as earlier runs wrote it.
SHIFT = re.compile(r"(.+?),? \(?severity (\d)\)?")
LEAST_SHIFTS = 4
SITE_METRICS = ("rms_debiased", "accuracy", "nll")


def draw_figures(
    run_dir: Path, run: Summary, curves: Sequence[EpsilonCurve]
) -> dict[str, list[DrawnFigure]]:
    """Draw a run's figures and save them below its `figures` folder.

    Returns by the page's names: reliability diagrams (per role, last beside posterior), epsilon per
    round, each metric per site, the error by shift and severity, ROC and decision curves (per
    role). A figure without data is left out.
    """
    places, headline = in_reading_order(run.places), headline_predictor(run)
    pooled = (
        row for row in run.calibration if row.net_benefit and row.site == f"pooled:{row.role}"
    )
    decisions = sorted(pooled, key=lambda row: row.predictor != headline)
    figures = {
        "reliability": [_draw_reliability(run, row) for row in _pooled_reliability(run)],
        "epsilon": [_draw_epsilon(run, curves)],
        "sites_figures": [
            *(_draw_sites(places, metric) for metric in SITE_METRICS),
            _draw_shifts(run),
        ],
        "roc": [
            _draw_roc(run, rows)
            for rows in _by_role(row for row in _pooled_reliability(run) if row.roc)
        ],
        "net_benefit": [_draw_net_benefit(rows) for rows in _by_role(decisions)],
    }
    drawn = {
        name: [figure for figure in made if figure is not None] for name, made in figures.items()
    }
    save_figures(run_dir, chain.from_iterable(drawn.values()))
    return drawn


def _pooled_reliability(run: Summary) -> list[ReliabilityRecord]:
    """The diagrams over all sites of a role that hold a record: roles, then predictors, in reading order."""
    roles, predictors = list(ROLES), list(PREDICTORS)
    rows = [
        row
        for row in run.reliability
        if row.site == f"pooled:{row.role}" and any(part.n for part in row.bins)
    ]
    known = [row for row in rows if row.predictor in predictors]
    return sorted(known, key=lambda row: (roles.index(row.role), predictors.index(row.predictor)))


def _by_role(rows: Iterable[Any]) -> list[list[Any]]:
    found = list(rows)
    return [of_role for role in ROLES if (of_role := [row for row in found if row.role == role])]


def _draw_roc(run: Summary, rows: Sequence[ReliabilityRecord]) -> DrawnFigure | None:
    title, name = f"{ROLES[rows[0].role].capitalize()}, ROC", figure_name("roc", rows[0].role)
    areas = {row.predictor: row for row in run.calibration if row.site == rows[0].site}
    drawn = (found for row in rows if (found := areas.get(row.predictor)))
    said = "; ".join(
        f"{decimal(found.auroc)} {interval(found.auroc_bounds, decimal)}" for found in drawn
    )
    subtitle = f"AUROC [bounds]: {said}"
    cells = [(predictor_name(row), points(x), points(y)) for row in rows for x, y in row.roc]
    table = page_table(("Predictor", "False alarms, %", "Sensitivity, %"), once(cells))
    return drawn_figure(
        name, f"{title}. {subtitle}.", table, lambda: roc_figure(rows, title, subtitle)
    )


def _draw_reliability(run: Summary, row: ReliabilityRecord) -> DrawnFigure | None:
    title, subtitle = (
        f"{ROLES[row.role].capitalize()}, {predictor_name(row)}",
        count(sum(part.n for part in row.bins)),
    )
    rows = (
        found
        for found in run.calibration
        if (found.site, found.predictor) == (row.site, row.predictor)
    )
    error, ends = next(map(error_cell, rows), (UNDEFINED, ""))
    if error != UNDEFINED:
        subtitle = f"{subtitle}; off by {error} points {ends}".rstrip()
    description = f"Reliability diagram. {title}; n = {subtitle}."
    name, table = figure_name("reliability", row.role, row.predictor), _reliability_table(row)
    return drawn_figure(
        name, description, table, lambda: reliability_figure(row, title, f"n = {subtitle}")
    )


def _reliability_table(row: ReliabilityRecord) -> PageTable:
    names = (
        ("Risk %", "Mean risk %", "Observed %")
        if row.risk
        else ("Confidence %", "Mean confidence %", "Accuracy %")
    )
    cells = []
    for part in filter(lambda part: part.n, row.bins):
        band = interval((part.band_low, part.band_high), points) or UNDEFINED
        between = f"{points(part.low)} to {points(part.high)}"
        cells.append((between, count(part.n), points(part.confidence), points(part.accuracy), band))
    return page_table((names[0], "Records", *names[1:], "Band if calibrated"), cells)


def _draw_epsilon(run: Summary, curves: Sequence[EpsilonCurve]) -> DrawnFigure | None:
    deltas = sorted({row.delta for row in run.privacy if row.delta is not None})
    delta = f"at delta {probability(deltas[0])}" if len(deltas) == 1 else "at each site's delta"
    methods = ", ".join(sorted({row.epsilon_method for row in run.privacy if row.epsilon_method}))
    subtitle = f"{delta}{f'; by {methods}' if methods else ''}"
    description = f"Epsilon spent after each round at each site, {subtitle}."
    return drawn_figure(
        "epsilon", description, epsilon_table(curves), lambda: epsilon_figure(curves, subtitle)
    )


def _draw_sites(places: Sequence[CalibrationRecord], metric: str) -> DrawnFigure | None:
    title = METRICS[metric].name
    ends = (
        ", with 95% intervals"
        if any(row.intervals.get(metric) is not None for row in places)
        else ""
    )
    description = f"{title} at every site{ends}."
    return drawn_figure(
        figure_name("sites", metric), description, None, lambda: sites_figure(places, metric, title)
    )


def _draw_shifts(run: Summary) -> DrawnFigure | None:
    """Draw the error at shifted sites by kind and severity, where there are enough for a picture."""
    shifts = {site.name: SHIFT.fullmatch(site.shift) for site in run.sites}
    predictor = headline_predictor(run)
    rows = [
        row for row in run.places if row.predictor == predictor and row.rms_debiased is not None
    ]
    found = [(row, match) for row in rows if not row.over and (match := shifts.get(row.site))]
    values: dict[tuple[str, str], float] = {}
    for row, match in found:
        key = match[1].replace("_", " "), match[2]
        values[key] = max(100 * row.rms_debiased, values.get(key, 0.0))
    if len(values) < LEAST_SHIFTS:
        return None
    title, subtitle = (
        "Calibration error by shift and severity",
        f"debiased RMS, points; {predictor_name(found[0][0])}",
    )
    return drawn_figure(
        "shifts", f"{title}, {subtitle}.", None, lambda: heat_figure(values, title, subtitle)
    )


def _draw_net_benefit(rows: Sequence[CalibrationRecord]) -> DrawnFigure | None:
    title, name = (
        f"{ROLES[rows[0].role].capitalize()}, decision curve",
        figure_name("net_benefit", rows[0].role),
    )
    description = f"Net benefit per 100 records at each threshold. {title}."
    return drawn_figure(
        name, description, net_benefit_table(rows), lambda: net_benefit_figure(rows, title)
    )
