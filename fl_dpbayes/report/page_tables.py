"""The tables of the report page: columns that are declared once, and cells as text."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from rich import filesize

from fl_dpbayes.calibration import METRICS, MOST_SHOWN, CalibrationRecord, Metric
from fl_dpbayes.config import PREDICTORS, Measures
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
    metric_writer,
    points,
    probability,
    rounded_up,
    significant,
)
from fl_dpbayes.report.summary import (
    AggregationInputs,
    EvaluationPrivacyRecord,
    HospitalRecord,
    ParticipationRecord,
    PassRecord,
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
RowT = TypeVar("RowT", contravariant=True)
CANNOT_TELL = "cannot tell"
# Below this a place's differences may well be chance.
FEW = 100
SPENT_COLUMNS = ("Site", "Units n", "Steps", "ε spent", "ε of recalibration", "Budget", "Status")
HOW_FITTED = {
    "majority": "the class shares of all training records, for everybody",
    "site_only": "a regression on one hospital's records: median, least to most",
    "central": "a regression on all hospitals' records together",
    "published": "as published; fitted on these very patients",
}


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


@dataclass(frozen=True)
class Column(Generic[RowT]):
    """A column of a table: its header, and how its cells are written.

    Attributes:
        title: The header.
        write: Writes the value of a row, or a pair of a value and what stands behind it.
        in_words: Whether it holds words, aligned left; else it holds numbers.
    """

    title: str
    write: Callable[[RowT], str | Cell]
    in_words: bool = False


@dataclass(frozen=True)
class FoldedTable:
    """A table of which a page shows few rows.

    Attributes:
        shown: Those that matter most.
        folded: The others.
    """

    shown: PageTable
    folded: PageTable


def page_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Cell]],
    text_columns: Iterable[int] = (0,),
) -> PageTable:
    """Make a table of cells.

    Args:
        columns: Headers.
        rows: Values, or pairs of a value and what stands behind it.
        text_columns: Positions of the columns that hold words.
    """
    cells = [
        tuple(value if isinstance(value, tuple) else (value, "") for value in row) for row in rows
    ]
    return PageTable(tuple(columns), cells, frozenset(text_columns))


def table_of(
    columns: Sequence[Column[RowT]], rows: Iterable[RowT], *, grouped: bool = True
) -> PageTable:
    """Fill declared columns with rows.

    Args:
        columns: The columns.
        rows: One record for each row.
        grouped: Whether the first cell of a row is empty where it repeats the one above it.
    """
    cells: list[Cells] = []
    above: str | Cell | None = None
    for row in rows:
        first, *further = (column.write(row) for column in columns)
        cells.append(("" if grouped and first == above else first, *further))
        above = first
    return page_table(
        columns=[column.title for column in columns],
        rows=cells,
        text_columns=(number for number, column in enumerate(columns) if column.in_words),
    )


def first_rows(
    columns: Sequence[Column[RowT]], rows: Sequence[RowT], importance: Callable[[RowT], float]
) -> FoldedTable:
    """Part the rows that matter most, all where they are few, from the others; both in order.

    Args:
        columns: The columns.
        rows: One record for each row.
        importance: The larger the more it matters.
    """
    by_importance = sorted(range(len(rows)), key=lambda place: -importance(rows[place]))
    first = sorted(by_importance[:MOST_SHOWN])
    further = sorted(by_importance[MOST_SHOWN:])
    return FoldedTable(
        shown=table_of(columns, [rows[place] for place in first], grouped=False),
        folded=table_of(columns, [rows[place] for place in further], grouped=False),
    )


def records_cell(n: int | None) -> Cell:
    """Write a number of records, and mark those that are too few to tell much."""
    return count(n), "few" if n is not None and n < FEW else ""


def place_cell(row: CalibrationRecord) -> Cell:
    """Name the place of a row, and mark results that left with noise."""
    return place_name(row.site), "noised" if row.noised else ""


def error_cell(row: CalibrationRecord) -> Cell:
    """Write the debiased error in points; where it is cut at 0, its interval is the number."""
    if one_outcome(row):
        return UNDEFINED, "one outcome"
    if "rms_debiased" in (row.cannot_tell or ()):
        return metric_cell(row, "rms_debiased", points)
    ends = known_ends(row.intervals.get("rms_debiased"))
    if row.rms_debiased == 0 and ends is not None:
        return f"{points(ends[0])} to {points(ends[1])}", ""
    return points(row.rms_debiased), interval(ends, points)


def ece_cell(row: CalibrationRecord) -> Cell:
    """Write the ECE in points, and what a calibrated model would show."""
    if "ece" in (row.cannot_tell or ()):
        return CANNOT_TELL, ""
    return points(row.ece), f"({points(row.ece_if_calibrated)})"


def metric_cell(row: CalibrationRecord, key: str, write: Write) -> Cell:
    """Write a metric with its 95 % interval; "cannot tell" where noise made that too wide."""
    ends = interval(row.intervals.get(key), write)
    if key in (row.cannot_tell or ()):
        return CANNOT_TELL, ends
    return write(row.metric(key)), ends


def rates_cell(row: CalibrationRecord) -> Cell:
    """Say how many of 100 patients were predicted to have the event, and how many had it."""
    if row.mean_risk is None or row.event_rate is None:
        return "hidden by noise", ""
    ends = known_ends(row.intervals.get("event_rate"))
    between = "" if ends is None else f"{100 * ends[0]:.0f} to {100 * ends[1]:.0f}"
    return f"predicted {of_100(row.mean_risk)}, happened {of_100(row.event_rate)}", between


def of_100(share: float) -> str:
    """Write how many of 100 patients a share is; between 0 and 1 with one place."""
    return points(share) if 0 < share < 0.01 else f"{100 * share:.0f}"


def risk_gap(row: CalibrationRecord) -> int | None:
    """Return by how many of 100 patients the two whole numbers of `rates_cell` differ."""
    if row.mean_risk is None or row.event_rate is None:
        return None
    return abs(round(100 * row.mean_risk) - round(100 * row.event_rate))


def metric_title(metric: Metric) -> str:
    """Write a metric's name and its unit, but for shares, which stand in percentage points."""
    unit = ", nats" if metric.unit == "nats" else ""
    return f"{metric.name[0].upper()}{metric.name[1:]}{unit}"


_CalibrationColumn = Column[CalibrationRecord]
# The columns of calibration, of which other tables take those that they need.
WHERE: _CalibrationColumn = Column("Where", place_cell, in_words=True)
PREDICTOR: _CalibrationColumn = Column("Predictor", predictor_name, in_words=True)
RECORDS: _CalibrationColumn = Column("n", lambda row: records_cell(row.n))
RMS: _CalibrationColumn = Column("RMS debiased", error_cell)
ECE: _CalibrationColumn = Column("ECE (if calibrated)", ece_cell)
AUROC: _CalibrationColumn = Column("AUROC", lambda row: metric_cell(row, "auroc", decimal))
# Columns that show more than a metric with its interval.
_MEASURE_COLUMNS = {"rms_debiased": RMS, "ece": ECE, "auroc": AUROC}
# Where a table has no room for a metric's name.
_SHORT_TITLES = {
    "accuracy": "Accuracy, %",
    "nll": "NLL",
    "brier": "Brier",
    "ace": "ACE",
    "sce": "SCE",
    "mce": "MCE",
    "ece_10": "ECE, 10 bins",
    "ece_20": "ECE, 20 bins",
    "ece_equal_mass": "ECE, equal mass",
    "ece_binary": "ECE, binary",
    "aurc": "AURC",
    "aurc_excess": "Excess AURC",
}


def measure_columns(keys: Iterable[str]) -> tuple[_CalibrationColumn, ...]:
    """Return the columns of metrics, by their keys."""
    return tuple(_MEASURE_COLUMNS.get(key) or _measure_column(METRICS[key]) for key in keys)


def _measure_column(metric: Metric) -> _CalibrationColumn:
    title = _SHORT_TITLES.get(metric.key) or metric_title(metric)
    write = metric_writer(metric)
    return Column(title, lambda row: metric_cell(row, metric.key, write))


def run_tables(run: Summary) -> dict[str, PageTable | FoldedTable]:
    """Gather the tables of who took part, what it cost and how it is calibrated.

    Returns:
        By the names that the page's template gives them.
    """
    over_sites = [*median_rows(run), *(row for row in run.calibration if row.over)]
    return {
        "baselines": baselines_table(run),
        "hospitals": hospitals_table(run),
        "settings": page_table(
            ("Part", "Settings"),
            rows=[(row.name, row.value) for row in run.settings],
            text_columns=(0, 1),
        ),
        "spent": spent_table(run),
        "privacy": privacy_table(run),
        "releases": page_table(
            ("What", "How it left a site"),
            rows=[(release.item, release.how) for release in run.releases],
            text_columns=(0, 1),
        ),
        "calibration": table_of(
            (WHERE, PREDICTOR, RECORDS, *measure_columns(run.measures.first)),
            in_reading_order(over_sites),
        ),
        "all_metrics": all_metrics_table(run.calibration, run.measures),
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


def all_metrics_table(rows: Sequence[CalibrationRecord], measures: Measures) -> PageTable:
    """Show every measure of the given rows; binary ECE where any row has it."""
    has_binary = any(row.ece_binary is not None for row in rows)
    keys = [
        key for key in (*measures.first, *measures.further) if key != "ece_binary" or has_binary
    ]
    columns = (WHERE, PREDICTOR, RECORDS, *measure_columns(keys))
    return table_of(columns, in_reading_order(rows))


def baselines_table(run: Summary) -> PageTable:
    """Show the run's predictors beside simpler ones on the same pooled test records.

    Of sites that trained alone it shows the median, with the least and the largest behind it.
    """
    baselines = run.baselines.rows if run.baselines else ()
    groups: list[list[CalibrationRecord]] = []
    for role in ROLES if baselines else ():
        pooled = [row for row in run.calibration if row.site == f"pooled:{role}"]
        of_role = [row for row in baselines if row.role == role]
        by_predictor: dict[str, list[CalibrationRecord]] = {}
        for row in [*pooled, *of_role]:
            by_predictor.setdefault(row.predictor, []).append(row)
        groups += by_predictor.values()
    return table_of(BASELINE_COLUMNS, groups)


def _fitted_how(rows: Sequence[CalibrationRecord]) -> Cell:
    """Name the predictor of some rows, and say what it was fitted to."""
    predictor = rows[0].predictor
    if predictor in HOW_FITTED:
        return PREDICTORS.get(predictor, predictor), HOW_FITTED[predictor]
    return predictor_name(rows[0]), "this run"


def _median_and_range(rows: Sequence[CalibrationRecord], key: str, write: Write) -> Cell:
    defined = [value for row in rows if (value := row.metric(key)) is not None]
    if len(defined) < 2:
        return write(defined[0] if defined else None), ""
    return write(statistics.median(defined)), f"{write(min(defined))} to {write(max(defined))}"


def _median_error(rows: Sequence[CalibrationRecord]) -> Cell:
    return (
        error_cell(rows[0]) if len(rows) == 1 else _median_and_range(rows, "rms_debiased", points)
    )


# A row is of one predictor at the sites of a role.
BASELINE_COLUMNS: tuple[Column[Sequence[CalibrationRecord]], ...] = (
    Column("Where", lambda rows: f"all {ROLES[rows[0].role]}", in_words=True),
    Column("Predictor", _fitted_how, in_words=True),
    Column("AUROC", lambda rows: _median_and_range(rows, "auroc", decimal)),
    Column("NLL", lambda rows: _median_and_range(rows, "nll", decimal)),
    Column("Accuracy, %", lambda rows: _median_and_range(rows, "accuracy", points)),
    Column("RMS debiased", _median_error),
    Column("n", lambda rows: count(rows[0].n)),
)


def hospitals_table(run: Summary) -> PageTable:
    """Show how much hospitals differ in the level of the outcome, and a new hospital's rate."""

    def write(row: HospitalRecord) -> Write:
        return decimal if row.among else points

    columns: tuple[Column[HospitalRecord], ...] = (
        Column("What", _hospital_quantity, in_words=True),
        Column("Value", lambda row: write(row)(row.value)),
        Column("90% interval", lambda row: interval(row.interval, write(row))),
    )
    return table_of(columns, run.hospitals)


def _hospital_quantity(row: HospitalRecord) -> Cell:
    unit = f"log odds, {row.among} of them" if row.among else "%, given the training hospitals"
    if not row.identified:
        unit += ": too few to tell, the prior says it"
    return row.of, unit


def _where_passed(row: PassRecord) -> str:
    return row.sites[0] if len(row.sites) == 1 else f"{len(row.sites)} sites"


def _rows_of_pass(row: PassRecord) -> Cell:
    return str(row.rows), "" if row.rows == row.wanted else f"{row.wanted} wanted"


def _time_of_record(row: PassRecord) -> str:
    return f"{significant(row.slower)} times" if row.slower > 1 else "as fast"


PASS_COLUMNS: tuple[Column[PassRecord], ...] = (
    Column("Computed", lambda row: row.computation, in_words=True),
    Column("Where", _where_passed, in_words=True),
    Column("Records in a pass", _rows_of_pass),
    Column("Products", lambda row: row.products, in_words=True),
    Column("Time of a record", _time_of_record, in_words=True),
    Column("Processor", lambda row: row.processor, in_words=True),
    Column(
        "Library", lambda row: f"{row.library}, reproducible: {row.reproducible}", in_words=True
    ),
)


def passes_table(run: Summary) -> PageTable:
    """Show how many records each pass held at which sites, and what computed them."""
    return table_of(PASS_COLUMNS, run.passes)


def privacy_table(run: Summary) -> PageTable:
    """Show what each site spent on training, then on noised test results.

    Epsilon and mu are rounded up. Columns that say nothing in this run are left out: budget, delta
    and mu without privacy, temperature without one.
    """
    rows = [*run.privacy, *run.evaluation_privacy]
    return table_of(_privacy_columns(run), rows, grouped=False)


def spent_table(run: Summary) -> FoldedTable:
    """Show what training cost each site, in short; first those that spent most."""
    columns = [column for column in _privacy_columns(run) if column.title in SPENT_COLUMNS]
    return first_rows(columns, run.privacy, lambda row: row.largest_epsilon or 0.0)


def spent_alike(run: Summary) -> bool:
    """Say whether several sites all have the same status and the same cost, as it is written."""
    told = {
        (rounded_up(row.epsilon), rounded_up(row.recalibration_epsilon), row.status)
        for row in run.privacy
    }
    return len(told) == 1 < len(run.privacy)


def _privacy_columns(run: Summary) -> list[Column[EvaluationPrivacyRecord]]:
    sites = {site.name: site for site in run.sites}

    def of_training(
        write: Callable[[PrivacyRecord], str | Cell],
    ) -> Callable[[EvaluationPrivacyRecord], str | Cell]:
        """Write a cell in rows of training; rows of test results have none."""
        return lambda row: write(row) if isinstance(row, PrivacyRecord) else ""

    def of_account(
        write: Callable[[EvaluationPrivacyRecord], str],
    ) -> Callable[[EvaluationPrivacyRecord], str]:
        """Write a text in rows of which an account was kept; training without privacy has none."""
        return lambda row: write(row) if run.private or not isinstance(row, PrivacyRecord) else ""

    def unit(row: EvaluationPrivacyRecord) -> str:
        site = sites.get(row.site) if isinstance(row, PrivacyRecord) else None
        return site.unit if site else row.unit

    def units(row: PrivacyRecord) -> str:
        site = sites.get(row.site)
        return count(site.n if site else None)

    method = of_account(lambda row: row.epsilon_method)
    mu = of_account(lambda row: rounded_up(row.mu))
    mu_kind = of_account(lambda row: "" if row.mu is None else row.mu_kind)
    columns: list[Column[EvaluationPrivacyRecord]] = [
        Column("Site", lambda row: row.site, in_words=True),
        Column("Unit", unit, in_words=True),
        Column("Units n", of_training(units)),
        Column("Steps", of_training(lambda row: count(row.steps))),
        Column("ε spent", lambda row: (rounded_up(row.epsilon), method(row))),
    ]
    if run.private and any(row.recalibration_epsilon is not None for row in run.privacy):
        recalibration = of_training(lambda row: rounded_up(row.recalibration_epsilon))
        columns.append(Column("ε of recalibration", recalibration))
    if run.private or run.evaluation_privacy:
        columns += [
            Column("Budget", of_account(lambda row: significant(row.budget))),
            Column("δ", of_account(lambda row: probability(row.delta))),
            Column("μ", lambda row: (mu(row), mu_kind(row))),
        ]
    if tempered(run):
        columns.append(Column("Temperature", of_training(_temperature_cell)))
    columns.append(Column("Status", _status, in_words=True))
    return columns


def _temperature_cell(row: PrivacyRecord) -> Cell:
    return significant(row.temperature), interval(row.temperature_range, significant)


def _status(row: EvaluationPrivacyRecord) -> str:
    if isinstance(row, PrivacyRecord):
        return row.status or UNDEFINED
    return "evaluation"


def sites_table(run: Summary) -> FoldedTable:
    """Describe each site: size, how often the event happens, its subgroups' shares.

    First come the largest.
    """
    columns: list[Column[SiteRecord]] = [
        Column("Site", lambda site: site.name, in_words=True),
        Column(
            "Role",
            lambda site: (SITE_ROLES[site.role], site.shift.replace("_", " ")),
            in_words=True,
        ),
        Column("Units n", _units_cell),
        Column("Test records", lambda site: records_cell(site.test_n)),
    ]
    shares = [site.shares for site in run.sites if site.shares]
    if shares:
        is_event = all(len(of_site) == 2 for of_site in shares)
        happens = event(run).capitalize() if is_event else "Largest class"
        columns.append(Column(f"{happens}, %", _event_share))
    columns += [
        Column(title, partial(_share_at, shares)) for title, shares in _subgroup_shares(run).items()
    ]
    return first_rows(columns, run.sites, lambda site: site.n or 0)


def _units_cell(site: SiteRecord) -> Cell:
    plural = "s" if site.unit and site.n != 1 else ""
    return count(site.n), f"{site.unit}{plural}"


def _event_share(site: SiteRecord) -> str:
    if not site.shares:
        return UNDEFINED
    return points(max(site.shares) if len(site.shares) > 2 else site.shares[1])


def _share_at(shares: Mapping[str, float], site: SiteRecord) -> str:
    return points(shares.get(site.name))


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
