"""The tables of the report page: header and cells as text, ready to be escaped and shown."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

from rich import filesize

from fl_dpbayes.config import (
    PREDICTORS,
    CalibrationRecord,
    EvaluationPrivacyRecord,
    PrivacyRecord,
    Summary,
)
from fl_dpbayes.report import numbers
from fl_dpbayes.report.answer import median_rows, one_outcome
from fl_dpbayes.report.numbers import (
    UNDEFINED,
    count,
    decimal,
    interval,
    points,
    probability,
    rounded_up,
    significant,
)
from fl_dpbayes.report.run_files import EpsilonCurve
from fl_dpbayes.report.wording import (
    ROLES,
    SITE_ROLES,
    event,
    in_reading_order,
    place_name,
    predictor_name,
    tempered,
)

Cell = tuple[str, str]  # value and what stands more quietly behind it
Cells = tuple[str | Cell, ...]
# Below this a place's differences may well be chance.
FEW = 100
MADE_OF = {
    "majority": "the class shares of all training records, for everybody",
    "site_only": "a regression on one hospital's records: median, least to most",
    "central": "a regression on all hospitals' records together",
    "published": "as published; fitted on these very patients",
}
_BESIDE = (("auroc", decimal), ("nll", decimal), ("accuracy", points), ("rms_debiased", points))


@dataclass(frozen=True)
class PageTable:
    """A table of the page.

    The columns at the positions `text_columns` hold words, aligned left, the others numbers.
    """

    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]
    text_columns: frozenset[int] = frozenset({0})


def page_table(
    columns: Sequence[str], rows: Iterable[Sequence[str | Cell]], words: Iterable[int] = (0,)
) -> PageTable:
    """Make a table of values, some with what stands behind them.

    The columns of `words` hold words.
    """
    cells = [
        tuple(value if isinstance(value, tuple) else (value, "") for value in row) for row in rows
    ]
    return PageTable(tuple(columns), cells, frozenset(words))


def run_tables(run: Summary) -> dict[str, PageTable]:
    """Gather the tables of who took part, what it cost and how it is calibrated, by the page's names."""
    over_sites = in_reading_order(
        [*median_rows(run), *(row for row in run.calibration if row.over)]
    )
    missed = [
        (
            row.site,
            ", ".join(
                f"{at} {status}" for at, status in enumerate(row.statuses, 1) if status != "OK"
            )
            or "none",
        )
        for row in run.participation
    ]
    settings, releases = run.settings, [(release.item, release.how) for release in run.releases]
    return {
        "baselines": baselines_table(run),
        "hospitals": hospitals_table(run),
        "settings": page_table(
            ("Part", "Settings"), [(row.name, row.value) for row in settings], (0, 1)
        ),
        "privacy": privacy_table(run),
        "releases": page_table(("What", "How it left a site"), releases, (0, 1)),
        "calibration": page_table(MAIN, once([main_cells(row) for row in over_sites]), (0, 1)),
        "all_metrics": all_metrics_table(run.calibration),
        "sites": _site_table(run),
        "passes": passes_table(run),
        "participation": page_table(("Site", "Rounds that were not OK"), missed, (0, 1)),
        "cost": _cost_table(run),
    }


def records(n: int | None) -> Cell:
    """Write a number of records, and mark those that are too few to tell much."""
    return count(n), "few" if n is not None and n < FEW else ""


def error_cell(row: CalibrationRecord) -> Cell:
    """Write the debiased error in points; where it is cut at 0, its interval is the number."""
    if one_outcome(row):
        return UNDEFINED, "one outcome"
    ends = row.intervals.get("rms_debiased")
    if row.rms_debiased == 0 and ends is not None and None not in ends:
        return f"{points(ends[0])} to {points(ends[1])}", ""
    return points(row.rms_debiased), interval(ends, points)


def baselines_table(run: Summary) -> PageTable:
    """Show the run's predictors beside simpler ones on the same pooled test records of each role.

    Of sites that trained alone it shows the median, with the least and the largest behind it.
    """
    found = run.baselines.rows if run.baselines else ()
    cells: list[Cells] = []
    for role, words in ROLES.items() if found else ():
        own = [row for row in run.calibration if row.site == f"pooled:{role}"]
        groups: dict[str, list[CalibrationRecord]] = {}
        for row in [*own, *(row for row in found if row.role == role)]:
            groups.setdefault(row.predictor, []).append(row)
        for name, rows in groups.items():
            values = [_across([getattr(row, key) for row in rows], write) for key, write in _BESIDE]
            if len(rows) == 1:
                values[-1] = error_cell(rows[0])
            said = PREDICTORS.get(name, name) if name in MADE_OF else predictor_name(rows[0])
            cells.append(
                (f"all {words}", (said, MADE_OF.get(name, "this run")), *values, count(rows[0].n))
            )
    columns = ("Where", "Predictor", "AUROC", "NLL", "Accuracy, %", "RMS debiased", "n")
    return page_table(columns, once(cells), (0, 1))


def hospitals_table(run: Summary) -> PageTable:
    """Show how much hospitals differ in the level of the outcome, and what rate one that nobody has seen would have."""
    cells: list[Cells] = []
    for row in run.hospitals:
        write, told = (
            (decimal, f"log odds, {row.among} of them")
            if row.among
            else (points, "%, declared population")
        )
        told += "" if row.identified else ": too few to tell, the prior says it"
        cells.append(((row.of, told), write(row.value), interval(row.interval, write)))
    return page_table(("What", "Value", "90% interval"), cells)


def passes_table(run: Summary) -> PageTable:
    """Show how many records each pass held at which sites, and what computed them."""
    rows: list[Cells] = []
    for row in run.passes:
        where = row.sites[0] if len(row.sites) == 1 else f"{len(row.sites)} sites"
        slower = f"{significant(row.slower)} times" if row.slower > 1 else "as fast"
        held = f"{row.rows}", "" if row.rows == row.wanted else f"{row.wanted} wanted"
        computed_by = f"{row.library}, reproducible: {row.reproducible}"
        rows.append(
            (row.computation, where, held, row.products, slower, row.processor, computed_by)
        )
    columns = (
        "Computed",
        "Where",
        "Records in a pass",
        "Products",
        "Time of a record",
        "Processor",
        "Library",
    )
    return page_table(columns, once(rows), (0, 1, 3, 4, 5, 6))


def _across(values: Sequence[float | None], write: Callable[[float | None], str]) -> Cell:
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return write(known[0] if known else None), ""
    return write(statistics.median(known)), f"{write(min(known))} to {write(max(known))}"


def once(rows: Sequence[Cells]) -> list[Cells]:
    """Leave out a first cell that repeats the one above it."""
    first = [None, *(row[0] for row in rows)]
    return [
        ("" if row[0] == above else row[0], *row[1:])
        for row, above in zip(rows, first, strict=False)
    ]


def privacy_table(run: Summary) -> PageTable:
    """Show what each site spent on training, then on noised test results.

    Epsilon and mu are rounded up.

    Columns that say nothing in this run are left out: budget, delta and mu without privacy,
    temperature without one.
    """
    sites = {site.name: site for site in run.sites}
    paid = run.private or bool(run.evaluation_privacy)
    recalibrated = run.private and any(row.recalibration_epsilon is not None for row in run.privacy)
    columns = dict.fromkeys(("Site", "Unit", "Units n", "Steps", "ε spent"), True)
    columns |= {"ε of recalibration": recalibrated, "Budget": paid, "δ": paid, "μ": paid}
    columns |= {"Temperature": tempered(run), "Status": True}
    rows: list[Cells] = []
    for row in run.privacy:
        site = sites.get(row.site)
        who = (
            row.site,
            site.unit if site else row.unit,
            count(site.n if site else None),
            count(row.steps),
        )
        spent = rounded_up(row.epsilon), row.epsilon_method if run.private else ""
        temperature = significant(row.temperature), interval(row.temperature_range, significant)
        account = _account_cells(row) if run.private else ("", "", "")
        extra = rounded_up(row.recalibration_epsilon)
        rows.append((*who, spent, extra, *account, temperature, row.status or UNDEFINED))
    for paying in run.evaluation_privacy:
        cost = rounded_up(paying.epsilon), paying.epsilon_method
        rows.append(
            (paying.site, paying.unit, "", "", cost, "", *_account_cells(paying), "", "evaluation")
        )
    shown = [list(compress(row, columns.values())) for row in rows]
    names = [name for name, wanted in columns.items() if wanted]
    return page_table(names, shown, (0, 1, len(names) - 1))


def _account_cells(row: PrivacyRecord | EvaluationPrivacyRecord) -> Cells:
    mu = (rounded_up(row.mu), row.mu_kind if row.mu is not None else "")
    return significant(row.budget), probability(row.delta), mu


MAIN = (
    "Where",
    "Predictor",
    "n",
    "RMS debiased",
    "ECE (if calibrated)",
    "Accuracy, %",
    "NLL",
    "AUROC [bounds]",
)


_FURTHER = {
    "Brier": ("brier", decimal),
    "ACE": ("ace", points),
    "SCE": ("sce", points),
    "MCE": ("mce", points),
    "Epistemic, nats": ("epistemic", decimal),
    "Aleatoric, nats": ("aleatoric", decimal),
    "ECE, 10 bins": ("ece_10", points),
    "ECE, 20 bins": ("ece_20", points),
    "ECE, equal mass": ("ece_equal_mass", points),
    "ECE, binary": ("ece_binary", points),
    "AURC": ("aurc", decimal),
    "Excess AURC": ("aurc_excess", decimal),
}


def all_metrics_table(rows: Sequence[CalibrationRecord]) -> PageTable:
    """Show every metric of the given rows; binary ECE where any row has it."""
    binary = any(row.ece_binary is not None for row in rows)
    further = {
        name: found for name, found in _FURTHER.items() if binary or found[0] != "ece_binary"
    }
    cells: list[Cells] = []
    for row in in_reading_order(rows):
        values = (write(getattr(row, key)) for key, write in further.values())
        cells.append((*main_cells(row), *values))
    return page_table((*MAIN, *further), once(cells), (0, 1))


def main_cells(row: CalibrationRecord) -> Cells:
    """Write the cells below `MAIN` of one row."""
    ece = points(row.ece), f"({points(row.ece_if_calibrated)})"
    accuracy = points(row.accuracy), interval(row.intervals.get("accuracy"), points)
    nll = decimal(row.nll), interval(row.intervals.get("nll"), decimal)
    area = decimal(row.auroc), interval(row.auroc_bounds, decimal)
    return (
        place_name(row.site),
        predictor_name(row),
        records(row.n),
        error_cell(row),
        ece,
        accuracy,
        nll,
        area,
    )


def _site_table(run: Summary) -> PageTable:
    """Describe each site: size, how often the event happens among its test records, and its subgroups' shares."""
    groups: dict[str, dict[str, float]] = {}
    sizes = {site.name: site.test_n for site in run.sites}
    values: dict[str, set[str]] = {}
    for row in run.subgroups:
        values.setdefault(row.attribute, set()).add(row.value)
    for row in run.subgroups:
        # Of two subgroups the first says it all.
        said = len(values[row.attribute]) == 2 and row.value == max(values[row.attribute])
        if not said and (whole := sizes.get(row.site)) and row.n is not None:
            groups.setdefault(f"{row.attribute}: {row.value}, %", {})[row.site] = row.n / whole
    rows: list[Cells] = [
        (
            site.name,
            (SITE_ROLES[site.role], site.shift.replace("_", " ")),
            (count(site.n), f"{site.unit}s" if site.unit and site.n != 1 else site.unit),
            records(site.test_n),
            points(max(site.shares) if len(site.shares) > 2 else site.shares[1])
            if site.shares
            else UNDEFINED,
            *(points(shares.get(site.name)) for shares in groups.values()),
        )
        for site in run.sites
    ]
    two = all(len(site.shares or (0, 0)) == 2 for site in run.sites)
    happens = f"{event(run).capitalize()}, %" if two else "Largest class, %"
    return page_table(("Site", "Role", "Units n", "Test records", happens, *groups), rows, (0, 1))


def epsilon_table(curves: Sequence[EpsilonCurve]) -> PageTable:
    """Show epsilon after each round, a row per site."""
    rounds = sorted({number for curve in curves for number in curve.rounds})
    rows = []
    for curve in curves:
        spent = dict(zip(curve.rounds, curve.epsilons, strict=True))
        rows.append((curve.site, *(rounded_up(spent.get(number)) for number in rounds)))
    return page_table(("Site", *(f"Round {number}" for number in rounds)), rows)


def _cost_table(run: Summary) -> PageTable:
    rows = [
        (
            f"Bytes sent {way} all sites",
            *(map(filesize.decimal, (sum(sent), max(sent))) if sent else [UNDEFINED] * 2),
        )
        for way, sent in (("by", run.bytes.up), ("to", run.bytes.down))
    ]
    rows += [
        (f"Time: {stage}", numbers.duration(seconds), "") for stage, seconds in run.seconds.items()
    ]
    return page_table(("", "Total", "Largest round"), rows)


def facts(run: Summary) -> Mapping[str, str]:
    """Return the run's identity: scenario, aggregation, seed, heterogeneity, versions."""
    known = {
        "Scenario": run.scenario,
        "Data": run.data,
        "Finished": run.finished,
        "Duration": numbers.duration(sum(filter(None, run.seconds.values())))
        if run.seconds
        else "",
        "Aggregation": run.aggregation,
        **_aggregation_inputs(run),
        "Resumed": ", ".join(
            f"after round {number}" if number else "before round 1" for number in run.resumed_after
        ),
        "Seed of partition and model": "" if run.seed is None else str(run.seed),
        "Label heterogeneity (mean total variation)": ""
        if run.heterogeneity is None
        else decimal(run.heterogeneity),
        "Configurations tried": ""
        if run.configurations_tried is None
        else count(run.configurations_tried),
        "Versions": ", ".join(f"{name} {version}" for name, version in run.versions.items()),
    }
    return {name: value for name, value in known.items() if value}


def _aggregation_inputs(run: Summary) -> dict[str, str]:
    """Say what the server used beyond released samples, and what it made of it."""
    if (inputs := run.aggregation_inputs) is None:
        return {}
    number = "" if inputs.count is None else f"{count(inputs.count)} "
    if inputs.kind == "file":
        labelled = "with labels" if inputs.labelled else "labels not used"
        used = f"{number}records of {inputs.file}, {labelled}, declared public: {inputs.statement}"
    else:
        used = f"{number}made-up inputs ({inputs.pattern}), no record"
    divergence = "Divergence of the distilled network from its teacher, nats per input"
    numbers = {"beta of PredBayes": inputs.beta, divergence: inputs.divergence}
    return {"Server's own inputs": used} | {
        key: decimal(value) for key, value in numbers.items() if value is not None
    }
