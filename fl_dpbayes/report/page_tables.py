"""The tables of the report page: header and cells as text, ready to be escaped and shown."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich import filesize

from fl_dpbayes.calibration import CalibrationRecord
from fl_dpbayes.config import PREDICTORS
from fl_dpbayes.report.answer import one_outcome
from fl_dpbayes.report.headline import median_rows
from fl_dpbayes.report.numbers import (
    UNDEFINED,
    Write,
    count,
    decimal,
    duration,
    interval,
    known_ends,
    points,
    probability,
    rounded_up,
    significant,
)
from fl_dpbayes.report.run_files import EpsilonCurve
from fl_dpbayes.report.summary import (
    AggregationInputs,
    EvaluationPrivacyRecord,
    ParticipationRecord,
    PrivacyRecord,
    SiteRecord,
    Summary,
)
from fl_dpbayes.report.wording import (
    ROLES,
    SITE_ROLES,
    event,
    in_reading_order,
    place_name,
    predictor_name,
    tempered,
)

# A value, and what stands more quietly behind it.
Cell = tuple[str, str]
Cells = tuple[str | Cell, ...]
# Below this a place's differences may well be chance.
FEW = 100
HOW_FITTED = {
    "majority": "the class shares of all training records, for everybody",
    "site_only": "a regression on one hospital's records: median, least to most",
    "central": "a regression on all hospitals' records together",
    "published": "as published; fitted on these very patients",
}
MAIN_COLUMNS = (
    "Where",
    "Predictor",
    "n",
    "RMS debiased",
    "ECE (if calibrated)",
    "Accuracy, %",
    "NLL",
    "AUROC [bounds]",
)


@dataclass(frozen=True)
class MetricColumn:
    """A column that shows one metric of a calibration row.

    Attributes:
        title: Its header.
        key: The metric's key.
        write: How a value is written.
    """

    title: str
    key: str
    write: Write

    def cell(self, row: CalibrationRecord) -> str:
        """Write the metric of a row."""
        return self.write(row.metric(self.key))


BASELINE_COLUMNS = (
    MetricColumn("AUROC", "auroc", decimal),
    MetricColumn("NLL", "nll", decimal),
    MetricColumn("Accuracy, %", "accuracy", points),
    MetricColumn("RMS debiased", "rms_debiased", points),
)
FURTHER_COLUMNS = (
    MetricColumn("Brier", "brier", decimal),
    MetricColumn("ACE", "ace", points),
    MetricColumn("SCE", "sce", points),
    MetricColumn("MCE", "mce", points),
    MetricColumn("Epistemic, nats", "epistemic", decimal),
    MetricColumn("Aleatoric, nats", "aleatoric", decimal),
    MetricColumn("ECE, 10 bins", "ece_10", points),
    MetricColumn("ECE, 20 bins", "ece_20", points),
    MetricColumn("ECE, equal mass", "ece_equal_mass", points),
    MetricColumn("ECE, binary", "ece_binary", points),
    MetricColumn("AURC", "aurc", decimal),
    MetricColumn("Excess AURC", "aurc_excess", decimal),
)


@dataclass(frozen=True)
class PageTable:
    """A table of the page.

    Attributes:
        columns: Headers.
        rows: Cells, as many in each row as there are columns.
        text_columns: Positions of the columns that hold words, aligned left; others hold numbers.
    """

    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]
    text_columns: frozenset[int] = frozenset({0})


def page_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Cell]],
    text_columns: Iterable[int] = (0,),
) -> PageTable:
    """Make a table of values, some with what stands behind them.

    Args:
        columns: Headers.
        rows: Values, or pairs of a value and what stands behind it.
        text_columns: Positions of the columns that hold words.
    """
    cells = [
        tuple(value if isinstance(value, tuple) else (value, "") for value in row) for row in rows
    ]
    return PageTable(tuple(columns), cells, frozenset(text_columns))


def without_repeats(rows: Sequence[Cells]) -> list[Cells]:
    """Empty the first cell of a row that repeats the one above it."""
    cells: list[Cells] = []
    above: str | Cell | None = None
    for row in rows:
        first = "" if row[0] == above else row[0]
        above = row[0]
        cells.append((first, *row[1:]))
    return cells


def run_tables(run: Summary) -> dict[str, PageTable]:
    """Gather the tables of who took part, what it cost and how it is calibrated.

    Returns:
        By the names that the page's template gives them.
    """
    return {
        "baselines": baselines_table(run),
        "hospitals": hospitals_table(run),
        "settings": page_table(
            ("Part", "Settings"),
            rows=[(row.name, row.value) for row in run.settings],
            text_columns=(0, 1),
        ),
        "privacy": privacy_table(run),
        "releases": page_table(
            ("What", "How it left a site"),
            rows=[(release.item, release.how) for release in run.releases],
            text_columns=(0, 1),
        ),
        "calibration": calibration_table(run),
        "all_metrics": all_metrics_table(run.calibration),
        "sites": sites_table(run),
        "passes": passes_table(run),
        "participation": page_table(
            ("Site", "Rounds that were not OK"),
            rows=[(row.site, _missed_rounds(row)) for row in run.participation],
            text_columns=(0, 1),
        ),
        "cost": cost_table(run),
    }


def _missed_rounds(row: ParticipationRecord) -> str:
    missed = [
        f"{number} {status}" for number, status in enumerate(row.statuses, 1) if status != "OK"
    ]
    return ", ".join(missed) or "none"


def calibration_table(run: Summary) -> PageTable:
    """Show how well each predictor is calibrated over all sites of a role."""
    over_sites = [*median_rows(run), *(row for row in run.calibration if row.over)]
    cells = [main_cells(row) for row in in_reading_order(over_sites)]
    return page_table(MAIN_COLUMNS, rows=without_repeats(cells), text_columns=(0, 1))


def all_metrics_table(rows: Sequence[CalibrationRecord]) -> PageTable:
    """Show every metric of the given rows; binary ECE where any row has it."""
    binary = any(row.ece_binary is not None for row in rows)
    further = [column for column in FURTHER_COLUMNS if binary or column.key != "ece_binary"]
    cells: list[Cells] = [
        (*main_cells(row), *(column.cell(row) for column in further))
        for row in in_reading_order(rows)
    ]
    columns = (*MAIN_COLUMNS, *(column.title for column in further))
    return page_table(columns, rows=without_repeats(cells), text_columns=(0, 1))


def main_cells(row: CalibrationRecord) -> Cells:
    """Write the cells below `MAIN_COLUMNS` of one row."""
    return (
        place_name(row.site),
        predictor_name(row),
        records_cell(row.n),
        error_cell(row),
        (points(row.ece), f"({points(row.ece_if_calibrated)})"),
        (points(row.accuracy), interval(row.intervals.get("accuracy"), points)),
        (decimal(row.nll), interval(row.intervals.get("nll"), decimal)),
        (decimal(row.auroc), interval(row.auroc_bounds, decimal)),
    )


def records_cell(n: int | None) -> Cell:
    """Write a number of records, and mark those that are too few to tell much."""
    return count(n), "few" if n is not None and n < FEW else ""


def error_cell(row: CalibrationRecord) -> Cell:
    """Write the debiased error in points; where it is cut at 0, its interval is the number."""
    if one_outcome(row):
        return UNDEFINED, "one outcome"
    ends = known_ends(row.intervals.get("rms_debiased"))
    if row.rms_debiased == 0 and ends is not None:
        return f"{points(ends[0])} to {points(ends[1])}", ""
    return points(row.rms_debiased), interval(ends, points)


def baselines_table(run: Summary) -> PageTable:
    """Show the run's predictors beside simpler ones on the same pooled test records.

    Of sites that trained alone it shows the median, with the least and the largest behind it.
    """
    baselines = run.baselines.rows if run.baselines else ()
    cells: list[Cells] = []
    for role in ROLES if baselines else ():
        rows: list[CalibrationRecord] = [
            row for row in run.calibration if row.site == f"pooled:{role}"
        ]
        rows += [row for row in baselines if row.role == role]
        by_predictor: dict[str, list[CalibrationRecord]] = {}
        for row in rows:
            by_predictor.setdefault(row.predictor, []).append(row)
        cells += [_baseline_cells(role, members) for members in by_predictor.values()]
    columns = ("Where", "Predictor", *(column.title for column in BASELINE_COLUMNS), "n")
    return page_table(columns, rows=without_repeats(cells), text_columns=(0, 1))


def _baseline_cells(role: str, rows: Sequence[CalibrationRecord]) -> Cells:
    """Write the cells of one predictor at the sites of a role."""
    first = rows[0]
    values = [
        _median_and_range([row.metric(column.key) for row in rows], column.write)
        for column in BASELINE_COLUMNS
    ]
    if len(rows) == 1:
        values[-1] = error_cell(first)
    name = predictor_name(first)
    if first.predictor in HOW_FITTED:
        name = PREDICTORS.get(first.predictor, first.predictor)
    predictor = (name, HOW_FITTED.get(first.predictor, "this run"))
    return (f"all {ROLES[role]}", predictor, *values, count(first.n))


def _median_and_range(values: Sequence[float | None], write: Write) -> Cell:
    defined = [value for value in values if value is not None]
    if len(defined) < 2:
        return write(defined[0] if defined else None), ""
    return write(statistics.median(defined)), f"{write(min(defined))} to {write(max(defined))}"


def hospitals_table(run: Summary) -> PageTable:
    """Show how much hospitals differ in the level of the outcome, and a new hospital's rate."""
    cells: list[Cells] = []
    for row in run.hospitals:
        write: Write = decimal if row.among else points
        unit = f"log odds, {row.among} of them" if row.among else "%, declared population"
        if not row.identified:
            unit += ": too few to tell, the prior says it"
        cells.append(((row.of, unit), write(row.value), interval(row.interval, write)))
    return page_table(("What", "Value", "90% interval"), cells)


def passes_table(run: Summary) -> PageTable:
    """Show how many records each pass held at which sites, and what computed them."""
    cells: list[Cells] = []
    for row in run.passes:
        sites = row.sites[0] if len(row.sites) == 1 else f"{len(row.sites)} sites"
        wanted = "" if row.rows == row.wanted else f"{row.wanted} wanted"
        slower = f"{significant(row.slower)} times" if row.slower > 1 else "as fast"
        cells.append(
            (
                row.computation,
                sites,
                (str(row.rows), wanted),
                row.products,
                slower,
                row.processor,
                f"{row.library}, reproducible: {row.reproducible}",
            )
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
    return page_table(columns, rows=without_repeats(cells), text_columns=(0, 1, 3, 4, 5, 6))


@dataclass(frozen=True)
class _PrivacyLine:
    """One line of the table of privacy, from whose fields the columns are chosen."""

    site: str
    unit: str
    units: str
    steps: str
    epsilon: Cell
    recalibration: str
    budget: str
    delta: str
    mu: str | Cell
    temperature: str | Cell
    status: str


def privacy_table(run: Summary) -> PageTable:
    """Show what each site spent on training, then on noised test results.

    Epsilon and mu are rounded up. Columns that say nothing in this run are left out: budget, delta
    and mu without privacy, temperature without one.
    """
    sites = {site.name: site for site in run.sites}
    lines = [_training_line(row, sites.get(row.site), run.private) for row in run.privacy]
    lines += [_evaluation_line(row) for row in run.evaluation_privacy]
    columns: dict[str, Callable[[_PrivacyLine], str | Cell]] = {
        "Site": lambda line: line.site,
        "Unit": lambda line: line.unit,
        "Units n": lambda line: line.units,
        "Steps": lambda line: line.steps,
        "ε spent": lambda line: line.epsilon,
    }
    if run.private and any(row.recalibration_epsilon is not None for row in run.privacy):
        columns["ε of recalibration"] = lambda line: line.recalibration
    if run.private or run.evaluation_privacy:
        columns["Budget"] = lambda line: line.budget
        columns["δ"] = lambda line: line.delta
        columns["μ"] = lambda line: line.mu
    if tempered(run):
        columns["Temperature"] = lambda line: line.temperature
    columns["Status"] = lambda line: line.status
    return page_table(
        list(columns),
        rows=[[cell(line) for cell in columns.values()] for line in lines],
        text_columns=(0, 1, len(columns) - 1),
    )


def _training_line(row: PrivacyRecord, site: SiteRecord | None, private: bool) -> _PrivacyLine:
    return _PrivacyLine(
        site=row.site,
        unit=site.unit if site else row.unit,
        units=count(site.n if site else None),
        steps=count(row.steps),
        epsilon=(rounded_up(row.epsilon), row.epsilon_method if private else ""),
        recalibration=rounded_up(row.recalibration_epsilon),
        budget=significant(row.budget) if private else "",
        delta=probability(row.delta) if private else "",
        mu=_mu_cell(row) if private else "",
        temperature=(
            significant(row.temperature),
            interval(row.temperature_range, significant),
        ),
        status=row.status or UNDEFINED,
    )


def _evaluation_line(row: EvaluationPrivacyRecord) -> _PrivacyLine:
    return _PrivacyLine(
        site=row.site,
        unit=row.unit,
        units="",
        steps="",
        epsilon=(rounded_up(row.epsilon), row.epsilon_method),
        recalibration="",
        budget=significant(row.budget),
        delta=probability(row.delta),
        mu=_mu_cell(row),
        temperature="",
        status="evaluation",
    )


def _mu_cell(row: EvaluationPrivacyRecord) -> Cell:
    return rounded_up(row.mu), "" if row.mu is None else row.mu_kind


def sites_table(run: Summary) -> PageTable:
    """Describe each site: size, how often the event happens, and its subgroups' shares."""
    subgroups = _subgroup_shares(run)
    rows = [_site_cells(site, list(subgroups.values())) for site in run.sites]
    happens = "Largest class, %"
    if all(len(site.shares) == 2 for site in run.sites if site.shares):
        happens = f"{event(run).capitalize()}, %"
    columns = ("Site", "Role", "Units n", "Test records", happens, *subgroups)
    return page_table(columns, rows=rows, text_columns=(0, 1))


def _subgroup_shares(run: Summary) -> dict[str, dict[str, float]]:
    """Return header -> site -> share of its test records in the subgroup."""
    test_records = {site.name: site.test_n for site in run.sites}
    values: dict[str, set[str]] = {}
    for row in run.subgroups:
        values.setdefault(row.attribute, set()).add(row.value)
    shares: dict[str, dict[str, float]] = {}
    for row in run.subgroups:
        # Of two subgroups the first says it all.
        if len(values[row.attribute]) == 2 and row.value == max(values[row.attribute]):
            continue
        whole = test_records.get(row.site)
        if whole and row.n is not None:
            shares.setdefault(f"{row.attribute}: {row.value}, %", {})[row.site] = row.n / whole
    return shares


def _site_cells(site: SiteRecord, subgroups: Sequence[dict[str, float]]) -> Cells:
    plural = "s" if site.unit and site.n != 1 else ""
    if not site.shares:
        event_share = UNDEFINED
    elif len(site.shares) > 2:
        event_share = points(max(site.shares))
    else:
        event_share = points(site.shares[1])
    return (
        site.name,
        (SITE_ROLES[site.role], site.shift.replace("_", " ")),
        (count(site.n), f"{site.unit}{plural}"),
        records_cell(site.test_n),
        event_share,
        *(points(shares.get(site.name)) for shares in subgroups),
    )


def epsilon_table(curves: Sequence[EpsilonCurve]) -> PageTable:
    """Show epsilon after each round, a row per site."""
    rounds = sorted({number for curve in curves for number in curve.rounds})
    rows = []
    for curve in curves:
        spent = dict(zip(curve.rounds, curve.epsilons, strict=True))
        rows.append((curve.site, *(rounded_up(spent.get(number)) for number in rounds)))
    return page_table(("Site", *(f"Round {number}" for number in rounds)), rows)


def cost_table(run: Summary) -> PageTable:
    """Show bytes sent and seconds taken."""
    rows = [
        ("Bytes sent by all sites", *_traffic_cells(run.bytes.up)),
        ("Bytes sent to all sites", *_traffic_cells(run.bytes.down)),
    ]
    rows += [(f"Time: {stage}", duration(seconds), "") for stage, seconds in run.seconds.items()]
    return page_table(("", "Total", "Largest round"), rows)


def _traffic_cells(sent: Sequence[int]) -> tuple[str, str]:
    if not sent:
        return UNDEFINED, UNDEFINED
    return filesize.decimal(sum(sent)), filesize.decimal(max(sent))


def facts(run: Summary) -> dict[str, str]:
    """Return the run's identity: scenario, aggregation, seed, heterogeneity, versions."""
    texts = {"Scenario": run.scenario, "Data": run.data, "Finished": run.finished}
    if run.seconds:
        texts["Duration"] = duration(sum(filter(None, run.seconds.values())))
    texts["Aggregation"] = run.aggregation
    if run.aggregation_inputs is not None:
        texts |= _aggregation_inputs(run.aggregation_inputs)
    texts["Resumed"] = ", ".join(
        f"after round {number}" if number else "before round 1" for number in run.resumed_after
    )
    if run.seed is not None:
        texts["Seed of partition and model"] = str(run.seed)
    if run.heterogeneity is not None:
        texts["Label heterogeneity (mean total variation)"] = decimal(run.heterogeneity)
    if run.configurations_tried is not None:
        texts["Configurations tried"] = count(run.configurations_tried)
    texts["Versions"] = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    return {name: text for name, text in texts.items() if text}


def _aggregation_inputs(inputs: AggregationInputs) -> dict[str, str]:
    """Say what the server used beyond released samples, and what it made of it."""
    number = "" if inputs.count is None else f"{count(inputs.count)} "
    if inputs.kind == "file":
        labels = "with labels" if inputs.labelled else "labels not used"
        used = f"{number}records of {inputs.file}, {labels}, declared public: {inputs.statement}"
    else:
        used = f"{number}made-up inputs ({inputs.pattern}), no record"
    texts = {"Server's own inputs": used}
    if inputs.beta is not None:
        texts["beta of PredBayes"] = decimal(inputs.beta)
    if inputs.divergence is not None:
        texts["Divergence of the distilled network from its teacher, nats per input"] = decimal(
            inputs.divergence
        )
    return texts
