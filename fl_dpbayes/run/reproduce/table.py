"""The table of an experiment, for the terminal and as Markdown: the paper beside what was measured."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from fl_dpbayes.report.numbers import UNDEFINED, decimal, duration, probability, rounded_up
from fl_dpbayes.report.terminal_table import TerminalColumn, fitted_table, folded, name_width
from fl_dpbayes.run.reproduce.experiment import Experiment, Metric

Record = Mapping[str, Any]


def result_table(experiment: Experiment, record: Record, width: int) -> Table:
    """Lay out an experiment's record for the terminal: one row per method and setting.

    Args:
        experiment: what was measured.
        record: from `summarise`.
        width: characters of the terminal; columns that do not fit are left out, the last metric first.

    Returns:
        A table; under each measured value stands the paper's, where it states one.
    """
    metrics = experiment.metrics
    columns = [
        TerminalColumn("method", [folded(row["method"], name_width(width)) for row in record["rows"]], number=False),
        TerminalColumn("setting", [folded(row["setting"], name_width(width)) for row in record["rows"]], number=False),
        TerminalColumn("epsilon", [_epsilon(experiment, row) for row in record["rows"]]),
        *(
            TerminalColumn(
                metric.title, [_beside(metric, row, "\npaper ") for row in record["rows"]], expendable=len(metrics) - i
            )
            for i, metric in enumerate(metrics)
        ),
    ]
    columns = [column for column in columns if any(column.cells) or not column.cells]
    return fitted_table(
        f"{experiment.title} ({experiment.source})", columns, width, caption=_caption(experiment, record)
    )


def markdown_table(experiment: Experiment, record: Record) -> str:
    """Write an experiment's record as a Markdown page.

    Args:
        experiment: what was measured.
        record: from `summarise`.

    Returns:
        Title, source, table, how to read it, and the notes.
    """
    headers = ["method", "setting", "epsilon", *(metric.title for metric in experiment.metrics)]
    lines = [_row(headers), _row(["---"] * len(headers))]
    for row in record["rows"]:
        values = [_beside(metric, row, "<br>paper ") for metric in experiment.metrics]
        lines.append(_row([row["method"], row["setting"], _epsilon(experiment, row).replace("\n", "<br>"), *values]))
    notes = "\n".join(f"- {note}" for note in experiment.notes)
    head = f"# {experiment.title}\n\nSource: {experiment.source}.\n\n"
    return head + "\n".join(lines) + f"\n\n{_caption(experiment, record)}\n" + (f"\n{notes}\n" if notes else "")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _caption(experiment: Experiment, record: Record) -> str:
    seeds = record["seeds"]
    tried = max((row["configurations_tried"] for row in record["rows"]), default=1)
    spread = "mean ± standard deviation over seeds" if seeds > 1 else "one seed: no spread is known"
    size = ("the paper's size" if experiment.paper else "full size") if record["full"] else "reduced size"
    papers = ", the paper's accounting," if experiment.paper else ""
    tuning = (
        f"Up to {tried} configurations per row were compared on validation data; that comparison is not in epsilon."
        if tried > 1
        else "Nothing was tuned within the run."
    )
    deltas = sorted({row["privacy"]["delta"] for row in record["rows"] if row["privacy"]})
    at = f" at delta {', '.join(probability(delta) for delta in deltas)}" if deltas else ""
    return (
        f"{seeds} seed{'s' if seeds > 1 else ''}, {size}; {spread}. Epsilon{at} for adding or removing one record: by "
        f"PLD, an upper bound, and as {experiment.paper_accounting.upper()}{papers} would have called it. "
        f"{tuning} {duration(record['seconds'])} of work."
    )


def _beside(metric: Metric, row: Record, separator: str) -> str:
    measured, printed = row["measured"].get(metric.name), row["paper"].get(metric.name)
    stated = "" if printed is None else f"{separator}{decimal(printed, metric.places)}"
    if measured is None:
        return f"{UNDEFINED}{stated}"
    spread = measured["standard_deviation"]
    plus_minus = "" if spread is None else f"±{decimal(spread, metric.places)}"
    return f"{decimal(measured['mean'], metric.places)}{plus_minus}{stated}"


def _epsilon(experiment: Experiment, row: Record) -> str:
    stated = "" if row["paper_epsilon"] is None else f"\npaper {row['paper_epsilon']:g}"
    if row["privacy"] is None:
        return f"none{stated}"
    spent, as_paper = (float(row["privacy"]["epsilon"][key]) for key in ("pld", row["privacy"]["paper_accounting"]))
    return f"{rounded_up(spent)}\n{rounded_up(as_paper)} by {experiment.paper_accounting.upper()}{stated}"
