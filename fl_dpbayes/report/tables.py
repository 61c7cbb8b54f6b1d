"""The tables that a run prints at its end."""

from collections.abc import Iterable, Mapping

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fl_dpbayes.report.numbers import count, decimal, interval, points, probability, rounded_up, significant
from fl_dpbayes.report.summary import Summary, parse_summary
from fl_dpbayes.report.wording import in_reading_order, neighbours, place_name


def _table(title: str, caption: str) -> Table:
    return Table(
        title=Text(title, style="bold"),
        caption=Text(caption, style="dim"),
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1),
        collapse_padding=True,
    )


def _privacy_caption(summary: Summary) -> str:
    methods = sorted({row.epsilon_method for row in summary.privacy if row.epsilon_method})
    parts = [f"Neighbours differ by {neighbours(summary)}."]
    if methods:
        parts.append(f"epsilon by {', '.join(methods)}.")
    if any(row.mu_kind == "clt" for row in summary.privacy):
        parts.append("mu (clt) is an approximation, not an upper bound.")
    parts.append("temp.: Langevin temperature, 1 is the posterior.")
    if summary.seeded:
        parts.append("seeded: not private.")
    return " ".join(parts)


def _name_width(names: Iterable[str], most: int) -> int:
    return min(most, max(map(len, names), default=0))


def privacy_table(summary: Mapping[str, object]) -> Table:
    """Show what the run cost each site that trained.

    Args:
        summary: a run's summary, in memory or as read from `summary.json`.

    Returns:
        A table that fits 100 columns; epsilon and mu are rounded up.
    """
    run = parse_summary(summary)
    units = {site.name: site.n for site in run.sites}
    table = _table("Privacy spent", _privacy_caption(run))
    table.add_column(
        "site", min_width=_name_width((row.site for row in run.privacy), 16), max_width=24, overflow="fold"
    )
    for header in ("units", "steps", "epsilon", "budget", "delta", "mu", "temp."):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("status", max_width=9, overflow="fold")
    for row in run.privacy:
        table.add_row(
            Text(row.site),
            count(units.get(row.site)),
            count(row.steps),
            rounded_up(row.epsilon),
            significant(row.budget),
            probability(row.delta),
            Text(f"{rounded_up(row.mu)} {row.mu_kind}"[:12].strip()),
            significant(row.temperature),
            Text(row.status),
        )
    return table


def calibration_table(summary: Mapping[str, object]) -> Table:
    """Show how well predictions are calibrated: pooled rows first, predictors of one place beneath each other.

    Args:
        summary: a run's summary, in memory or as read from `summary.json`.

    Returns:
        A table that fits 100 columns. ECE stands with the value that a perfectly calibrated model would show on as
        many records, the debiased root-mean-square error with its interval; both in percentage points.
    """
    rows = in_reading_order(parse_summary(summary).calibration)
    table = _table(
        "Calibration",
        "accuracy in %, calibration errors in percentage points; (ref.) is the ECE that a perfectly calibrated model "
        "would show at that n, [..] the 95% interval.",
    )
    table.add_column("where", min_width=_name_width((row.site for row in rows), 12), max_width=18, overflow="fold")
    table.add_column("n", justify="right", no_wrap=True)
    table.add_column("predictor", max_width=14, min_width=9, overflow="fold")
    for header in ("accuracy", "NLL", "ECE (ref.)", "RMS debiased"):
        table.add_column(header, justify="right", no_wrap=True)
    previous = None
    for row in rows:
        first = row.site != previous
        if first and previous is not None and not row.pooled and previous.startswith("pooled:"):
            table.add_section()
        previous = row.site
        error = f"{points(row.rms_debiased)} {interval(row.intervals.get('rms_debiased'), points)}".strip()
        table.add_row(
            Text(place_name(row) if first else "", style="bold" if row.pooled else ""),
            count(row.n) if first else "",
            Text(row.predictor),
            points(row.accuracy),
            decimal(row.nll),
            f"{points(row.ece)} ({points(row.ece_if_calibrated)})",
            error,
        )
    return table
