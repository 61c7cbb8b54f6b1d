"""The report of a run: one page that needs no other file, no script and no network."""

from pathlib import Path

from fl_dpbayes.config.files.atomic_file import write_atomically
from fl_dpbayes.config.summary import parse_summary
from fl_dpbayes.report.answer import answer
from fl_dpbayes.report.epsilon_figure import read_epsilon_curves
from fl_dpbayes.report.figures import (
    SITE_METRICS,
    SITE_RELIABILITY,
    draw_figures,
    figure_name,
    net_benefit_name,
    pooled_reliability,
)
from fl_dpbayes.report.headline import key_figures, median_rows
from fl_dpbayes.report.measure_tables import net_benefit_table, site_reliability_table
from fl_dpbayes.report.measures import decision_curves, gather_measures, site_reliability
from fl_dpbayes.report.page import page_figure, render_page
from fl_dpbayes.report.page_tables import (
    all_metrics_table,
    calibration_table,
    cost_table,
    epsilon_table,
    facts,
    metric_table,
    participation_table,
    privacy_table,
    release_table,
    reliability_table,
    settings_table,
    site_table,
)
from fl_dpbayes.report.run_files import read_summary
from fl_dpbayes.report.template import TEMPLATE
from fl_dpbayes.report.wording import neighbours, small_delta_text, temperature_notes


def write_report(run_dir: Path | str) -> Path:
    """Write `report.html` from a run directory's records, and its figures beside it.

    Args:
        run_dir: a run directory with `summary.json` and, for epsilon per round, `privacy.csv`.

    Returns:
        The path of the page.

    Raises:
        UserError: if the folder is not a run directory, a record in it is damaged, or it cannot be written to.
    """
    summary = read_summary(run_dir)
    run = parse_summary(summary)
    figures = {figure.name: figure for figure in draw_figures(run_dir)}
    curves = read_epsilon_curves(run_dir)
    page = render_page(
        TEMPLATE,
        run=run,
        answer=answer(summary),
        key_figures=key_figures(run),
        adjacency=neighbours(run),
        small_delta=small_delta_text(run),
        approximate_mu=run.private and any(row.mu_kind == "clt" for row in run.privacy),
        temperatures=temperature_notes(run),
        settings=settings_table(run),
        privacy=privacy_table(run),
        epsilon=page_figure(figures["epsilon"], epsilon_table(curves)) if "epsilon" in figures else None,
        releases=release_table(run),
        calibration=calibration_table(
            [*median_rows(run), *(row for row in run.calibration if row.pooled or row.mean_of_sites)]
        ),
        all_metrics=all_metrics_table(run.calibration),
        reliability=[
            page_figure(figures[figure_name("reliability", row.role, row.predictor)], reliability_table(row))
            for row in pooled_reliability(run)
        ],
        sites_figures=[
            page_figure(figures[figure_name("sites", metric)], metric_table(run.places, metric))
            for metric in SITE_METRICS
            if figure_name("sites", metric) in figures
        ],
        site_reliability=(
            page_figure(figures[SITE_RELIABILITY], site_reliability_table(site_reliability(run)))
            if SITE_RELIABILITY in figures
            else None
        ),
        measures=gather_measures(run),
        net_benefit=[
            page_figure(figures[net_benefit_name(role)], net_benefit_table(rows))
            for role, rows in decision_curves(run).items()
        ],
        sites=site_table(run),
        participation=participation_table(run),
        cost=cost_table(run),
        facts=facts(run),
    )
    path = Path(run_dir) / "report.html"
    write_atomically(path, page)
    return path
