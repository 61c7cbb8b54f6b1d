"""All figures of a run, drawn from its records and saved as SVG."""

from collections.abc import Sequence
from pathlib import Path

from fl_dpbayes.config.metrics import METRICS
from fl_dpbayes.config.names import PREDICTORS
from fl_dpbayes.config.summary import CalibrationRecord, ReliabilityRecord, Role, Summary
from fl_dpbayes.report.calibration_figures import reliability_figure, site_reliability_figure, sites_figure
from fl_dpbayes.report.curve_figures import EpsilonCurve, epsilon_figure, net_benefit_figure
from fl_dpbayes.report.figure_style import DrawnFigure, drawn_figure, figure_name, save_figures
from fl_dpbayes.report.headline import headline_predictor
from fl_dpbayes.report.numbers import count, interval, points, probability
from fl_dpbayes.report.wording import ROLES, in_reading_order, predictor_name

SITE_RELIABILITY = "reliability-sites"
SITE_METRICS = ("rms_debiased", "ece", "accuracy", "nll")


def draw_figures(run_dir: Path, run: Summary, curves: Sequence[EpsilonCurve]) -> dict[str, DrawnFigure]:
    """Draw a run's figures and save them below its `figures` folder.

    Returns by name: reliability diagrams (per role, last beside posterior), epsilon per round, each metric per
    site, reliability at every site, then decision curves (per role). A figure without data is left out. Raises
    UserError if the folder cannot be written to.
    """
    figures = [
        *(_draw_reliability(run, row) for row in pooled_reliability(run)),
        _draw_epsilon(run, curves),
        *(_draw_sites(run, metric) for metric in SITE_METRICS),
        _draw_site_reliability(site_reliability(run)),
        *(_draw_net_benefit(rows) for rows in decision_curves(run).values()),
    ]
    drawn = {figure.name: figure for figure in figures if figure is not None}
    save_figures(run_dir, drawn.values())
    return drawn


def pooled_reliability(run: Summary) -> list[ReliabilityRecord]:
    """Return the diagrams over all sites of a role that hold a record: roles, then predictors, in reading order."""
    roles, predictors = list(ROLES), list(PREDICTORS)
    rows = [row for row in run.reliability if row.site == f"pooled:{row.role}" and any(part.n for part in row.bins)]
    known = [row for row in rows if row.predictor in predictors]
    return sorted(known, key=lambda row: (roles.index(row.role), predictors.index(row.predictor)))


def site_reliability(run: Summary) -> list[ReliabilityRecord]:
    """Return the diagrams of single sites that hold a record: one predictor, roles and sites in reading order."""
    predictor, roles, sites = headline_predictor(run), list(ROLES), {site.name for site in run.sites}
    rows = [
        row
        for row in run.reliability
        if row.site in sites and row.predictor == predictor and any(part.n for part in row.bins)
    ]
    return sorted(rows, key=lambda row: (roles.index(row.role), row.site))


def decision_curves(run: Summary) -> dict[Role, list[CalibrationRecord]]:
    """Return the rows with a decision curve over all sites of each role, the headline predictor first."""
    headline = headline_predictor(run)
    found: dict[Role, list[CalibrationRecord]] = {}
    for role in ROLES:
        rows = [row for row in run.calibration if row.pooled and row.role == role and row.net_benefit]
        if rows:
            found[rows[0].role] = sorted(rows, key=lambda row: row.predictor != headline)
    return found


def net_benefit_name(role: Role) -> str:
    """Return the file stem of a role's decision curve."""
    return figure_name("net_benefit", role)


def _draw_reliability(run: Summary, row: ReliabilityRecord) -> DrawnFigure | None:
    title = f"{ROLES[row.role].capitalize()}, {predictor_name(row)}"
    subtitle = f"n = {count(sum(part.n for part in row.bins))}{_error_of(run.calibration, row)}"
    description = f"Reliability diagram. {title}; {subtitle}."
    name = figure_name("reliability", row.role, row.predictor)
    return drawn_figure(name, description, lambda: reliability_figure(row, title, subtitle))


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
    description = f"Epsilon spent after each round at each site, {subtitle}."
    return drawn_figure("epsilon", description, lambda: epsilon_figure(curves, subtitle))


def _draw_site_reliability(rows: Sequence[ReliabilityRecord]) -> DrawnFigure | None:
    if not rows:
        return None
    title = f"Site by site, {predictor_name(rows[0])}"
    description = f"Reliability diagram of each of {len(rows)} sites. {title}."
    return drawn_figure(SITE_RELIABILITY, description, lambda: site_reliability_figure(rows, title))


def _draw_net_benefit(rows: Sequence[CalibrationRecord]) -> DrawnFigure | None:
    title = f"{ROLES[rows[0].role].capitalize()}, decision curve"
    description = f"Net benefit per 100 records at each threshold. {title}."
    return drawn_figure(net_benefit_name(rows[0].role), description, lambda: net_benefit_figure(rows, title))


def _draw_sites(run: Summary, metric: str) -> DrawnFigure | None:
    title = METRICS[metric].name
    ends = ", with 95% intervals" if any(row.intervals.get(metric) is not None for row in run.calibration) else ""
    description = f"{title} at every site{ends}."
    rows = in_reading_order(run.places)
    return drawn_figure(figure_name("sites", metric), description, lambda: sites_figure(rows, metric, title))
