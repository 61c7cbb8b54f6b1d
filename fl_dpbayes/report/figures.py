"""All figures of a run, drawn from its records and saved as SVG."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from fl_dpbayes.config.files.atomic_file import write_atomically, written
from fl_dpbayes.config.metrics import METRICS
from fl_dpbayes.config.names import PREDICTORS
from fl_dpbayes.config.summary import CalibrationRecord, ReliabilityRecord, Role, Summary, parse_summary
from fl_dpbayes.report.epsilon_figure import EpsilonCurve, epsilon_figure, read_epsilon_curves
from fl_dpbayes.report.figure_style import figure_settings, figure_svg
from fl_dpbayes.report.measures import decision_curves, site_reliability
from fl_dpbayes.report.net_benefit_figure import net_benefit_figure
from fl_dpbayes.report.numbers import count, interval, points, probability
from fl_dpbayes.report.reliability_figure import reliability_figure
from fl_dpbayes.report.run_files import read_summary
from fl_dpbayes.report.site_reliability_figure import site_reliability_figure
from fl_dpbayes.report.sites_figure import sites_figure
from fl_dpbayes.report.wording import ROLES, in_reading_order, predictor_name

SITE_RELIABILITY = "reliability-sites"
SITE_METRICS = ("rms_debiased", "ece", "accuracy", "nll")


@dataclass(frozen=True)
class DrawnFigure:
    """One figure: `name` is its file's stem, `description` says in words what it shows."""

    name: str
    svg: str
    description: str


def draw_figures(run_dir: Path | str) -> list[DrawnFigure]:
    """Draw a run's figures and save them below its `figures` folder."""
    run = parse_summary(read_summary(run_dir))
    curves = read_epsilon_curves(run_dir)
    figures = [
        *(_draw_reliability(run, row) for row in pooled_reliability(run)),
        _draw_epsilon(run, curves),
        *(_draw_sites(run, metric) for metric in SITE_METRICS),
        _draw_site_reliability(site_reliability(run)),
        *(_draw_net_benefit(rows) for rows in decision_curves(run).values()),
    ]
    drawn = [figure for figure in figures if figure is not None]
    save_figures(run_dir, drawn)
    return drawn


def save_figures(folder: Path | str, figures: Iterable[DrawnFigure]) -> None:
    """Save figures below a folder's `figures`."""
    below = Path(folder) / "figures"
    with written(below):
        below.mkdir(exist_ok=True)
    for figure in figures:
        write_atomically(below / f"{figure.name}.svg", figure.svg)


def pooled_reliability(run: Summary) -> list[ReliabilityRecord]:
    """Return the diagrams over all sites of a role that hold a record: roles, then predictors, in reading order."""
    roles, predictors = list(ROLES), list(PREDICTORS)
    rows = [row for row in run.reliability if row.site == f"pooled:{row.role}" and any(part.n for part in row.bins)]
    known = [row for row in rows if row.predictor in predictors]
    return sorted(known, key=lambda row: (roles.index(row.role), predictors.index(row.predictor)))


def figure_name(*parts: str) -> str:
    """Join words to a file stem of letters, digits, `_` and `-`."""
    return "-".join(re.sub(r"[^A-Za-z0-9_]+", "_", part) for part in parts)


def net_benefit_name(role: Role) -> str:
    """Return the file stem of a role's decision curve."""
    return figure_name("net_benefit", role)


def _draw_reliability(run: Summary, row: ReliabilityRecord) -> DrawnFigure:
    name = figure_name("reliability", row.role, row.predictor)
    title = f"{ROLES[row.role].capitalize()}, {predictor_name(row)}"
    subtitle = f"n = {count(sum(part.n for part in row.bins))}{_error_of(run.calibration, row)}"
    with figure_settings(name):
        svg = figure_svg(reliability_figure(row, title, subtitle))
    return DrawnFigure(name, svg, f"Reliability diagram. {title}; {subtitle}.")


def _error_of(rows: Sequence[CalibrationRecord], wanted: ReliabilityRecord) -> str:
    for row in rows:
        if (row.site, row.predictor) == (wanted.site, wanted.predictor) and row.rms_debiased is not None:
            ends = interval(row.intervals.get("rms_debiased"), points)
            return f"; off by {points(row.rms_debiased)} points {ends}".rstrip()
    return ""


def _draw_epsilon(run: Summary, curves: Sequence[EpsilonCurve]) -> DrawnFigure | None:
    deltas = sorted({row.delta for row in run.privacy if row.delta is not None})
    delta = f"at delta {probability(deltas[0])}" if len(deltas) == 1 else "at each site's delta"
    methods = ", ".join(sorted({row.epsilon_method for row in run.privacy if row.epsilon_method}))
    subtitle = f"{delta}{f'; by {methods}' if methods else ''}"
    with figure_settings("epsilon"):
        figure: Figure | None = epsilon_figure(curves, subtitle)
        if figure is None:
            return None
        return DrawnFigure("epsilon", figure_svg(figure), f"Epsilon spent after each round at each site, {subtitle}.")


def _draw_site_reliability(rows: Sequence[ReliabilityRecord]) -> DrawnFigure | None:
    if not rows:
        return None
    title = f"Site by site, {predictor_name(rows[0])}"
    with figure_settings(SITE_RELIABILITY):
        svg = figure_svg(site_reliability_figure(rows, title))
    return DrawnFigure(SITE_RELIABILITY, svg, f"Reliability diagram of each of {len(rows)} sites. {title}.")


def _draw_net_benefit(rows: Sequence[CalibrationRecord]) -> DrawnFigure:
    name, title = net_benefit_name(rows[0].role), f"{ROLES[rows[0].role].capitalize()}, decision curve"
    with figure_settings(name):
        svg = figure_svg(net_benefit_figure(rows, title))
    return DrawnFigure(name, svg, f"Net benefit per 100 records at each threshold. {title}.")


def _draw_sites(run: Summary, metric: str) -> DrawnFigure | None:
    name = figure_name("sites", metric)
    with figure_settings(name):
        figure = sites_figure(in_reading_order(run.places), metric, METRICS[metric].name)
        if figure is None:
            return None
        drawn = any(row.intervals.get(metric) is not None for row in run.calibration)
        ends = ", with 95% intervals" if drawn else ""
        return DrawnFigure(name, figure_svg(figure), f"{METRICS[metric].name} at every site{ends}.")
