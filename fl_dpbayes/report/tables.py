"""The tables that a run prints at its end."""

from collections.abc import Sequence

from rich.table import Table

from fl_dpbayes.config.summary import EvaluationPrivacyRecord, PrivacyRecord, Summary
from fl_dpbayes.report.answer import median_rows
from fl_dpbayes.report.numbers import count, decimal, interval, points, probability, rounded_up, significant
from fl_dpbayes.report.terminal_table import STATUS_WIDTH, TerminalColumn, fitted_table, folded, name_width
from fl_dpbayes.report.wording import (
    account_notes,
    in_reading_order,
    neighbours,
    place_name,
    temperature_notes,
    tempered,
)

WIDTH = 100
EVALUATION_STATUS = "evaluation"


def _privacy_caption(run: Summary) -> str:
    parts = []
    if run.private:
        methods = sorted({row.epsilon_method for row in run.privacy if row.epsilon_method})
        parts.append(f"Neighbours differ by {neighbours(run)}.")
        if methods:
            parts.append(f"epsilon by {', '.join(methods)}.")
        if small := account_notes(run):
            parts.append(small)
        if any(row.mu_kind == "clt" for row in run.privacy):
            parts.append("mu (clt) is an approximation, not an upper bound.")
        if run.chains > 1:
            parts.append(f"{run.chains} chains per site: their costs add up to this one account.")
        if costs := [row.recalibration_epsilon for row in run.privacy if row.recalibration_epsilon is not None]:
            parts.append(f"Recalibration, on other units: epsilon at most {rounded_up(max(costs))}.")
    else:
        parts.append("Not private: epsilon is infinite.")
    if run.evaluation_privacy:
        parts.append(f"Rows of status {EVALUATION_STATUS}: what noised test results cost, on other units.")
    if notes := temperature_notes(run):
        parts.append(f"temp.: Langevin temperature {'; '.join(notes)}.")
    if run.seeded:
        parts.append("seeded: not private.")
    return " ".join(parts)


def privacy_table(run: Summary, width: int = WIDTH) -> Table:
    """Show what the run cost each site that trained, and each site that released noised test results."""
    units = {site.name: site.n for site in run.sites}
    trained, tested = run.privacy, run.evaluation_privacy
    rows: Sequence[PrivacyRecord | EvaluationPrivacyRecord] = [*trained, *tested]
    # Steps, size and temperature are those of training; without privacy there is no account of it.
    account: Sequence[PrivacyRecord | EvaluationPrivacyRecord] = rows if run.private else tested
    blank, none = [""] * len(tested), [""] * (len(rows) - len(account))
    columns = [
        TerminalColumn("site", [folded(row.site, name_width(width)) for row in rows], number=False),
        TerminalColumn("units", [count(units.get(row.site)) for row in trained] + blank, expendable=3),
        TerminalColumn("steps", [count(row.steps) for row in trained] + blank, expendable=4),
        TerminalColumn("epsilon", [rounded_up(row.epsilon) for row in rows]),
    ]
    if account:
        mu = [f"{rounded_up(row.mu)} {row.mu_kind}"[:12].strip() for row in account]
        columns += [
            TerminalColumn("budget", none + [significant(row.budget) for row in account]),
            TerminalColumn("delta", none + [probability(row.delta) for row in account]),
            TerminalColumn("mu", none + mu, expendable=1),
        ]
    if tempered(run):
        columns += [TerminalColumn("temp.", [significant(row.temperature) for row in trained] + blank, expendable=2)]
    status = [folded(row.status, STATUS_WIDTH) for row in trained] + [EVALUATION_STATUS] * len(tested)
    columns += [TerminalColumn("status", status, number=False)]
    sections = (len(trained) - 1,) if tested else ()
    title = "Privacy spent" if run.private else "Training without privacy"
    return fitted_table(title, columns, width, caption=_privacy_caption(run), sections=sections)


def calibration_table(run: Summary, width: int = WIDTH) -> Table:
    """Show how well predictions are calibrated: pooled rows first, predictors of one place beneath each other."""
    medians = median_rows(run)
    rows = in_reading_order([*medians, *run.calibration])
    new = [number == 0 or row.site != rows[number - 1].site for number, row in enumerate(rows)]
    over_sites = [number for number, row in enumerate(rows) if row.over]
    names = [place_name(row).removesuffix(" sites") if row.over else row.site for row in rows]
    places = [folded(name, name_width(width)) if first else "" for name, first in zip(names, new, strict=True)]
    counts = [count(row.n) if first else "" for row, first in zip(rows, new, strict=True)]
    ends = [interval(row.intervals.get("rms_debiased"), points) for row in rows]
    columns = [
        TerminalColumn("where", places, number=False),
        TerminalColumn("n", counts, expendable=2),
        TerminalColumn("predictor", [folded(row.predictor, name_width(width)) for row in rows], number=False),
        TerminalColumn("accuracy", [points(row.accuracy) for row in rows]),
        TerminalColumn("NLL", [decimal(row.nll) for row in rows], expendable=1),
        TerminalColumn("ECE (ref.)", [f"{points(row.ece)} ({points(row.ece_if_calibrated)})" for row in rows]),
        TerminalColumn("RMS", [points(row.rms_debiased) for row in rows]),
        TerminalColumn("95% interval", ends, expendable=3),
    ]
    by_median = {row.role for row in medians}
    headlines = [n for n, row in enumerate(rows) if row.over == ("median" if row.role in by_median else "pooled")]
    caption = (
        "accuracy in %, calibration errors in percentage points; (ref.) is the ECE that a perfectly calibrated model "
        "would show at that n, RMS the debiased root-mean-square error."
        + (" A median is taken of the sites' own rows: one site cannot move it beyond the others." if medians else "")
    )
    sections = over_sites[-1:] if len(over_sites) < len(rows) else ()
    return fitted_table("Calibration", columns, width, caption=caption, bold_rows=headlines, sections=sections)
